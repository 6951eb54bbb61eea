/*
 * The options that belong to a job, not to a step: the Prolog carries them out.
 * They are given where the job is made, with sbatch, salloc or the srun that
 * makes it, and reach Prolog and Epilog as SPANK_GPUTUNE_<NAME>.
 */
#include <stdlib.h>
#include <string.h>

#include "shim.h"

static const struct job_option {
	const char *name, *arginfo, *usage;
	int has_arg; /* 1: needs a value, 2: may be given bare */
} table[] = {
	{ "gpu-clocks", "SPEC", "clocks of the job's GPUs: low|medium|high|highm1|MHZ|MIN-MAX, memory=..., or both", 1 },
	{ "gpu-power", "WATTS", "power limit of each of the job's GPUs: WATTS, max or default", 1 },
	{ "gpu-compute-mode", "MODE", "compute mode of the job's GPUs: shared, exclusive or prohibited", 1 },
};
#define OPTIONS (sizeof(table) / sizeof(table[0]))
#define NAME_SIZE 128 /* of a variable that is made of an option's name */

static struct {
	bool given;
	char value[GPUTUNE_OPTION];
} found[OPTIONS];

static const struct settings *settings;

/*
 * By this variable of the step's environment, srun tells slurmstepd that the
 * user hears elsewhere whether the options were carried out. SLURM_ lets it
 * through --export=NONE.
 */
#define HEARD "SLURM_GPUTUNE_HEARD"

/* The srun of a step in a job that is there already. */
static bool in_job(void)
{
	return spank_context() == S_CTX_LOCAL && getenv("SLURM_JOB_ID");
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

/* Called for the environment first and the command line last: the last value wins. */
static int option_given(int val, const char *argument, int remote)
{
	size_t i = (size_t)val;
	const char *given = option_value(argument);

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

void job_options_register(spank_t sp, const struct settings *site)
{
	static struct spank_option options[OPTIONS];

	settings = site;
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

/* Whether the value is the one that sbatch or salloc left in the job's environment. */
static bool inherited(size_t i)
{
	char name[NAME_SIZE];
	const char *value = getenv(variable(name, "SLURM_SPANK__SLURM_SPANK_OPTION_gputune_", table[i].name, false));

	return value && strcmp(option_value(value), found[i].value) == 0;
}

/* The options are the job's: those of a step are said to be ignored, unless it only inherited them. */
static void pass_over(void)
{
	/* Inside a step: the batch or interactive step has told it. The shell of salloc is in none. */
	bool heard = getenv("SLURM_PROCID") != NULL;

	for (size_t i = 0; i < OPTIONS; i++) {
		char buffer[GPUTUNE_OPTION + NAME_SIZE];
		struct text text = text_in(buffer, sizeof(buffer));

		if (!found[i].given || inherited(i))
			continue;
		add_option(&text, i);
		slurm_error("gputune: %s belongs to the job and is ignored here: "
			    "give it to sbatch, salloc or the srun that makes the job", buffer);
		heard = true;
	}
	if (heard)
		setenv(HEARD, "1", 1);
}

void job_options_pass(spank_t sp)
{
	static bool passed; /* the plugin may be listed twice */

	if (passed)
		return;
	passed = true;
	unsetenv(HEARD);
	if (in_job()) {
		pass_over();
		return;
	}
	for (size_t i = 0; i < OPTIONS; i++) {
		char name[NAME_SIZE];
		spank_err_t rc;

		if (!found[i].given)
			continue;
		variable(name, "GPUTUNE_", table[i].name, true);
		rc = spank_job_control_setenv(sp, name, found[i].value, 1);
		if (rc != ESPANK_SUCCESS)
			slurm_error("gputune: --%s: %s could not be passed to the Prolog: %s", table[i].name, name,
				    spank_strerror(rc));
	}
}

bool job_options_heard(spank_t sp)
{
	char value[2];
	spank_err_t rc = spank_getenv(sp, HEARD, value, sizeof(value));

	spank_unsetenv(sp, HEARD);
	return rc == ESPANK_SUCCESS || rc == ESPANK_NOSPACE;
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
