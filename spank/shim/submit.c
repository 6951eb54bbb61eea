/*
 * At submission the value is checked by the gputune program, so that the
 * grammar is written once and no Go runtime comes into srun, sbatch or salloc.
 */
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim.h"

/* Exit status of "gputune check" for a value that it refuses. Any other status
 * is the program's own trouble, such as too little memory for it, and no reason
 * to refuse a job. */
#define REFUSED 3

static pid_t spawn(const char *program, char *const argv[])
{
	/* Nothing of the user's environment reaches the program, so that nothing
	 * there changes what it says; and it gets the signal mask of a new program,
	 * not srun's, in which most are blocked. */
	char *const environment[] = { NULL };
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
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setsigdefault(&attributes, &all);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	rc = posix_spawn(&pid, program, NULL, &attributes, argv, environment);
	posix_spawnattr_destroy(&attributes);
	if (rc) {
		errno = rc;
		return -1;
	}
	return pid;
}

int submit_check(const struct settings *settings, const char *value)
{
	char *const argv[] = { "gputune", "check", "--" OPTION_NAME, (char *)value, NULL };
	struct sigaction standard = { .sa_handler = SIG_DFL }, before;
	int status = 0;
	pid_t pid, waited = -1;

	/* Where SIGCHLD is ignored, as some programs start theirs, nothing is left to wait for. */
	sigaction(SIGCHLD, &standard, &before);
	pid = spawn(settings->program, argv);
	if (pid < 0) {
		slurm_debug("gputune: %s: %s: --%s is checked on the node", settings->program, strerror(errno),
			    OPTION_NAME);
	} else {
		do {
			waited = waitpid(pid, &status, 0);
		} while (waited < 0 && errno == EINTR);
	}
	sigaction(SIGCHLD, &before, NULL);
	if (pid > 0 && waited == pid && WIFEXITED(status) && WEXITSTATUS(status) == REFUSED)
		return -1;
	return 0;
}
