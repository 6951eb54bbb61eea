/*
 * What the Prolog has to tell the job's user. slurmstepd reads it as root, the
 * tasks say it, and end where the Prolog refused what the job asked for.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <slurm/slurm.h>

#include "shim.h"

static struct {
	bool opened; /* the plugin may be listed twice, and every hook runs twice */
	bool fail;
	char *text; /* as it was read */
	const char *lines; /* in text; NULL: nothing to say */
	char start[START_SIZE];
} notice;

/* Leaves the text in notice, with what its first line says. */
static bool understand(char *text, const char *path)
{
	size_t first = strcspn(text, "\n");

	if (first == 4 && strncmp(text, "fail", first) == 0) {
		notice.fail = true;
	} else if (first != 4 || strncmp(text, "warn", first) != 0) {
		slurm_error("gputune: %s: first line \"%.*s\": want fail or warn", path, (int)(first < 64 ? first : 64), text);
		free(text);
		return false;
	}
	notice.text = text;
	notice.lines = text + first + strspn(text + first, "\n");
	if (notice.fail && !*notice.lines)
		notice.lines = "the Prolog refused this job's options and left no reason";
	return true;
}

/* Every step of the job is told of a failure, the first on each node alone of a warning. */
static void show_once(const char *path, const char *shown)
{
	if (rename(path, shown) == 0)
		return;
	if (errno == ENOENT) /* another step was faster */
		notice.lines = NULL;
	else
		slurm_error("gputune: %s: %m: it will be shown again", path);
}

static bool exists(const char *path)
{
	struct stat status;

	return lstat(path, &status) == 0;
}

/* Here the reason cannot be seen: the Prolog is not gputune's, or writes elsewhere. */
static char *no_report(const char *run)
{
	char why[GPUTUNE_PATH + 200];
	struct text text = text_in(why, sizeof(why));

	text_add(&text, ": not applied: gputune-prolog has left no report in ");
	text_add(&text, run);
	text_add(&text, "/jobs: is it the Prolog of slurm.conf, and run= of plugstack.conf its paths.run?");
	return job_options_lines(why);
}

void notice_open(spank_t sp, const struct settings *settings)
{
	char path[GPUTUNE_PATH], other[GPUTUNE_PATH];
	uint32_t job, step;
	const char *node = getenv("SLURMD_NODENAME");
	struct text start = text_in(notice.start, sizeof(notice.start));
	bool heard;
	char *text;

	if (notice.opened)
		return;
	notice.opened = true;
	heard = job_options_heard(sp);
	if (spank_get_item(sp, S_JOB_STEPID, &step) != ESPANK_SUCCESS || step == SLURM_EXTERN_CONT ||
	    spank_get_item(sp, S_JOB_ID, &job) != ESPANK_SUCCESS)
		return;
	job_options_of(sp, job);
	text_add(&start, "gputune: ");
	text_add(&start, node ? node : "this node");
	text_add(&start, ": ");

	text = job_file_read(job_file(path, settings, job, ".notice"));
	job_file(other, settings, job, ".notice.shown");
	if (text) {
		if (understand(text, path) && !notice.fail)
			show_once(path, other);
		return;
	}
	/* An inner srun of a batch or interactive step leaves it to that. */
	if (!job_options_given() || (heard && step <= SLURM_MAX_NORMAL_STEP_ID))
		return;
	if (exists(job_file(path, settings, job, ".json")) || exists(other))
		return;
	notice.text = no_report(settings->run);
	notice.lines = notice.text;
}

bool notice_fails(void)
{
	return notice.fail;
}

void notice_tell(spank_t sp)
{
	static bool done; /* the plugin may be listed twice */
	int local = -1;

	if (done || !notice.lines)
		return;
	done = true;
	/* The same for all tasks: one says it. */
	if (spank_get_item(sp, S_TASK_ID, &local) == ESPANK_SUCCESS && local == 0)
		say_lines(notice.start, notice.fail ? "error: " : "warning: ", notice.lines);
	if (notice.fail)
		_exit(1); /* the one way to end a task that drains no node; see give_up in task.c */
}

void notice_close(void)
{
	notice.lines = NULL;
	free(notice.text);
	notice.text = NULL;
}
