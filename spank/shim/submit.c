/*
 * At submission the value is checked by the gputune program, so that the
 * grammar is written once and no Go runtime comes into srun, sbatch or salloc.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim.h"

/* Exit status of "gputune check" for a value that it refuses. Any other status
 * is the program's own trouble, such as too little memory for it, and no reason
 * to refuse a job. */
#define REFUSED 3

/* What of the program's words is shown. */
#define WORDS 4096

static pid_t spawn(const char *program, char *const argv[], int words)
{
	/* Nothing of the user's environment reaches the program, so that nothing
	 * there changes what it says; and it gets the signal mask of a new program,
	 * not srun's, in which most are blocked. */
	char *const environment[] = { NULL };
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t none, all;
	pid_t pid;
	int rc;

	sigemptyset(&none);
	sigfillset(&all);
	if ((rc = posix_spawnattr_init(&attributes))) {
		errno = rc;
		return -1;
	}
	if ((rc = posix_spawn_file_actions_init(&actions))) {
		posix_spawnattr_destroy(&attributes);
		errno = rc;
		return -1;
	}
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setsigdefault(&attributes, &all);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	rc = posix_spawn_file_actions_adddup2(&actions, words, STDERR_FILENO);
	if (!rc)
		rc = posix_spawn(&pid, program, &actions, &attributes, argv, environment);
	posix_spawn_file_actions_destroy(&actions);
	posix_spawnattr_destroy(&attributes);
	if (rc) {
		errno = rc;
		return -1;
	}
	return pid;
}

/* All that the program says, so that it never waits for a reader; what does not fit is lost. */
static size_t listen_to(int fd, char words[WORDS])
{
	char lost[512];
	size_t used = 0;

	for (;;) {
		bool room = used < WORDS;
		ssize_t got = read(fd, room ? words + used : lost, room ? WORDS - used : sizeof(lost));

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return used;
		if (room)
			used += (size_t)got;
	}
}

static void repeat(const char *words, size_t length)
{
	while (length > 0) {
		ssize_t written = write(STDERR_FILENO, words, length);

		if (written < 0 && errno == EINTR)
			continue;
		if (written <= 0)
			return;
		words += written;
		length -= (size_t)written;
	}
}

/* The program's exit status, 128 and the signal that ended it, or -1 with errno where it did not run. */
static int ask(const char *program, char *const argv[], char words[WORDS], size_t *length)
{
	struct sigaction standard = { .sa_handler = SIG_DFL }, before;
	int status = 0, ends[2], error;
	pid_t pid, waited = -1;

	if (pipe2(ends, O_CLOEXEC))
		return -1;
	/* Where SIGCHLD is ignored, as some programs start theirs, nothing is left to wait for. */
	sigaction(SIGCHLD, &standard, &before);
	pid = spawn(program, argv, ends[1]);
	error = errno;
	close(ends[1]);
	if (pid > 0) {
		*length = listen_to(ends[0], words);
		do {
			waited = waitpid(pid, &status, 0);
		} while (waited < 0 && errno == EINTR);
		error = errno;
	}
	close(ends[0]);
	sigaction(SIGCHLD, &before, NULL);
	errno = error;
	if (pid < 0 || waited != pid)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int submit_check(const struct settings *settings, const char *name, const char *value)
{
	/* One argument, so that a value that begins with a dash is no flag of the program's. */
	char argument[GPUTUNE_OPTION + 128], words[WORDS];
	struct text text = text_in(argument, sizeof(argument));
	char *const argv[] = { "gputune", "check", argument, NULL };
	size_t length = 0;
	int status;

	text_add(&text, "--");
	text_add(&text, name);
	text_add(&text, "=");
	text_add(&text, value);
	status = ask(settings->program, argv, words, &length);
	if (status == REFUSED) {
		/* Otherwise what it says, such as the traceback of a program without memory, is not about the value. */
		repeat(words, length);
		return -1;
	}
	if (status < 0)
		slurm_debug("gputune: %s: %s: --%s is checked on the node", settings->program, strerror(errno), name);
	else if (status > 0)
		slurm_debug("gputune: %s: status %d: --%s is checked on the node", settings->program, status, name);
	return 0;
}
