/*
 * Which GPUs may a task open? No environment variable tells where devices are
 * constrained; the device cgroup does. A short-lived child joins the cgroup of
 * each task in turn and asks the kernel, without opening any device.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
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
static int ask(void *argument)
{
	struct gputune_page *page = argument;

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
	return 0;
}

void probe(struct gputune_page *page)
{
	/* A frozen cgroup holds whoever joins it. */
	int deadline = DEADLINE_MS + (int)page->tasks * DEADLINE_MS_PER_TASK;

	for (uint32_t t = 0; t < page->tasks; t++)
		page->task[t].probe_errno = page->task[t].join[0] ? ETIMEDOUT : ENOENT;
	if (child_run(ask, page, deadline) < 0)
		slurm_error("gputune: probe of the device cgroups gave no answer in %d ms: %m", deadline);
}
