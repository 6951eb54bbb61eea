/* The files that the Prolog leaves for the job's steps. slurmstepd reads them as root. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim.h"

#define LARGEST (64 * 1024)

const char *job_file(char *path, const struct settings *settings, uint32_t job, const char *suffix)
{
	struct text text = text_in(path, GPUTUNE_PATH);

	text_add(&text, settings->run);
	text_add(&text, "/jobs/");
	text_add_number(&text, job);
	text_add(&text, suffix);
	return path;
}

/* Only root's own regular file is taken for one: slurmstepd is root, and no user may have it wait, fill its
 * memory or tell others what the Prolog did not. */
char *job_file_read(const char *path)
{
	struct stat status;
	const char *wrong = NULL;
	size_t used = 0;
	char *text = NULL;
	int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0) {
		if (errno != ENOENT)
			slurm_error("gputune: %s: %m", path);
		return NULL;
	}
	if (fstat(fd, &status))
		wrong = strerror(errno);
	else if (!S_ISREG(status.st_mode))
		wrong = "not a regular file";
	else if (status.st_uid != geteuid())
		wrong = "another user's";
	else if (status.st_size > LARGEST)
		wrong = "too large";
	else if (!(text = malloc(LARGEST + 1)))
		wrong = strerror(errno);
	while (!wrong && used < LARGEST) {
		ssize_t got = read(fd, text + used, LARGEST - used);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			wrong = strerror(errno);
		if (got <= 0)
			break;
		used += (size_t)got;
	}
	close(fd);
	if (wrong) {
		slurm_error("gputune: %s: %s: it is left alone", path, wrong);
		free(text);
		return NULL;
	}
	text[used] = '\0';
	/* Nothing in it is for the user's terminal to act on. */
	for (size_t i = 0; i < used; i++)
		if (text[i] != '\n' && ((unsigned char)text[i] < ' ' || text[i] == '\177'))
			text[i] = '?';
	return text;
}
