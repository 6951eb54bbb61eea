/*
 * The C half of the plugin. Every Slurm program loads it; it registers the
 * options, has them checked where they are typed, and in slurmstepd loads the
 * Go core when a step asked for something.
 *
 * plugin.c      the symbols that Slurm looks up
 * joboptions.c  options of the job, which the Prolog carries out
 * submit.c      srun, sbatch, salloc: an option is checked by the gputune program
 * step.c        slurmstepd itself: loads the core, collects the tasks
 * jobfile.c     the files that the Prolog leaves for the job's steps
 * notice.c      what the Prolog has to tell the user
 * mps.c         what a step needs to reach the job's MPS daemon
 * process.c     limits and flags of the processes of the job's tasks
 * child.c       a short-lived child of slurmstepd
 * probe.c       which GPUs a task's cgroup lets it open
 * task.c        the forked task, before it becomes the user's program
 * say.c         what a task tells its user
 * text.c        masks and lists as text
 */
#ifndef GPUTUNE_SHIM_H
#define GPUTUNE_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <slurm/spank.h>

#include "../abi/gputune_core.h"

#define OPTION_NAME "gpu-numa-bind"
#define VARIABLES_NAME "GPUTUNE_ENVIRONMENT" /* says which of a task's variables are the site's: NAME:HASH,... */
#define START_SIZE 300 /* "gputune: NODE task N: ", with a node's name of 255 bytes */

/* What plugstack.conf and the user said, kept for the life of the process. */
struct settings {
	const char *core;    /* core=PATH of libgputune.so */
	const char *program; /* program=PATH of gputune */
	const char *config;  /* config=PATH of gputune.toml */
	const char *run;     /* run=PATH of the folder that the Prolog writes to */
	const char *site;    /* default=VALUE for steps that do not give the option */
	bool given;          /* the option was given */
	char value[GPUTUNE_OPTION];
};

/* plugin.c: an option's argument as Slurm gives it, "" for none. */
const char *option_value(const char *argument);
void option_register(spank_t sp, struct spank_option *option);

/* submit.c: 0, or -1 when the value is refused, which the user was told. */
int submit_check(const struct settings *settings, const char *name, const char *value);

/* joboptions.c */
void job_options_register(spank_t sp, const struct settings *settings);
/* srun, sbatch, salloc, when all options of the job or of one of its components are known. */
void job_options_pass(spank_t sp);
/* slurmstepd: whether srun says that this step need not tell what became of
 * the options. What says so is taken out of the step's environment. */
bool job_options_heard(spank_t sp);
/* slurmstepd: in a heterogeneous job, leaves of the options those of the component that is this job.
 * What tells them is taken out of the step's environment. */
void job_options_of(spank_t sp, uint32_t job);
bool job_options_given(void);
/* slurmstepd: whether srun was given --gpu-mps=off for this step. Taken out of its environment. */
bool job_options_without_mps(spank_t sp);
/* A line for each option that was given, why at its end. To be freed. */
char *job_options_lines(const char *why);

/* notice.c */
void notice_open(spank_t sp, const struct settings *settings);
bool notice_fails(void);  /* no task of the step may run */
void notice_tell(spank_t sp); /* in the task, which it ends on failure */
void notice_close(void);

/* jobfile.c */
/* The path of one of the job's files in run; path has GPUTUNE_PATH bytes and is returned. */
const char *job_file(char *path, const struct settings *settings, uint32_t job, const char *suffix);
/* The file's whole text, to be freed, in which only newlines are left of control characters; NULL for none. */
char *job_file_read(const char *path);

/* mps.c */
void mps_open(spank_t sp, const struct settings *settings);
bool mps_fails(void);      /* no task of the step may run */
void mps_tell(spank_t sp); /* in the task, which it ends on failure */
void mps_devices(spank_t sp); /* in the task: CUDA_VISIBLE_DEVICES as the daemon takes it */
void mps_close(void);

/* process.c */
void process_open(spank_t sp, const struct settings *settings);
bool process_no_swap(void);        /* none of the job's memory is to be swapped out */
void process_forked(spank_t sp);   /* slurmstepd, for each task */
void process_begin(spank_t sp);    /* in the task */

/* child.c: runs async-signal-safe work in a child of slurmstepd's own, with all signals blocked, and returns its
 * result, 0 to 255; -1 with errno where it has none or was not done in time. */
int child_run(int (*work)(void *), void *argument, int deadline_ms);

/* step.c */
void step_open(spank_t sp, const struct settings *settings);
void step_forked(spank_t sp);
void step_close(void);
/* The page, or NULL where nothing was asked for. *lost is set where something
 * was, strictly, and there is no page to say so. */
struct gputune_page *step_page(bool *lost);

/* probe.c */
void probe(struct gputune_page *page);

/* task.c */
void task_bind(spank_t sp, struct gputune_page *page);

/* say.c: async-signal-safe, and never longer than a second in all */
void say(const char *text);
/* One line of its own for each line of lines that is not empty, start and kind before it. */
void say_lines(const char *start, const char *kind, const char *lines);

/* text.c: async-signal-safe, for code that runs between fork and exec */
struct text {
	char *start;
	size_t size; /* bytes at start, the last one is kept for the NUL */
	size_t used;
	bool cut; /* something did not fit */
};
struct text text_in(char *buffer, size_t size);
void text_add(struct text *text, const char *string);
void text_add_number(struct text *text, uint64_t number);
void text_add_list(struct text *text, const uint64_t *words, size_t count);
uint64_t text_hash(const char *string);
bool items_have(const char *items, const char *item);
struct devices { /* GPUs as a CUDA program counts them */
	uint64_t gpus;
	uint32_t count;
	uint8_t at[GPUTUNE_MAX_GPUS]; /* in order */
	bool numbers;                 /* they are counted, not named */
	const char *why;              /* CUDA does not take the list as it is, NULL: it does */
};
struct devices devices_all(uint64_t set);
struct devices devices_listed(const struct gputune_page *page, uint64_t sees, bool absolute, const char *list);
bool devices_in_order(const struct devices *devices);
uint32_t list_length(const char *list);
uint32_t even_share(uint32_t tasks, uint32_t gpus);
uint64_t gpus_paired(const struct devices *sees, bool common, uint64_t step, uint32_t tasks, uint32_t rank);

#endif
