/*
 * The forked task, as the user, before it becomes the user's program. Besides
 * Slurm's own spank_* calls only async-signal-safe ones: the process has one
 * thread of a parent that had several.
 */
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim.h"

/* linux/mempolicy.h; libnuma is not needed for four numbers. */
#define MPOL_PREFERRED 1
#define MPOL_BIND 2
#define MPOL_INTERLEAVE 3
#define MPOL_PREFERRED_MANY 5 /* Linux 5.15 */

#define VISIBLE_IS "CUDA_VISIBLE_DEVICES="

/* The longest list of 8192 CPUs: every second one, five bytes each. */
#define LIST_SIZE (GPUTUNE_CPU_WORDS * 64 / 2 * 5 + 1)

struct outcome {
	struct gputune_page *page;
	const struct gputune_task *task;
	uint32_t rank; /* in the whole step */
	uint64_t gpus;
	uint64_t cpus[GPUTUNE_CPU_WORDS]; /* asked for, zero: left alone */
	uint64_t mems[GPUTUNE_NODE_WORDS];
	const char *locality;
	uint32_t mem; /* policy that is in force */
	bool unmet;   /* something could not be had as asked */
	char warnings[2 * GPUTUNE_TEXT];
	char notes[GPUTUNE_TEXT];
};

static bool any(const uint64_t *words, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (words[i])
			return true;
	return false;
}

static void add(uint64_t *to, const uint64_t *from, size_t count)
{
	for (size_t i = 0; i < count; i++)
		to[i] |= from[i];
}

static bool meet(const uint64_t *a, const uint64_t *b, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (a[i] & b[i])
			return true;
	return false;
}

static void say_start(struct text *text, const struct outcome *o)
{
	text_add(text, "gputune: ");
	text_add(text, o->page->node);
	text_add(text, " task ");
	text_add_number(text, o->rank);
	text_add(text, ": ");
}

static void say_of(const struct outcome *o, const char *kind, const char *lines)
{
	char start[START_SIZE];
	struct text text = text_in(start, sizeof(start));

	say_start(&text, o);
	say_lines(start, kind, lines);
}

static void add_line(char *lines, size_t size, const char *line)
{
	struct text text = { .start = lines, .size = size, .used = strlen(lines) };

	if (!*line)
		return;
	if (text.used)
		text_add(&text, "\n");
	text_add(&text, line);
}

static void warn(struct outcome *o, const char *line)
{
	if (*line)
		o->unmet = true;
	add_line(o->warnings, sizeof(o->warnings), line);
}

static void note(struct outcome *o, const char *line)
{
	add_line(o->notes, sizeof(o->notes), line);
}

static bool read_affinity(uint64_t *cpus)
{
	/* returns the bytes that it filled */
	memset(cpus, 0, GPUTUNE_CPU_WORDS * sizeof(uint64_t));
	return syscall(SYS_sched_getaffinity, 0, GPUTUNE_CPU_WORDS * sizeof(uint64_t), cpus) > 0;
}

static uint64_t choose_local(const struct outcome *o, uint64_t gpus)
{
	uint64_t local = 0, now[GPUTUNE_CPU_WORDS];

	if (!read_affinity(now))
		return gpus;
	for (uint32_t i = 0; i < o->page->gpus; i++)
		if (gpus >> i & 1 && meet(o->page->gpu[i].near, now, GPUTUNE_CPU_WORDS))
			local |= 1ULL << i;
	return local ? local : gpus;
}

/*
 * The task's binding from the shares of the GPUs that its environment names.
 * common: every task of the step has the same list.
 */
static void compose(struct outcome *o, const struct devices *sees, bool common, uint32_t local)
{
	const struct gputune_page *page = o->page;
	uint64_t gpus = sees->gpus;

	if (page->pairing == GPUTUNE_GPUS_AUTO)
		gpus = gpus_paired(sees, common, page->step_gpus, page->tasks, local);
	else if (page->pairing == GPUTUNE_GPUS_LOCAL)
		gpus = choose_local(o, gpus);
	o->gpus = gpus;
	bool anywhere = false;
	for (uint32_t i = 0; i < page->gpus; i++) {
		if (!(gpus >> i & 1))
			continue;
		add(o->cpus, page->gpu[i].cpus, GPUTUNE_CPU_WORDS);
		add(o->mems, page->gpu[i].mems, GPUTUNE_NODE_WORDS);
		anywhere = anywhere || !any(page->gpu[i].mems, GPUTUNE_NODE_WORDS);
		warn(o, page->gpu[i].warnings);
	}
	/* memory of a GPU that may be anywhere may be anywhere */
	if (anywhere)
		memset(o->mems, 0, sizeof(o->mems));
	if (!gpus && page->given)
		warn(o, "no GPU is visible to it: ask for one with --gpus, or for --gpu-numa-bind=off");
}

static void note_about(struct outcome *o, const char *what, const char *why)
{
	char buffer[1024];
	struct text text = text_in(buffer, sizeof(buffer));

	text_add(&text, what);
	text_add(&text, why);
	note(o, buffer);
}

static void warn_visible(struct outcome *o, const char *list, const char *why)
{
	char buffer[GPUTUNE_TEXT];
	struct text text = text_in(buffer, sizeof(buffer));

	text_add(&text, VISIBLE_IS);
	text_add(&text, list);
	text_add(&text, why);
	warn(o, buffer);
}

static void note_visible(struct outcome *o, const char *list, const char *why)
{
	char buffer[512];
	struct text text = text_in(buffer, sizeof(buffer));

	text_add(&text, VISIBLE_IS);
	text_add(&text, list);
	note_about(o, buffer, why);
}

/*
 * Whether it is the list that the step has: all its tasks have it then, and the
 * core has planned by it. Else Slurm, or another plugin, has made one for this
 * task.
 */
static bool is_steps(const struct gputune_page *page, const char *list)
{
	const char *end = page->environment + page->environment_size;

	for (const char *at = page->environment; at < end; at += strlen(at) + 1)
		if (strncmp(at, VISIBLE_IS, strlen(VISIBLE_IS)) == 0)
			return strcmp(at + strlen(VISIBLE_IS), list) == 0;
	return false;
}

/* Whether Slurm has written the list; it says the same in one of its own variables where devices are not constrained. */
static bool is_slurms(spank_t sp, const char *list)
{
	static const char *const names[] = { "SLURM_STEP_GPUS", "SLURM_JOB_GPUS" };
	char own[GPUTUNE_TEXT];

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (spank_getenv(sp, names[i], own, sizeof(own)) == ESPANK_SUCCESS && strcmp(own, list) == 0)
			return true;
	return false;
}

/* CUDA counts the fastest GPU first unless it is told otherwise, and which one that is is not known here. */
static void note_order(spank_t sp, struct outcome *o)
{
	char order[sizeof("PCI_BUS_ID")];
	const struct gputune_gpu *first = NULL;

	if (spank_getenv(sp, "CUDA_DEVICE_ORDER", order, sizeof(order)) == ESPANK_SUCCESS && strcmp(order, "PCI_BUS_ID") == 0)
		return;
	for (uint32_t i = 0; i < o->page->gpus; i++) {
		const struct gputune_gpu *gpu = &o->page->gpu[i];

		if (!(o->task->sees >> i & 1))
			continue;
		if (first && first->model != gpu->model) {
			note(o, "the GPUs differ, and CUDA numbers the fastest first: set CUDA_DEVICE_ORDER=PCI_BUS_ID, which is what is counted on here");
			return;
		}
		first = first ? first : gpu;
	}
}

/* The plan is the parent's, unless only this process knows its GPUs. */
static void read_plan(spank_t sp, struct outcome *o, uint32_t local)
{
	char list[GPUTUNE_TEXT] = "", gpus_on_node[8];
	spank_err_t found = spank_getenv(sp, "CUDA_VISIBLE_DEVICES", list, sizeof(list));
	bool common = found == ESPANK_SUCCESS && is_steps(o->page, list), slurms;
	struct devices devices = devices_all(0);

	/* MIG devices that are dealt replace what the variable names. */
	if (found == ESPANK_SUCCESS && !o->task->visible[0]) {
		slurms = o->task->by_environment && is_slurms(sp, list);
		devices = devices_listed(o->page, o->task->sees, slurms, list);
		/* Slurm's numbers are a set: its programs count what they mean by address. */
		if (slurms && !devices.why)
			devices = devices_all(devices.gpus);
	}
	if (o->task->by_environment) {
		if (devices.why)
			warn_visible(o, list, devices.why);
		else if (found == ESPANK_NOSPACE)
			warn_visible(o, "", " is too long");
		/* Not set, as after --gpu-bind=none: CUDA sees every GPU. */
		else if (found != ESPANK_SUCCESS &&
			 spank_getenv(sp, "SLURM_GPUS_ON_NODE", gpus_on_node, sizeof(gpus_on_node)) == ESPANK_SUCCESS)
			devices = devices_all(o->page->step_gpus);
		compose(o, &devices, common, local);
		note(o, "affinity alone: devices are not constrained");
	} else if (devices.gpus && !common && (devices.gpus != o->task->sees || !devices_in_order(&devices))) {
		/* --gres-flags=allow-task-sharing: the cgroup allows more than the task is meant to use. */
		compose(o, &devices, common, local);
	} else {
		o->gpus = o->task->gpus;
		add(o->cpus, o->task->cpus, GPUTUNE_CPU_WORDS);
		add(o->mems, o->task->mems, GPUTUNE_NODE_WORDS);
		warn(o, o->task->warnings);
	}
	if (devices.why && !o->task->by_environment)
		note_visible(o, list, devices.why);
	if (found != ESPANK_SUCCESS || devices.numbers)
		note_order(sp, o);
}

/* What the kernel answers to the calls made here; strerror(3) takes locks. */
static void add_error(struct text *text, int error)
{
	switch (error) {
	case EPERM:
		text_add(text, "not permitted (EPERM)");
		break;
	case EINVAL:
		text_add(text, "not in the task's cpuset, or not there (EINVAL)");
		break;
	case ENOSYS:
		text_add(text, "not in this kernel (ENOSYS)");
		break;
	default:
		text_add(text, "errno ");
		text_add_number(text, (uint64_t)error);
	}
}

static void warn_errno(struct outcome *o, const char *what, const uint64_t *words, size_t size, int error)
{
	char buffer[GPUTUNE_TEXT];
	struct text text = text_in(buffer, sizeof(buffer));

	text_add(&text, what);
	text_add(&text, " ");
	text_add_list(&text, words, size);
	text_add(&text, ": ");
	add_error(&text, error);
	warn(o, buffer);
}

/* Slurm's own binding is in force before this hook; what the parent set is as
 * well, so most often there is nothing left to do. */
static void set_cpus(struct outcome *o)
{
	uint64_t now[GPUTUNE_CPU_WORDS];

	if (!any(o->cpus, GPUTUNE_CPU_WORDS))
		return;
	if (read_affinity(now) && memcmp(now, o->cpus, sizeof(now)) == 0)
		return;
	if (syscall(SYS_sched_setaffinity, 0, sizeof(o->cpus), o->cpus) < 0) {
		warn_errno(o, "CPU affinity", o->cpus, GPUTUNE_CPU_WORDS, errno);
		return;
	}
	/* The kernel leaves out what the cpuset does not have. */
	if (read_affinity(now) && memcmp(now, o->cpus, sizeof(now)) != 0)
		warn_errno(o, "CPU affinity is not as asked, of cpus", o->cpus, GPUTUNE_CPU_WORDS, EINVAL);
}

/* How the CPUs that the task has, whoever chose them, lie to its GPUs. A GPU
 * without any CPU near it makes the whole mixed, and so does a CPU near none. */
static const char *judge_locality(const struct outcome *o)
{
	uint64_t now[GPUTUNE_CPU_WORDS], near[GPUTUNE_CPU_WORDS] = { 0 };
	bool near_all = true, near_any = false, inside = true;

	for (uint32_t i = 0; i < o->page->gpus; i++)
		if (o->gpus >> i & 1)
			add(near, o->page->gpu[i].near, GPUTUNE_CPU_WORDS);
	if (!any(near, GPUTUNE_CPU_WORDS) || !read_affinity(now))
		return "unknown";
	for (uint32_t i = 0; i < o->page->gpus; i++) {
		if (!(o->gpus >> i & 1))
			continue;
		if (meet(o->page->gpu[i].near, now, GPUTUNE_CPU_WORDS))
			near_any = true;
		else
			near_all = false;
	}
	for (size_t i = 0; i < GPUTUNE_CPU_WORDS; i++)
		inside = inside && !(now[i] & ~near[i]);
	if (!near_any)
		return "remote";
	return near_all && inside ? "local" : "mixed";
}

/* Leaves the lowest node alone in the mask. */
static void keep_lowest(uint64_t *nodes)
{
	bool found = false;

	for (size_t i = 0; i < GPUTUNE_NODE_WORDS; i++) {
		nodes[i] = found ? 0 : nodes[i] & -nodes[i];
		found = found || nodes[i];
	}
}

static int set_policy(struct outcome *o, uint32_t mem)
{
	/* The kernel reads one bit less than it is told. */
	unsigned long bits = GPUTUNE_NODE_WORDS * 64 + 1;
	int nodes = 0;

	for (size_t i = 0; i < GPUTUNE_NODE_WORDS; i++)
		nodes += __builtin_popcountll(o->mems[i]);
	switch (mem) {
	case GPUTUNE_MEM_BIND:
		return syscall(SYS_set_mempolicy, MPOL_BIND, o->mems, bits) ? errno : 0;
	case GPUTUNE_MEM_INTERLEAVE:
		return syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, o->mems, bits) ? errno : 0;
	default:
		if (nodes > 1) {
			if (syscall(SYS_set_mempolicy, MPOL_PREFERRED_MANY, o->mems, bits) == 0)
				return 0;
			if (errno != EINVAL)
				return errno;
			/* a kernel before 5.15, which prefers one node */
			keep_lowest(o->mems);
			note(o, "of several nodes, this kernel prefers the memory of the lowest alone");
		}
		return syscall(SYS_set_mempolicy, MPOL_PREFERRED, o->mems, bits) ? errno : 0;
	}
}

/* bind, then prefer, then nothing, each step taken only when the kernel refused. */
static void set_memory(struct outcome *o)
{
	int error;

	o->mem = GPUTUNE_MEM_NONE;
	if (o->page->mem == GPUTUNE_MEM_NONE || !any(o->mems, GPUTUNE_NODE_WORDS))
		return;
	error = set_policy(o, o->page->mem);
	if (!error) {
		o->mem = o->page->mem;
		return;
	}
	warn_errno(o, o->page->mem == GPUTUNE_MEM_BIND ? "mem=bind on nodes" :
		      o->page->mem == GPUTUNE_MEM_INTERLEAVE ? "mem=interleave on nodes" : "mem=prefer on nodes",
		   o->mems, GPUTUNE_NODE_WORDS, error);
	if (o->page->mem == GPUTUNE_MEM_PREFER)
		return;
	error = set_policy(o, GPUTUNE_MEM_PREFER);
	if (!error)
		o->mem = GPUTUNE_MEM_PREFER;
	else
		warn_errno(o, "mem=prefer on nodes", o->mems, GPUTUNE_NODE_WORDS, error);
}

static const char *policy_name(uint32_t mem)
{
	static const char *const names[] = { "none", "prefer", "bind", "interleave" };

	return names[mem];
}

static void add_gpus(struct text *text, const struct outcome *o, bool with_nodes)
{
	bool first = true;

	for (uint32_t i = 0; i < o->page->gpus; i++) {
		const struct gputune_gpu *gpu = &o->page->gpu[i];

		if (!(o->gpus >> i & 1))
			continue;
		if (!first)
			text_add(text, with_nodes ? ", " : ",");
		text_add(text, gpu->pci);
		first = false;
		if (!with_nodes)
			continue;
		text_add(text, " (node ");
		if (any(gpu->nodes, GPUTUNE_NODE_WORDS))
			text_add_list(text, gpu->nodes, GPUTUNE_NODE_WORDS);
		else
			text_add(text, "unknown");
		text_add(text, ")");
	}
}

/* What the task may use now, whoever decided it. */
static void add_cpus(struct text *text)
{
	uint64_t now[GPUTUNE_CPU_WORDS];

	if (read_affinity(now))
		text_add_list(text, now, GPUTUNE_CPU_WORDS);
}

static void export(spank_t sp, const struct outcome *o)
{
	static char buffer[LIST_SIZE];
	struct text text = text_in(buffer, sizeof(buffer));

	add_gpus(&text, o, false);
	spank_setenv(sp, "GPUTUNE_GPUS", buffer, 1);
	text = text_in(buffer, sizeof(buffer));
	add_cpus(&text);
	spank_setenv(sp, "GPUTUNE_CPUS", buffer, 1);
	text = text_in(buffer, sizeof(buffer));
	if (o->mem != GPUTUNE_MEM_NONE)
		text_add_list(&text, o->mems, GPUTUNE_NODE_WORDS);
	spank_setenv(sp, "GPUTUNE_MEMS", buffer, 1);
	spank_setenv(sp, "GPUTUNE_MEM_POLICY", policy_name(o->mem), 1);
	spank_setenv(sp, "GPUTUNE_LOCALITY", o->locality, 1);
}

/* What the site's variables are for the GPUs that the task has. */
static const char *variables_of(const struct outcome *o)
{
	if (o->gpus == o->task->variables_gpus)
		return o->task->variables;
	if (__builtin_popcountll(o->gpus) == 1)
		return o->page->gpu[__builtin_ctzll(o->gpus)].variables;
	return o->page->variables;
}

/*
 * The site's variables, but for those that the user has set. Which ones the task
 * was given is said in one more, so that a step inside this one does not take them
 * for the user's.
 */
static void set_variables(spank_t sp, struct outcome *o)
{
	static char given[GPUTUNE_VARIABLES];
	struct text list = text_in(given, sizeof(given));
	const char *next;

	for (const char *at = variables_of(o); *at; at = next) {
		char name[256], value[2];
		struct text text = text_in(name, sizeof(name));
		size_t length = strcspn(at, "=");

		next = at + strlen(at) + 1;
		for (size_t i = 0; i < length; i++)
			text_add(&text, (char[]){ at[i], '\0' });
		if (spank_getenv(sp, name, value, sizeof(value)) != ESPANK_ENV_NOEXIST) {
			note_about(o, name, " kept: it was set");
		} else if (!at[length]) {
			note_about(o, name, " not set: what it needs is not known");
		} else if (spank_setenv(sp, name, at + length + 1, 1) == ESPANK_SUCCESS) {
			text_add(&list, list.used ? "," : "");
			text_add(&list, name);
			text_add(&list, ":");
			text_add_number(&list, text_hash(at + length + 1));
		}
	}
	if (list.used)
		spank_setenv(sp, VARIABLES_NAME, given, 1);
}

static void report(const struct outcome *o)
{
	static char buffer[LIST_SIZE + 4 * GPUTUNE_TEXT];
	struct text text = text_in(buffer, sizeof(buffer));

	if (o->page->report == GPUTUNE_REPORT_QUIET)
		return;
	say_of(o, "warning: ", o->warnings);
	if (o->task == o->page->task) /* the same for all tasks: the first one says it */
		say_of(o, "warning: ", o->page->cautions);
	if (o->page->report != GPUTUNE_REPORT_VERBOSE)
		return;
	say_start(&text, o);
	text_add(&text, __builtin_popcountll(o->gpus) > 1 ? "gpus " : "gpu ");
	if (o->gpus)
		add_gpus(&text, o, true);
	else
		text_add(&text, "none");
	text_add(&text, ", cpus ");
	add_cpus(&text);
	if (o->page->keep_cpus[0]) {
		text_add(&text, " (kept: ");
		text_add(&text, o->page->keep_cpus);
		text_add(&text, ")");
	}
	text_add(&text, ", mems ");
	if (o->mem != GPUTUNE_MEM_NONE) {
		text_add_list(&text, o->mems, GPUTUNE_NODE_WORDS);
		text_add(&text, " ");
	}
	text_add(&text, policy_name(o->mem));
	if (o->page->keep_mems[0]) {
		text_add(&text, " (kept: ");
		text_add(&text, o->page->keep_mems);
		text_add(&text, ")");
	}
	text_add(&text, ", ");
	text_add(&text, o->locality);
	for (const char *at = o->notes; *at; at++) {
		char piece[2] = { *at, '\0' };

		if (at == o->notes)
			text_add(&text, "; ");
		text_add(&text, *at == '\n' ? "; " : piece);
	}
	text_add(&text, "\n");
	say(buffer);
}

/*
 * The plugin is optional in plugstack.conf, and Slurm passes over the failures
 * of an optional plugin; this is how it ends a task itself when a hook of a
 * required one fails.
 */
static void give_up(const struct outcome *o, const char *lines)
{
	say_of(o, "error: ", lines);
	_exit(1);
}

void task_bind(spank_t sp, struct gputune_page *page)
{
	static struct outcome o;
	static bool done; /* the plugin may be listed twice */
	uint32_t local = 0;
	int id = 0;

	if (done || page->state == GPUTUNE_OFF)
		return;
	done = true;
	o.page = page;
	if (spank_get_item(sp, S_TASK_GLOBAL_ID, &o.rank) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_TASK_ID, &id) != ESPANK_SUCCESS || id < 0 || (uint32_t)id >= page->tasks)
		return;
	local = (uint32_t)id;
	o.task = &page->task[local];

	if (page->state != GPUTUNE_BOUND) {
		const char *why = page->state == GPUTUNE_FAILED ? page->error :
				  "not bound: slurmstepd did not get as far as all tasks";
		/* The same for all tasks: one says it. */
		if (local > 0)
			why = "";
		if (page->strict)
			give_up(&o, why);
		say_of(&o, "warning: ", page->report == GPUTUNE_REPORT_QUIET ? "" : why);
		return;
	}
	read_plan(sp, &o, local);
	/* The same for all tasks: one says it, unless it ends them. */
	if (local == 0 || page->strict)
		warn(&o, page->not_followed);
	if (o.task->visible[0])
		spank_setenv(sp, "CUDA_VISIBLE_DEVICES", o.task->visible, 1);
	set_cpus(&o);
	o.locality = judge_locality(&o);
	set_memory(&o);
	note(&o, o.task->notes);
	if (page->swap[0])
		note_about(&o, "the job's swap is not limited: ", page->swap);
	if (page->strict && o.unmet)
		give_up(&o, o.warnings);
	export(sp, &o);
	set_variables(sp, &o);
	report(&o);
}
