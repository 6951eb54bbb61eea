/*
 * What a step needs to reach the job's MPS daemon. The Prolog started that and
 * left <run>/jobs/<job>.mps, a word at the beginning of each line:
 *
 *	refusal fail|warn                   what becomes of a step that does not reach the daemon
 *	socket PATH                         where it listens
 *	set NAME=VALUE                      a variable of the tasks
 *	percentage PERCENT|auto             of a GPU's SMs for each task
 *	devices constrained|open            whether Slurm keeps tasks to their GPUs
 *	gpu INDEX NUMBER UUID DEVICE        Slurm's number and that of the daemon's programs, -1 not known; in Slurm's order
 *
 * A program that finds no daemon runs without one and says nothing, so the step
 * looks whether there is one, before its tasks are forked.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>
#include <slurm/slurm.h>

#include "shim.h"

#define PIPES "CUDA_MPS_PIPE_DIRECTORY"
#define PERCENTAGE "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
#define DEVICES "CUDA_VISIBLE_DEVICES"

#define CONNECT_SECONDS 2 /* where as many wait as the daemon lets wait */

static struct {
	bool opened; /* the plugin may be listed twice, and every hook runs twice */
	bool on;
	bool fail; /* as the file says; then whether the step fails */
	bool constrained;
	char *text; /* as it was read */
	const char *socket, *percentage;
	struct {
		unsigned long index, number;
		const char *uuid, *device;
	} gpu[GPUTUNE_MAX_GPUS];
	uint32_t gpus;
	char start[START_SIZE];
	char line[GPUTUNE_TEXT]; /* to be said, "" for nothing */
} mps;

static bool is_set(spank_t sp, const char *name, char *value, size_t size)
{
	spank_err_t rc = spank_getenv(sp, name, value, size);

	return rc == ESPANK_SUCCESS || rc == ESPANK_NOSPACE;
}

/* All that the plugin sets in a step with a daemon. */
static void forget(spank_t sp)
{
	static const char *const names[] = { PIPES, "CUDA_MPS_LOG_DIRECTORY", PERCENTAGE, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		spank_unsetenv(sp, names[i]);
}

/* What sbatch exported from a step of another job: that one's daemon serves none of this job's GPUs. */
static void forget_other(spank_t sp, const struct settings *settings)
{
	char pipes[GPUTUNE_PATH], ours[GPUTUNE_PATH];
	struct text text = text_in(ours, sizeof(ours));

	text_add(&text, settings->run);
	text_add(&text, "/mps/");
	if (is_set(sp, PIPES, pipes, sizeof(pipes)) && strncmp(pipes, ours, text.used) == 0)
		forget(sp);
}

/* "INDEX NUMBER UUID DEVICE" */
static bool read_gpu(char *rest)
{
	char *index = strsep(&rest, " "), *number = strsep(&rest, " "), *uuid = strsep(&rest, " "), *end, *end_of_number;

	if (!uuid || !rest || mps.gpus == GPUTUNE_MAX_GPUS)
		return false;
	/* -1, not known, is a number that no list has */
	mps.gpu[mps.gpus].index = strtoul(index, &end, 10);
	mps.gpu[mps.gpus].number = strtoul(number, &end_of_number, 10);
	mps.gpu[mps.gpus].uuid = uuid;
	mps.gpu[mps.gpus].device = rest;
	mps.gpus++;
	return *end == '\0' && *end_of_number == '\0';
}

static bool read_line(spank_t sp, char *line)
{
	char *rest = line, *word = strsep(&rest, " ");

	if (!rest)
		return false;
	if (strcmp(word, "refusal") == 0) {
		mps.fail = strcmp(rest, "fail") == 0;
	} else if (strcmp(word, "socket") == 0) {
		mps.socket = rest;
	} else if (strcmp(word, "percentage") == 0) {
		mps.percentage = rest;
	} else if (strcmp(word, "devices") == 0) {
		mps.constrained = strcmp(rest, "constrained") == 0;
	} else if (strcmp(word, "gpu") == 0) {
		return read_gpu(rest);
	} else if (strcmp(word, "set") == 0) {
		char *name = strsep(&rest, "=");

		return rest && spank_setenv(sp, name, rest, 1) == ESPANK_SUCCESS;
	} else {
		return false;
	}
	return true;
}

/*
 * How many tasks share the step's GPUs on this node. A batch or interactive step
 * is one task, but what it starts without srun, such as with mpirun, are the
 * job's: Slurm has put their number on this node, its first, into its environment.
 */
static uint32_t count_tasks(spank_t sp, uint32_t step)
{
	char list[64];
	uint32_t tasks = 1;

	if (step <= SLURM_MAX_NORMAL_STEP_ID)
		return spank_get_item(sp, S_JOB_LOCAL_TASK_COUNT, &tasks) == ESPANK_SUCCESS ? tasks : 1;
	if (is_set(sp, "SLURM_TASKS_PER_NODE", list, sizeof(list)))
		tasks = (uint32_t)strtoul(list, NULL, 10); /* "2(x3),1" */
	return tasks;
}

static uint32_t count_gpus(spank_t sp)
{
	char list[GPUTUNE_TEXT];

	if (is_set(sp, "SLURM_STEP_GPUS", list, sizeof(list)) || is_set(sp, "SLURM_JOB_GPUS", list, sizeof(list)))
		return list_length(list);
	return mps.gpus;
}

/* The user's own value stays where the job was not given one. */
static void set_percentage(spank_t sp, uint32_t step)
{
	char share[24];
	struct text text = text_in(share, sizeof(share));

	if (!mps.percentage)
		return;
	if (strcmp(mps.percentage, "auto") == 0)
		text_add_number(&text, even_share(count_tasks(sp, step), count_gpus(sp)));
	else
		text_add(&text, mps.percentage);
	spank_setenv(sp, PERCENTAGE, share, 1);
}

struct visitor {
	uid_t uid;
	gid_t gid;
	const char *socket;
};

/*
 * The child: becomes the job's user, since everything at the path can be the
 * user's, and connects as a CUDA program would. Returns 0 or the errno. Made of
 * system calls: the C library's functions would tell threads that a child has not.
 */
static int visit(void *argument)
{
	const struct visitor *v = argument;
	static const int types[] = { SOCK_STREAM, SOCK_SEQPACKET };
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct timeval limit = { .tv_sec = CONNECT_SECONDS };
	struct text text = text_in(address.sun_path, sizeof(address.sun_path));

	text_add(&text, v->socket);
	if (text.cut)
		return ENAMETOOLONG;
	if (syscall(SYS_setgroups, 0L, NULL) || syscall(SYS_setresgid, v->gid, v->gid, v->gid) ||
	    syscall(SYS_setresuid, v->uid, v->uid, v->uid))
		return errno;
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		int fd = socket(AF_UNIX, types[i] | SOCK_CLOEXEC, 0);

		if (fd < 0)
			return errno;
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
		if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
			return 0;
		if (errno != EPROTOTYPE) /* somebody listens, to the other type */
			return errno;
	}
	return EPROTOTYPE;
}

static void look(spank_t sp)
{
	struct visitor visitor = { .socket = mps.socket };
	struct text line = text_in(mps.line, sizeof(mps.line));
	int error;

	if (spank_get_item(sp, S_JOB_UID, &visitor.uid) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_GID, &visitor.gid) != ESPANK_SUCCESS) {
		error = EINVAL;
	} else {
		error = child_run(visit, &visitor, (CONNECT_SECONDS + 1) * 1000);
		if (error < 0)
			error = errno;
	}
	if (!error) {
		mps.fail = false;
		return;
	}
	text_add(&line, "--gpu-mps: the job's MPS daemon does not answer (");
	text_add(&line, mps.socket);
	text_add(&line, ": ");
	text_add(&line, error == EAGAIN ? strerror(ETIMEDOUT) : strerror(error));
	text_add(&line, mps.fail ? "): programs would run without it" : "): programs run without it");
	forget(sp); /* one that hangs would keep them waiting */
	mps.on = false;
	slurm_error("gputune: %s", mps.line);
}

void mps_open(spank_t sp, const struct settings *settings)
{
	char path[GPUTUNE_PATH];
	uint32_t job, step;
	const char *node = getenv("SLURMD_NODENAME");
	struct text start = text_in(mps.start, sizeof(mps.start));
	bool without, whole = true;
	char *rest, *line;

	if (mps.opened)
		return;
	mps.opened = true;
	without = job_options_without_mps(sp);
	if (spank_get_item(sp, S_JOB_STEPID, &step) != ESPANK_SUCCESS || step == SLURM_EXTERN_CONT ||
	    spank_get_item(sp, S_JOB_ID, &job) != ESPANK_SUCCESS)
		return;
	forget_other(sp, settings);
	if (without) {
		forget(sp);
		return;
	}
	mps.text = job_file_read(job_file(path, settings, job, ".mps"));
	if (!mps.text)
		return;
	text_add(&start, "gputune: ");
	text_add(&start, node ? node : "this node");
	text_add(&start, ": ");
	mps.on = true;
	rest = mps.text;
	while ((line = strsep(&rest, "\n")))
		whole = whole && (!*line || read_line(sp, line));
	if (!whole || !mps.socket) {
		slurm_error("gputune: %s: not as gputune-prolog of this version writes it", path);
		mps.socket = path; /* nobody listens there */
	}
	set_percentage(sp, step);
	look(sp);
}

bool mps_fails(void)
{
	return mps.fail;
}

void mps_tell(spank_t sp)
{
	static bool done; /* the plugin may be listed twice */
	int local = -1;

	if (done || !mps.line[0])
		return;
	done = true;
	/* The same for all tasks: one says it. */
	if (spank_get_item(sp, S_TASK_ID, &local) == ESPANK_SUCCESS && local == 0)
		say_lines(mps.start, mps.fail ? "error: " : "warning: ", mps.line);
	if (mps.fail)
		_exit(1); /* the one way to end a task that drains no node; see give_up in task.c */
}

/* Whether this task may open the GPU: EPERM is the device cgroup's answer, see probe.c. */
static bool may_open(uint32_t i)
{
	return !mps.constrained || syscall(SYS_faccessat, AT_FDCWD, mps.gpu[i].device, R_OK | W_OK) == 0 || errno != EPERM;
}

/*
 * The position of the GPU that Slurm's number stands for in this task, -1 for
 * none. Where devices are constrained, Slurm counts those that the task may open;
 * else its own, of the whole node.
 */
static int position(unsigned long number)
{
	unsigned long seen = 0;

	for (uint32_t i = 0; i < mps.gpus; i++) {
		if (!may_open(i))
			continue;
		if (mps.constrained ? seen++ == number : mps.gpu[i].index == number)
			return (int)i;
	}
	return -1;
}

/*
 * A CUDA program counts the devices of CUDA_VISIBLE_DEVICES among those that the
 * daemon was started with, the job's GPUs; without a daemon, in what it can open.
 * Slurm's numbers are neither: of the whole node where devices are not
 * constrained, and where they are, of what the task may open, so that each of two
 * tasks with a GPU of its own has the number 0. UUIDs name the same GPU to
 * everybody. Numbers stay where they do so as well, because there are programs
 * that read nothing else.
 */
void mps_devices(spank_t sp)
{
	static char list[GPUTUNE_TEXT], uuids[GPUTUNE_TEXT];
	static bool done; /* the plugin may be listed twice */
	struct text text = text_in(uuids, sizeof(uuids));
	bool same = true;
	char *rest = list, *item;

	if (done || !mps.on)
		return;
	done = true;
	/* Not set, as after --gpu-bind=none: the program sees what the daemon does. */
	if (spank_getenv(sp, DEVICES, list, sizeof(list)) != ESPANK_SUCCESS)
		return;
	for (uint32_t place = 0; (item = strsep(&rest, ",")); place++) {
		char *end;
		unsigned long number = strtoul(item, &end, 10);
		int at = *item >= '0' && *item <= '9' && !*end ? position(number) : -1;

		if (at < 0) /* a UUID, or nothing that Slurm has written: it is for CUDA to judge */
			return;
		same = same && mps.gpu[at].number == number;
		if (place)
			text_add(&text, ",");
		text_add(&text, mps.gpu[at].uuid);
	}
	if (!same && !text.cut)
		spank_setenv(sp, DEVICES, uuids, 1);
}

void mps_close(void)
{
	free(mps.text);
	mps.text = NULL;
	mps.on = false;
}
