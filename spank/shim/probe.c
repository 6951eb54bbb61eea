/*
 * Which GPUs may a task open? No environment variable tells where devices are
 * constrained; the device cgroup does. A short-lived child joins the cgroup of
 * each task in turn and asks the kernel, without opening any device.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shim.h"

#ifndef SYS_faccessat2
#define SYS_faccessat2 439 /* the same on all architectures; Linux 5.8 */
#endif
#ifndef AT_EMPTY_PATH
#define AT_EMPTY_PATH 0x1000
#endif

/* Joining a cgroup can take tens of milliseconds on a large node (an RCU grace
 * period each). */
#define DEADLINE_MS 5000
#define DEADLINE_MS_PER_TASK 100

/* EPERM is the device cgroup's answer. EACCES comes from the file's mode, which
 * is the same for every task and does not tell them apart. */
static bool may_open(const struct gputune_gpu *gpu)
{
	long rc = syscall(SYS_faccessat2, gpu->fd, "", R_OK | W_OK, AT_EMPTY_PATH | AT_EACCESS);

	if (rc < 0 && (errno == ENOSYS || errno == EINVAL)) /* kernel before 5.8: the real user is root as well */
		rc = syscall(SYS_faccessat, AT_FDCWD, gpu->device, R_OK | W_OK);
	return rc == 0 || errno != EPERM;
}

static int join(const char *procs)
{
	int rc = 0;
	int fd = open(procs, O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		return errno;
	if (write(fd, "0", 1) != 1)
		rc = errno;
	close(fd);
	return rc;
}

/* The child: async-signal-safe calls alone. */
static void ask(struct gputune_page *page)
{
	for (uint32_t t = 0; t < page->tasks; t++) {
		struct gputune_task *task = &page->task[t];
		uint64_t access = 0;
		int error;

		if (!task->join[0])
			continue;
		/* on some releases all tasks of a step are in one */
		if (t > 0 && strcmp(task->join, task[-1].join) == 0) {
			task->access = task[-1].access;
			task->probe_errno = task[-1].probe_errno;
			continue;
		}
		error = join(task->join);
		if (error) {
			task->probe_errno = error;
			continue;
		}
		for (uint32_t i = 0; i < page->gpus; i++)
			if (page->gpu[i].fd >= 0 && may_open(&page->gpu[i]))
				access |= 1ULL << i;
		/* Last of all: a child that is ended before has not answered. */
		task->access = access;
		__atomic_store_n(&task->probe_errno, 0, __ATOMIC_RELEASE);
	}
}

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

void probe(struct gputune_page *page)
{
	int ends[2];
	sigset_t all, before;
	pid_t pid;
	int rc, deadline;

	for (uint32_t t = 0; t < page->tasks; t++)
		page->task[t].probe_errno = page->task[t].join[0] ? ETIMEDOUT : ENOENT;
	if (pipe2(ends, O_CLOEXEC)) {
		slurm_error("gputune: pipe: %m");
		return;
	}
	/* Nothing that is sent to the task's cgroup may end in slurmstepd's own
	 * handlers, which the child has until it exits. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	/*
	 * A child without an exit signal: slurmstepd waits for any of its children
	 * and counts SIGCHLD, and must never see this one. All other arguments are
	 * zero, so that their order, which differs by architecture, is irrelevant.
	 */
	pid = (pid_t)syscall(SYS_clone, 0L, 0L, 0L, 0L, 0L);
	if (pid == 0) {
		ask(page);
		_exit(0);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	close(ends[1]);
	if (pid < 0) {
		slurm_error("gputune: clone: %m");
		close(ends[0]);
		return;
	}
	/* A frozen cgroup holds whoever joins it. */
	deadline = DEADLINE_MS + (int)page->tasks * DEADLINE_MS_PER_TASK;
	if (!wait_gone(ends[0], deadline)) {
		slurm_error("gputune: probe of the device cgroups gave no answer in %d ms", deadline);
		kill(pid, SIGKILL);
	}
	close(ends[0]);
	for (int tries = 0; tries < 1000; tries++) {
		struct timespec pause = { .tv_nsec = 1000000 };

		rc = (int)waitpid(pid, NULL, __WALL | WNOHANG);
		if (rc == pid || (rc < 0 && errno != EINTR))
			return;
		nanosleep(&pause, NULL);
	}
}
