/*
 * What the processes of the job's tasks are given. The Prolog left
 * <run>/jobs/<job>.tasks, a word at the beginning of each line:
 *
 *	memlock unlimited|BYTES    how much memory each may lock
 *	thp-disable                no transparent hugepages for them
 *	swap 0                     none of the job's memory is swapped out
 *
 * Swap is a limit of the job's cgroup: the core sets it, see step.c.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>
#include <slurm/slurm.h>

#include "shim.h"

#ifndef PR_SET_THP_DISABLE
#define PR_SET_THP_DISABLE 41 /* Linux 3.15 */
#endif

/* The variable of the step by which Slurm carries the limit from where the job was submitted. */
#define PROPAGATED "SLURM_RLIMIT_MEMLOCK"

static struct {
	bool opened; /* the plugin may be listed twice, and every hook runs twice */
	bool limited;
	rlim_t memlock;
	bool thp_disable, no_swap;
	char start[START_SIZE];
} process;

static bool read_line(char *line)
{
	char *rest = line, *word = strsep(&rest, " "), *end;

	if (strcmp(word, "thp-disable") == 0 && !rest) {
		process.thp_disable = true;
	} else if (!rest) {
		return false;
	} else if (strcmp(word, "swap") == 0 && strcmp(rest, "0") == 0) {
		process.no_swap = true;
	} else if (strcmp(word, "memlock") == 0) {
		process.memlock = RLIM_INFINITY;
		end = "";
		if (strcmp(rest, "unlimited") != 0)
			process.memlock = strtoull(rest, &end, 10);
		process.limited = *rest && !*end;
		return process.limited;
	} else {
		return false;
	}
	return true;
}

void process_open(spank_t sp, const struct settings *settings)
{
	char path[GPUTUNE_PATH];
	uint32_t job, step;
	const char *node = getenv("SLURMD_NODENAME");
	struct text start = text_in(process.start, sizeof(process.start));
	char *text, *rest, *line;

	if (process.opened)
		return;
	process.opened = true;
	if (spank_get_item(sp, S_JOB_STEPID, &step) != ESPANK_SUCCESS || step == SLURM_EXTERN_CONT ||
	    spank_get_item(sp, S_JOB_ID, &job) != ESPANK_SUCCESS)
		return;
	text = job_file_read(job_file(path, settings, job, ".tasks"));
	if (!text)
		return;
	text_add(&start, "gputune: ");
	text_add(&start, node ? node : "this node");
	text_add(&start, ": ");
	rest = text;
	while ((line = strsep(&rest, "\n")))
		if (*line && !read_line(line))
			slurm_error("gputune: %s: \"%s\": not as gputune-prolog of this version writes it", path, line);
	free(text);
}

bool process_no_swap(void)
{
	return process.no_swap;
}

/*
 * Only a process with CAP_SYS_RESOURCE can raise a hard limit, and the task has
 * become the user's. Slurm sets limits once more before exec, to what was
 * propagated: see process_begin.
 */
void process_forked(spank_t sp)
{
	struct rlimit limit;
	pid_t pid;

	if (!process.limited || spank_get_item(sp, S_TASK_PID, &pid) != ESPANK_SUCCESS)
		return;
	/* Not permitted without that capability: the task takes what it can get, and says so. */
	if (prlimit(pid, RLIMIT_MEMLOCK, NULL, &limit)) {
		slurm_debug("gputune: RLIMIT_MEMLOCK of pid %d: %m", (int)pid);
		return;
	}
	if (limit.rlim_max >= process.memlock) /* the task sets its soft limit itself */
		return;
	limit.rlim_cur = limit.rlim_max = process.memlock;
	if (prlimit(pid, RLIMIT_MEMLOCK, &limit, NULL))
		slurm_debug("gputune: RLIMIT_MEMLOCK of pid %d cannot be raised: %m", (int)pid);
}

static void warn_memlock(rlim_t got)
{
	char line[GPUTUNE_TEXT];
	struct text text = text_in(line, sizeof(line));

	text_add(&text, "--gpu-memlock: tasks may lock no more than ");
	text_add_number(&text, got >> 10);
	text_add(&text, " KiB: slurmd may not raise limits (CAP_SYS_RESOURCE)");
	say_lines(process.start, "warning: ", line);
}

/* Returns false where the task may lock less than was asked for. */
static bool set_memlock(spank_t sp, struct rlimit *limit)
{
	if (getrlimit(RLIMIT_MEMLOCK, limit))
		return true;
	limit->rlim_cur = limit->rlim_max < process.memlock ? limit->rlim_max : process.memlock;
	setrlimit(RLIMIT_MEMLOCK, limit);
	/* Where it is not set, Slurm leaves the limit as it is; --propagate=NONE does the same. */
	spank_unsetenv(sp, PROPAGATED);
	return limit->rlim_cur == process.memlock;
}

void process_begin(spank_t sp)
{
	static bool done; /* the plugin may be listed twice */
	struct rlimit limit;
	int local = -1;

	if (done)
		return;
	done = true;
	/* What is the same for all tasks one says. */
	spank_get_item(sp, S_TASK_ID, &local);
	if (process.limited && !set_memlock(sp, &limit) && local == 0)
		warn_memlock(limit.rlim_cur);
	/* Kept over fork and exec: prctl(2). */
	if (process.thp_disable && prctl(PR_SET_THP_DISABLE, 1L, 0L, 0L, 0L) && local == 0)
		say_lines(process.start, "warning: ", "--thp=never: this kernel cannot do it for a job alone");
}
