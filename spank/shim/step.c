/* slurmstepd itself, as root, before and while the tasks are forked. */
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <slurm/slurm.h>

#include "shim.h"


/* What a Go runtime takes: measured at 9 threads and 1.6 GiB of addresses. */
#define RUNTIME_THREADS 10
#define RUNTIME_SPACE (2UL << 30)

#define TRIAL_SPACE (64UL << 10)

static struct gputune_page *page;
static size_t page_size;
static pid_t stepd;
static uint32_t forked;
static const char *core_path;
static gputune_call *core_limit, *core_open, *core_locate, *core_bind;
static struct rlimit files; /* RLIMIT_NOFILE before the core was loaded */
static bool files_known;

static bool lost_strictly; /* a strict step for which there is no page */

struct gputune_page *step_page(bool *lost)
{
	*lost = lost_strictly;
	return page;
}

static void copy(char *target, size_t size, const char *source)
{
	struct text text = text_in(target, size);

	if (source)
		text_add(&text, source);
}

static void log_swap(void)
{
	if (page->swap[0])
		slurm_info("gputune: the job's swap is not limited: %s", page->swap);
}

/* What the core was needed for is not done. */
static void fail(const char *what, const char *why)
{
	struct text error = text_in(page->error, sizeof(page->error));

	if (page->no_swap) {
		copy(page->swap, sizeof(page->swap), why);
		log_swap();
	}
	page->no_swap = 0;
	if (page->state != GPUTUNE_UNBOUND)
		return;
	page->state = GPUTUNE_FAILED;
	text_add(&error, what);
	text_add(&error, why);
}

static void log_lines(void)
{
	char *rest = page->log, *line;

	while ((line = strsep(&rest, "\n")))
		if (*line)
			slurm_info("gputune: %s", line);
	page->log[0] = '\0';
}

/* Of a long list of masks its beginning says what kind of binding it is. */
#define ENVIRONMENT_VALUE 1024

/*
 * The variables of the step that the core reads. The bindings are srun's: batch and interactive steps are
 * not bound by Slurm, and have those of the shell that they were submitted from.
 */
static void copy_environment(spank_t sp, uint32_t step)
{
	static const char *const names[] = {
		"SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES", /* of every step */
		"SLURM_CPU_BIND", "SLURM_CPU_BIND_TYPE", "SLURM_CPU_BIND_LIST",
		"SLURM_MEM_BIND", "SLURM_MEM_BIND_TYPE", "SLURM_MEM_BIND_LIST", "SLURM_MEM_BIND_PREFER",
		"SLURM_HINT", "SLURM_THREADS_PER_CORE", "SLURM_NTASKS_PER_CORE",
	};
	size_t count = step > SLURM_MAX_NORMAL_STEP_ID ? 3 : sizeof(names) / sizeof(names[0]);
	size_t used = 0;

	_Static_assert(sizeof(names) / sizeof(names[0]) * (ENVIRONMENT_VALUE + 32) <= sizeof(page->environment),
		       "the page holds all variables");
	for (size_t i = 0; i < count; i++) {
		size_t length = strlen(names[i]);
		char *at = page->environment + used;
		spank_err_t found = spank_getenv(sp, names[i], at + length + 1, ENVIRONMENT_VALUE);

		/* Of a list of devices the beginning would name others. */
		if (found != ESPANK_SUCCESS && (found != ESPANK_NOSPACE || strcmp(names[i], "CUDA_VISIBLE_DEVICES") == 0)) {
			*at = '\0';
			continue;
		}
		memcpy(at, names[i], length);
		at[length] = '=';
		used += strlen(at) + 1;
	}
	page->environment_size = (uint32_t)used;
}

static bool has_gpu(spank_t sp)
{
	static const char *const names[] = { "SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE", "CUDA_VISIBLE_DEVICES" };
	char value[2];

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		spank_err_t found = spank_getenv(sp, names[i], value, sizeof(value));

		if (found == ESPANK_SUCCESS || found == ESPANK_NOSPACE)
			return true;
	}
	return false;
}

/* Of "NAME:HASH,…", as a task exports it: those variables that still have the value that the outer step's task
 * was given, and not one of the user's. */
static void forget_environment(spank_t sp)
{
	static char list[GPUTUNE_VARIABLES], value[GPUTUNE_VARIABLES];
	char *rest = list, *name;

	if (spank_getenv(sp, VARIABLES_NAME, list, sizeof(list)) == ESPANK_ENV_NOEXIST)
		return;
	while ((name = strsep(&rest, ","))) {
		char *hash = strchr(name, ':');

		if (!hash)
			continue;
		*hash++ = '\0';
		if (spank_getenv(sp, name, value, sizeof(value)) == ESPANK_SUCCESS && strtoull(hash, NULL, 10) == text_hash(value))
			spank_unsetenv(sp, name);
	}
	spank_unsetenv(sp, VARIABLES_NAME);
}

/* What an outer step exported says nothing about this one. */
static void forget_outer(spank_t sp)
{
	static const char *const names[] = { "GPUTUNE_GPUS", "GPUTUNE_CPUS", "GPUTUNE_MEMS", "GPUTUNE_MEM_POLICY",
					     "GPUTUNE_LOCALITY" };

	forget_environment(sp);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		spank_unsetenv(sp, names[i]);
}

/* The MIG devices of the job's GPUs, NULL where they are not split. To be freed. */
static char *mig_devices(spank_t sp, const struct settings *settings)
{
	char path[GPUTUNE_PATH];
	uint32_t job;

	if (spank_get_item(sp, S_JOB_ID, &job) != ESPANK_SUCCESS)
		return NULL;
	return job_file_read(job_file(path, settings, job, ".mig"));
}

static bool map_page(spank_t sp)
{
	uint32_t tasks = 0;

	if (spank_get_item(sp, S_JOB_LOCAL_TASK_COUNT, &tasks) != ESPANK_SUCCESS || tasks == 0) {
		slurm_error("gputune: Slurm does not tell how many tasks the step has on this node");
		return false;
	}
	page_size = sizeof(struct gputune_page) + tasks * sizeof(struct gputune_task);
	page = mmap(NULL, page_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED) {
		slurm_error("gputune: mmap of %zu bytes: %m", page_size);
		page = NULL;
		return false;
	}
	page->abi = GPUTUNE_ABI;
	page->tasks = tasks;
	return true;
}

static void *wait_for_all(void *mutex)
{
	pthread_mutex_lock(mutex);
	pthread_mutex_unlock(mutex);
	return NULL;
}

/*
 * Whether a Go runtime can start here. One that cannot get its threads or its
 * address space ends the process, and slurmstepd with it; so they are asked for
 * first. Returns what is lacking, NULL for nothing.
 */
static const char *runtime_lacks(void)
{
	pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
	pthread_t thread[RUNTIME_THREADS];
	int started = 0;
	void *space = mmap(NULL, RUNTIME_SPACE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (space == MAP_FAILED)
		return "address space (RLIMIT_AS of slurmd)";
	munmap(space, RUNTIME_SPACE);
	pthread_mutex_lock(&gate);
	while (started < RUNTIME_THREADS && pthread_create(&thread[started], NULL, wait_for_all, &gate) == 0)
		started++;
	pthread_mutex_unlock(&gate);
	for (int i = 0; i < started; i++)
		pthread_join(thread[i], NULL);
	return started < RUNTIME_THREADS ? "threads (pids.max or RLIMIT_NPROC of slurmd)" : NULL;
}

/* Locked memory of this process in KiB, 0 where that cannot be read. */
static unsigned long locked_memory(void)
{
	static const char key[] = "\nVmLck:";
	char status[4096];
	const char *line;
	ssize_t got;
	int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return 0;
	got = read(fd, status, sizeof(status) - 1);
	close(fd);
	if (got <= 0)
		return 0;
	status[got] = '\0';
	line = strstr(status, key);
	return line ? strtoul(line + sizeof(key) - 1, NULL, 10) : 0;
}

/* Whether memory that is mapped from now on is locked, as under LaunchParameters=slurmstepd_memlock_all. */
static bool locks_all(void)
{
	unsigned long before = locked_memory();
	void *trial;
	bool locks;

	if (!before)
		return false;
	trial = mmap(NULL, TRIAL_SPACE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (trial == MAP_FAILED)
		return false;
	locks = locked_memory() > before;
	munmap(trial, TRIAL_SPACE);
	return locks;
}

/*
 * A Go runtime maps far more than it uses. Where all memory is locked, each page
 * is from now on when it is first used, and not when it is mapped: measured,
 * 15 MB in place of 98 MB in every step.
 */
static void lock_on_use(void)
{
	if (locks_all() && mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT)) /* a kernel before 4.4 */
		slurm_info("gputune: all of the core's memory will be locked: mlockall: %m");
}

/* A file that was cut short passes dlopen and ends the process when it is used. */
static bool whole_library(const char *path)
{
	ElfW(Ehdr) header;
	struct stat status;
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	bool whole = fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
		     read(fd, &header, sizeof(header)) == (ssize_t)sizeof(header) &&
		     memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
		     header.e_shoff + (uint64_t)header.e_shnum * header.e_shentsize <= (uint64_t)status.st_size;

	if (fd >= 0)
		close(fd);
	return whole;
}

/* A Go runtime raises the soft limit of open files when it starts. */
static void keep_files(void)
{
	if (files_known)
		setrlimit(RLIMIT_NOFILE, &files);
}

/*
 * The core is loaded when the tasks have been forked: no task is forked from a
 * process with a Go runtime in it. It is never unloaded: a Go runtime cannot be, and
 * slurmstepd ends soon. The runtime starts in threads of its own, while Slurm
 * sets up the other tasks; it is first called after the last of them.
 */
static void load_core(void)
{
	char why[GPUTUNE_TEXT];
	struct text text = text_in(why, sizeof(why));
	const char *lacking;
	void *core;

	lock_on_use();
	lacking = runtime_lacks();
	if (lacking || !whole_library(core_path)) {
		text_add(&text, "the core could not be loaded: ");
		text_add(&text, lacking ? "too few " : core_path);
		text_add(&text, lacking ? lacking : " is not there or not a whole library");
		fail("", why);
		return;
	}
	files_known = getrlimit(RLIMIT_NOFILE, &files) == 0;
	core = dlopen(core_path, RTLD_NOW | RTLD_LOCAL);
	if (!core) {
		text_add(&text, "the core could not be loaded: ");
		text_add(&text, dlerror());
		fail("", why);
		return;
	}
	core_limit = (gputune_call *)dlsym(core, GPUTUNE_CALL_LIMIT);
	core_open = (gputune_call *)dlsym(core, GPUTUNE_CALL_OPEN);
	core_locate = (gputune_call *)dlsym(core, GPUTUNE_CALL_LOCATE);
	core_bind = (gputune_call *)dlsym(core, GPUTUNE_CALL_BIND);
	if (!core_limit || !core_open || !core_locate || !core_bind) {
		text_add(&text, core_path);
		text_add(&text, " is not this plugin's core: a function is missing");
		fail("", why);
		keep_files();
	}
}

void step_open(spank_t sp, const struct settings *settings)
{
	const char *value = settings->given ? settings->value : settings->site;
	bool off = items_have(value, "off"), strict = !off && items_have(value, "strict"), bind;
	uint32_t step;
	char *mig;

	if (page) /* the plugin is listed twice, and every hook runs twice */
		return;
	forget_outer(sp);
	if (spank_get_item(sp, S_JOB_STEPID, &step) != ESPANK_SUCCESS || step == SLURM_EXTERN_CONT)
		return;
	mig = mig_devices(sp, settings);
	/* With other items beside off, the core sees whether all of them are accepted. A site's default is for steps
	 * with GPUs; a user who asks is told. */
	bind = (mig || strcmp(value, "off") != 0) && (settings->given || has_gpu(sp));
	if (!bind && !process_no_swap()) {
		free(mig);
		return;
	}
	if (!map_page(sp)) {
		lost_strictly = bind && strict;
		free(mig);
		return;
	}
	page->no_swap = process_no_swap();
	if (!bind)
		page->state = GPUTUNE_OFF;
	/* 0 where Slurm does not give out memory (SelectTypeParameters without Memory) */
	if (spank_get_item(sp, S_STEP_ALLOC_MEM, &page->memory_mib) != ESPANK_SUCCESS)
		page->memory_mib = 0;
	copy(page->mig, sizeof(page->mig), mig);
	free(mig);
	stepd = (pid_t)syscall(SYS_getpid);
	page->given = settings->given;
	page->step = step;
	spank_get_item(sp, S_JOB_ID, &page->job);
	copy(page->option, sizeof(page->option), value);
	copy(page->config, sizeof(page->config), settings->config);
	copy(page->slurm_conf, sizeof(page->slurm_conf), getenv("SLURM_CONF"));
	/* slurmstepd's own, not the step's: that one an outer step may have set on another node. */
	copy(page->node, sizeof(page->node), getenv("SLURMD_NODENAME"));
	copy_environment(sp, step);
	/* Until the core has read the value: what becomes of the step if it never does. */
	page->strict = strict;
	page->report = off || items_have(value, "quiet") ? GPUTUNE_REPORT_QUIET : GPUTUNE_REPORT_WARNINGS;
	core_path = settings->core;
}

static void limit_job(void)
{
	core_limit(page);
	keep_files();
	log_swap();
}

static void bind_all(void)
{
	int rc = core_open(page);

	keep_files();
	log_lines();
	if (rc == 0 && page->state == GPUTUNE_OPEN && core_locate(page) == 0) {
		probe(page);
		core_bind(page);
		log_lines();
	}
}

/*
 * Called once for each task, when all have been forked. The tasks wait until the
 * last call has returned, and only then everything is known that the plan depends
 * on: which GPUs each task has, and which CPUs the step has.
 */
void step_forked(spank_t sp)
{
	int local;
	pid_t pid;

	if (!page || (page->state != GPUTUNE_UNBOUND && !page->no_swap))
		return;
	if (spank_get_item(sp, S_TASK_ID, &local) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_TASK_PID, &pid) != ESPANK_SUCCESS || local < 0 || (uint32_t)local >= page->tasks)
		return;
	if (page->task[local].pid)
		return;
	page->task[local].pid = pid;
	forked++;
	/* SlurmdParameters=contain_spank runs this hook in a process that only
	 * shares slurmstepd's memory: a Go runtime does not survive there. */
	if ((pid_t)syscall(SYS_getpid) != stepd)
		fail("not bound: ", "SlurmdParameters=contain_spank keeps the plugin out of slurmstepd");
	else if (forked == 1)
		load_core();
	if (forked == page->tasks && page->no_swap)
		limit_job();
	if (forked == page->tasks && page->state == GPUTUNE_UNBOUND)
		bind_all();
	if (page->state == GPUTUNE_FAILED)
		slurm_error("gputune: %s", page->error);
}

void step_close(void)
{
	if (!page)
		return;
	/* At once: the agent lets go of the GPUs before the Epilog comes to them. */
	if (page->follow_file[0] && (pid_t)syscall(SYS_getpid) == stepd)
		unlink(page->follow_file);
	munmap(page, page_size);
	page = NULL;
}
