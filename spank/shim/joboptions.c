/*
 * The options that belong to a job, not to a step: the Prolog carries them out.
 * They are given where the job is made, with sbatch, salloc or the srun that
 * makes it, and reach Prolog and Epilog as SPANK_GPUTUNE_<NAME>.
 *
 * Each component of a heterogeneous job is a job with a Prolog of its own. The
 * program that makes it parses one component after the other, and ends each
 * with slurm_spank_init_post_opt.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

#define MPS "gpu-mps"

static const struct job_option {
	const char *name, *arginfo, *usage;
	int has_arg; /* 1: needs a value, 2: may be given bare */
} table[] = {
	/* Slurm puts an empty line before a name that leaves the column. */
	{ "gpu-mig", "PROFILES", "split each of the job's GPUs into MIG devices, PROFILE[:N]+..., such as "
				 "3g.71gb+1g.18gb:4, which are dealt to its tasks in order", 1 },
	{ "gpu-clocks", "SPEC", "clocks of the job's GPUs: low|medium|high|highm1|MHZ|MIN-MAX, memory=..., or both", 1 },
	{ "gpu-power", "WATTS", "power limit of each of the job's GPUs: WATTS, max or default", 1 },
	{ "gpu-compute-mode", "MODE", "compute mode of the job's GPUs: shared, exclusive or prohibited", 1 },
	{ MPS, "[ITEM,...]", "an MPS daemon of the job's own for its GPUs: PERCENT of a GPU's SMs for each program "
			     "(auto: its even share), mem=SIZE of its memory at most; off: none, also for a step", 2 },
	{ "node-profile", "NAME", "settings of the job's nodes that the site has under a name: training, inference, "
				  "benchmark and others", 1 },
	{ "thp", "WORD", "transparent hugepages on the job's nodes: always, madvise or never", 1 },
	{ "hugepages", "SIZE:COUNT", "free hugepages on each NUMA node that has GPUs of the job, such as 2M:512; several "
				     "sizes with commas between", 1 },
	{ "drop-caches", "[WHAT]", "free the memory that holds files before the job begins: page (as without =), slab "
				   "or all", 2 },
	{ "gpu-memlock", "SIZE", "how much memory each of the job's processes may lock (pin): unlimited, inherit, or a "
				 "number with M, G or T", 1 },
};
#define OPTIONS (sizeof(table) / sizeof(table[0]))
#define NAME_SIZE 128 /* of a variable that is made of an option's name */

static struct {
	bool given;
	char value[GPUTUNE_OPTION];
} found[OPTIONS]; /* of the component that is being parsed; in slurmstepd, of the step's job */

static char *inherited[OPTIONS]; /* what the environment gave this program, NULL for nothing */
static unsigned listed;          /* lines of plugstack.conf with the plugin: every hook is called for each */

static const struct settings *settings;

/*
 * By this variable of the step's environment, srun tells slurmstepd that the
 * user hears elsewhere whether the options were carried out. SLURM_ lets it
 * through --export=NONE.
 */
#define HEARD "SLURM_GPUTUNE_HEARD"

/* By this one, that the user wants this step to do without the job's MPS daemon. */
#define WITHOUT_MPS "SLURM_GPUTUNE_WITHOUT_MPS"

/*
 * By a variable for each component and option, the steps of a heterogeneous job
 * are told what their component was given: Slurm hands them the options of all.
 */
#define COMPONENT "SLURM_GPUTUNE_%u_"
#define COMPONENTS 128 /* MAX_HET_JOB_COMPONENTS of Slurm */

/* The srun of a step in a job that is there already. */
static bool in_job(void)
{
	return spank_context() == S_CTX_LOCAL && getenv("SLURM_JOB_ID");
}

/* The variable of an option: "gpu-clocks" becomes prefix and GPU_CLOCKS or gpu_clocks. */
static const char *variable(char *buffer, const char *prefix, const char *name, bool upper)
{
	struct text text = text_in(buffer, NAME_SIZE);

	text_add(&text, prefix);
	size_t start = text.used;
	text_add(&text, name);
	for (char *at = buffer + start; *at; at++) {
		if (*at == '-')
			*at = '_';
		else if (upper && *at >= 'a' && *at <= 'z')
			*at = (char)(*at - 'a' + 'A');
	}
	return buffer;
}

static const char *component_variable(char *buffer, unsigned component, size_t i)
{
	char prefix[sizeof(COMPONENT) + 16];

	snprintf(prefix, sizeof(prefix), COMPONENT, component);
	return variable(buffer, prefix, table[i].name, true);
}

/* SLURM_HET_SIZE, at least 1. */
static unsigned components(const char *size)
{
	unsigned long count = size ? strtoul(size, NULL, 10) : 1;

	return count < 1 ? 1 : count < COMPONENTS ? (unsigned)count : COMPONENTS;
}

/* What sbatch or salloc left in the environment for the srun, sbatch or salloc inside the job. */
static char *exported(size_t i)
{
	char name[NAME_SIZE];

	return getenv(variable(name, "SLURM_SPANK__SLURM_SPANK_OPTION_gputune_", table[i].name, false));
}

/* "--gpu-clocks=1200", and without "=" where it was given bare. */
static void add_option(struct text *text, size_t i)
{
	text_add(text, "--");
	text_add(text, table[i].name);
	if (*found[i].value) {
		text_add(text, "=");
		text_add(text, found[i].value);
	}
}

/*
 * Called for the environment first and the command line last: the last value wins.
 *
 * sbatch and salloc export the options of each component before they parse the
 * next one, and read them there as if they had been inherited. They hand on the
 * very string of the environment, which tells that from what the user typed.
 */
static int option_given(int val, const char *argument, int remote)
{
	size_t i = (size_t)val;
	const char *given;

	if (!remote && argument && argument == exported(i)) {
		argument = inherited[i];
		if (!argument)
			return 0;
	}
	given = option_value(argument);
	if (!remote && !in_job()) {
		if (strlen(given) >= GPUTUNE_OPTION) {
			slurm_error("gputune: --%s: more than %d bytes", table[i].name, GPUTUNE_OPTION - 1);
			return -1;
		}
		if ((*given || table[i].has_arg == 1) && submit_check(settings, table[i].name, given))
			return -1;
	}
	struct text value = text_in(found[i].value, sizeof(found[i].value));
	text_add(&value, given);
	found[i].given = true;
	return 0;
}

/* What this program's own environment says, before Slurm or the plugin change it. */
static void read_environment(void)
{
	/* Of the job in which another one is made; a step's srun leaves them to the step. */
	unsigned outer = in_job() ? 0 : components(getenv("SLURM_HET_SIZE"));

	unsetenv(HEARD);
	unsetenv(WITHOUT_MPS);
	for (size_t i = 0; i < OPTIONS; i++) {
		const char *value = exported(i);
		char name[NAME_SIZE];

		inherited[i] = value ? strdup(value) : NULL;
		for (unsigned component = 0; component < outer; component++)
			unsetenv(component_variable(name, component, i));
	}
}

void job_options_register(spank_t sp, const struct settings *site)
{
	static struct spank_option options[OPTIONS];

	settings = site;
	if (listed++ == 0 && spank_context() != S_CTX_REMOTE)
		read_environment();
	for (size_t i = 0; i < OPTIONS; i++) {
		options[i] = (struct spank_option){
			.name = (char *)table[i].name,
			.arginfo = (char *)table[i].arginfo,
			.usage = (char *)table[i].usage,
			.has_arg = table[i].has_arg,
			.val = (int)i,
			.cb = option_given,
		};
		option_register(sp, &options[i]);
	}
}

/* Whether the value is the one that sbatch or salloc left in the job's environment. */
static bool is_inherited(size_t i)
{
	return inherited[i] && strcmp(option_value(inherited[i]), found[i].value) == 0;
}

/* The options are the job's: those of a step are said to be ignored, unless it only inherited them. */
static void pass_over(void)
{
	/* Inside a step: the batch or interactive step has told it. The shell of salloc is in none. */
	bool heard = getenv("SLURM_PROCID") != NULL;

	for (size_t i = 0; i < OPTIONS; i++) {
		char buffer[GPUTUNE_OPTION + NAME_SIZE];
		struct text text = text_in(buffer, sizeof(buffer));

		if (!found[i].given || is_inherited(i))
			continue;
		if (strcmp(table[i].name, MPS) == 0 && strcmp(found[i].value, "off") == 0) {
			setenv(WITHOUT_MPS, "1", 1);
			continue;
		}
		add_option(&text, i);
		slurm_error("gputune: %s belongs to the job and is ignored here: "
			    "give it to sbatch, salloc or the srun that makes the job", buffer);
		heard = true;
	}
	if (heard)
		setenv(HEARD, "1", 1);
}

/* Prolog and Epilog of the component get the option, or do not get a former component's. */
static void pass(spank_t sp, unsigned component, size_t i)
{
	static bool passed[OPTIONS];
	char name[NAME_SIZE];
	spank_err_t rc = ESPANK_SUCCESS;

	component_variable(name, component, i);
	if (found[i].given)
		setenv(name, found[i].value, 1);
	else
		unsetenv(name);
	variable(name, "GPUTUNE_", table[i].name, true);
	if (found[i].given)
		rc = spank_job_control_setenv(sp, name, found[i].value, 1);
	else if (passed[i])
		rc = spank_job_control_unsetenv(sp, name);
	passed[i] = passed[i] || found[i].given;
	if (rc != ESPANK_SUCCESS)
		slurm_error("gputune: --%s: %s could not be passed to the Prolog: %s", table[i].name, name,
			    spank_strerror(rc));
}

void job_options_pass(spank_t sp)
{
	static unsigned calls;
	unsigned component = calls / listed;

	if (calls++ % listed)
		return;
	if (in_job())
		pass_over();
	else
		for (size_t i = 0; i < OPTIONS; i++)
			pass(sp, component, i);
	for (size_t i = 0; i < OPTIONS; i++)
		found[i].given = false;
}

/* Whether srun has set the variable, which is taken out of the step's environment. */
static bool take(spank_t sp, const char *name)
{
	char value[2];
	spank_err_t rc = spank_getenv(sp, name, value, sizeof(value));

	spank_unsetenv(sp, name);
	return rc == ESPANK_SUCCESS || rc == ESPANK_NOSPACE;
}

bool job_options_heard(spank_t sp)
{
	return take(sp, HEARD);
}

bool job_options_without_mps(spank_t sp)
{
	return take(sp, WITHOUT_MPS);
}

/* Whether the step's job is a component of a heterogeneous job, and then which one. */
static bool find_component(spank_t sp, uint32_t job, unsigned count, unsigned *component)
{
	/* The second is the older one, and all that srun 22.05 sets. */
	static const char *const names[] = { "SLURM_JOB_ID_HET_GROUP_%u", "SLURM_JOB_ID_PACK_GROUP_%u" };

	for (*component = 0; *component < count; ++*component)
		for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
			char name[64], id[16];

			snprintf(name, sizeof(name), names[i], *component);
			if (spank_getenv(sp, name, id, sizeof(id)) == ESPANK_SUCCESS && strtoul(id, NULL, 10) == job)
				return true;
		}
	return false;
}

void job_options_of(spank_t sp, uint32_t job)
{
	char size[16];
	bool known = spank_getenv(sp, "SLURM_HET_SIZE", size, sizeof(size)) == ESPANK_SUCCESS;
	unsigned count = components(known ? size : NULL), own = 0;
	bool heterogeneous = known && find_component(sp, job, count, &own);

	for (unsigned component = 0; component < count; component++)
		for (size_t i = 0; i < OPTIONS; i++) {
			char name[NAME_SIZE];

			component_variable(name, component, i);
			if (heterogeneous && component == own)
				found[i].given = spank_getenv(sp, name, found[i].value, GPUTUNE_OPTION) == ESPANK_SUCCESS;
			spank_unsetenv(sp, name);
		}
}

bool job_options_given(void)
{
	for (size_t i = 0; i < OPTIONS; i++)
		if (found[i].given)
			return true;
	return false;
}

char *job_options_lines(const char *why)
{
	size_t size = OPTIONS * (GPUTUNE_OPTION + NAME_SIZE + strlen(why) + 1) + 1;
	char *lines = malloc(size);

	if (!lines)
		return NULL;
	struct text text = text_in(lines, size);
	for (size_t i = 0; i < OPTIONS; i++) {
		if (!found[i].given)
			continue;
		add_option(&text, i);
		text_add(&text, why);
		text_add(&text, "\n");
	}
	return lines;
}
