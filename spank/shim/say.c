/* What a forked task tells its user before it becomes the user's program. Async-signal-safe. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "shim.h"

/*
 * Nobody may read what standard error is: a FIFO that is full, a terminal that
 * was stopped. The task waits for a second in all, in however many lines, and
 * says nothing more then. A timer ends the wait, not poll(2): between its answer
 * and the write another task can take the room.
 */
static struct itimerval left = { .it_value = { .tv_sec = 1 }, .it_interval = { .tv_usec = 100000 } };
static volatile sig_atomic_t late;

static void over(int signal)
{
	(void)signal;
	late = 1;
}

static void write_all(const char *text)
{
	size_t length = strlen(text);

	while (length > 0 && !late) {
		ssize_t written = write(STDERR_FILENO, text, length);

		if (written < 0 && errno == EAGAIN) {
			struct pollfd ready = { .fd = STDERR_FILENO, .events = POLLOUT };

			poll(&ready, 1, 1000);
			continue;
		}
		if (written < 0 && errno == EINTR)
			continue;
		if (written <= 0)
			break;
		text += written;
		length -= (size_t)written;
	}
}

void say(const char *text)
{
	static const struct itimerval none;
	/* A reader that has gone must not end the task before it began. */
	struct sigaction ignore = { .sa_handler = SIG_IGN }, pipe_before;
	struct sigaction end = { .sa_handler = over }, alarm_before; /* without SA_RESTART */
	sigset_t alarm, mask_before;

	if (late)
		return;
	sigaction(SIGPIPE, &ignore, &pipe_before);
	sigaction(SIGALRM, &end, &alarm_before);
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	sigprocmask(SIG_UNBLOCK, &alarm, &mask_before);
	/* It goes on ticking: a first tick can fall between the look at it and the write. */
	setitimer(ITIMER_REAL, &left, NULL);
	write_all(text);
	setitimer(ITIMER_REAL, &none, &left);
	sigprocmask(SIG_SETMASK, &mask_before, NULL);
	sigaction(SIGALRM, &alarm_before, NULL);
	sigaction(SIGPIPE, &pipe_before, NULL);
}

void say_lines(const char *start, const char *kind, const char *lines)
{
	while (*lines) {
		char buffer[GPUTUNE_TEXT + 512];
		struct text text = text_in(buffer, sizeof(buffer) - 1);
		char piece[2] = "";

		if (*lines == '\n') {
			lines++;
			continue;
		}
		text_add(&text, start);
		text_add(&text, kind);
		for (; *lines && *lines != '\n'; lines++) {
			piece[0] = *lines;
			text_add(&text, piece);
		}
		text.size++; /* room for the newline was kept back */
		text_add(&text, "\n");
		say(buffer);
	}
}
