/* Reading small text files and the words in them; saying what is wrong. */
#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* One write, so that lines of several processes do not mix. */
void complain(const char *format, ...)
{
	char line[1024] = "fakenvml: ";
	size_t n = strlen(line);
	va_list args;
	va_start(args, format);
	int length = vsnprintf(line + n, sizeof line - n - 1, format, args);
	va_end(args);
	if (length < 0)
		return;
	n += (size_t)length < sizeof line - n - 1 ? (size_t)length : sizeof line - n - 2;
	line[n++] = '\n';
	ssize_t written = write(STDERR_FILENO, line, n);
	(void)written; /* nobody left to tell */
}

/*
 * A file's text, NUL-terminated, to be freed; NULL with errno. Files are only
 * ever replaced whole, so one open file is one version of it. identity, unless
 * NULL, becomes what tells this version from others.
 */
char *text_read(const char *path, char *identity, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	char *text = NULL;
	size_t length = 0, room = 0;
	struct stat st;
	if (fstat(fd, &st) < 0)
		goto fail;
	if (identity)
		snprintf(identity, size, "%ju-%jd-%jd.%09ld", (uintmax_t)st.st_ino, (intmax_t)st.st_size,
			 (intmax_t)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
	for (;;) {
		if (length + 1 >= room) {
			room = room ? 2 * room : 4096;
			char *more = realloc(text, room);
			if (!more)
				goto fail;
			text = more;
		}
		ssize_t n = read(fd, text + length, room - length - 1);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			goto fail;
		if (n == 0)
			break;
		length += (size_t)n;
	}
	close(fd);
	text[length] = '\0';
	return text;
fail:;
	int error = errno;
	free(text);
	close(fd);
	errno = error;
	return NULL;
}

/* The next word of a line, NULL at its end. */
char *text_word(char **rest)
{
	char *word = *rest + strspn(*rest, " \t\r");
	if (*word == '\0')
		return NULL;
	char *end = word + strcspn(word, " \t\r");
	if (*end != '\0')
		*end++ = '\0';
	*rest = end;
	return word;
}

/* A decimal or 0x number up to limit and nothing else. */
bool text_number(const char *word, unsigned long long limit, unsigned long long *out)
{
	if (!word || word[0] < '0' || word[0] > '9')
		return false;
	char *end;
	errno = 0;
	*out = strtoull(word, &end, word[1] == 'x' ? 16 : 10);
	return errno == 0 && *end == '\0' && *out <= limit;
}

/* "0-3,8" or "none". */
bool text_mask(const char *list, struct mask *m)
{
	*m = (struct mask){0};
	if (strcmp(list, "none") == 0)
		return true;
	m->known = true;
	const unsigned long bits = 8 * sizeof m->words[0];
	for (;;) {
		char *end;
		if (*list < '0' || *list > '9')
			return false;
		unsigned long first = strtoul(list, &end, 10), last = first;
		if (*end == '-') {
			list = end + 1;
			if (*list < '0' || *list > '9')
				return false;
			last = strtoul(list, &end, 10);
		}
		if (last < first || last >= MASK_WORDS * bits)
			return false;
		for (unsigned long id = first; id <= last; id++)
			m->words[id / bits] |= 1UL << (id % bits);
		if (*end == '\0')
			return true;
		if (*end != ',')
			return false;
		list = end + 1;
	}
}
