/* A short-lived child of slurmstepd that does what slurmstepd itself must not. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shim.h"

static int left_ms(const struct timespec *start, int deadline)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return deadline - (int)((now.tv_sec - start->tv_sec) * 1000 + (now.tv_nsec - start->tv_nsec) / 1000000);
}

/* Until the child has gone, which closes its end of the pipe. */
static bool wait_gone(int fd, int deadline)
{
	struct pollfd gone = { .fd = fd, .events = POLLIN };
	struct timespec start;
	int left;

	clock_gettime(CLOCK_MONOTONIC, &start);
	while ((left = left_ms(&start, deadline)) > 0) {
		int rc = poll(&gone, 1, left);

		if (rc > 0)
			return true;
		if (rc < 0 && errno != EINTR)
			return false;
	}
	return false;
}

static int wait_status(pid_t pid)
{
	for (int tries = 0; tries < 1000; tries++) {
		struct timespec pause = { .tv_nsec = 1000000 };
		int status, rc = (int)waitpid(pid, &status, __WALL | WNOHANG);

		if (rc == pid) {
			errno = ECHILD;
			return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
		}
		if (rc < 0 && errno != EINTR)
			return -1;
		nanosleep(&pause, NULL);
	}
	errno = ETIMEDOUT;
	return -1;
}

int child_run(int (*work)(void *), void *argument, int deadline_ms)
{
	int ends[2], status;
	sigset_t all, before;
	bool gone;
	pid_t pid;

	if (pipe2(ends, O_CLOEXEC))
		return -1;
	/* Nothing that is sent to it, or to a cgroup that it joins, may end in
	 * slurmstepd's own handlers, which the child has until it exits. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	/*
	 * A child without an exit signal: slurmstepd waits for any of its children
	 * and counts SIGCHLD, and must never see this one. All other arguments are
	 * zero, so that their order, which differs by architecture, is irrelevant.
	 */
	pid = (pid_t)syscall(SYS_clone, 0L, 0L, 0L, 0L, 0L);
	if (pid == 0)
		_exit(work(argument));
	status = errno;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	close(ends[1]);
	if (pid < 0) {
		close(ends[0]);
		errno = status;
		return -1;
	}
	gone = wait_gone(ends[0], deadline_ms);
	if (!gone)
		kill(pid, SIGKILL);
	close(ends[0]);
	status = wait_status(pid);
	if (gone)
		return status;
	errno = ETIMEDOUT;
	return -1;
}
