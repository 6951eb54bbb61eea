/* The symbols that Slurm looks up, and the options. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim.h"

/*
 * SPANK_PLUGIN() would take the release from the installed header. One source
 * serves every release instead: the header is the same in all that is used
 * here, and Slurm compares major and minor with its own.
 */
#ifndef GPUTUNE_SLURM_RELEASE
#error "compile with -DGPUTUNE_SLURM_RELEASE=0xMMmmuu (major, minor, micro)"
#endif
#define EXPORT __attribute__((visibility("default")))

EXPORT const char plugin_name[] = "gputune";
EXPORT const char plugin_type[] = "spank";
EXPORT const unsigned int plugin_version = GPUTUNE_SLURM_RELEASE;

#ifndef GPUTUNE_CORE
#error "compile with -DGPUTUNE_CORE=\"path of libgputune.so\""
#endif
#ifndef GPUTUNE_PROGRAM
#error "compile with -DGPUTUNE_PROGRAM=\"path of gputune\""
#endif
#ifndef GPUTUNE_RUN
#define GPUTUNE_RUN "/run/gputune"
#endif
static struct settings settings = {
	.core = GPUTUNE_CORE,
	.program = GPUTUNE_PROGRAM,
	.config = "",
	.run = GPUTUNE_RUN,
	.site = "off",
};

static const struct {
	const char *name;
	const char **target;
} arguments[] = {
	{ "default=", &settings.site },
	{ "config=", &settings.config },
	{ "core=", &settings.core },
	{ "program=", &settings.program },
	{ "run=", &settings.run },
};

static void read_argument(const char *argument)
{
	for (size_t i = 0; i < sizeof(arguments) / sizeof(arguments[0]); i++) {
		size_t length = strlen(arguments[i].name);

		if (strncmp(argument, arguments[i].name, length) == 0) {
			*arguments[i].target = argument + length;
			return;
		}
	}
	slurm_error("gputune: plugstack.conf: argument \"%s\" is not known: "
		    "want default=ITEMS, config=FILE, core=FILE, program=FILE or run=DIR",
		    argument);
}

/* Given bare, the argument is NULL, "" or "(null)", depending on the way it came. */
const char *option_value(const char *argument)
{
	return argument && strcmp(argument, "(null)") != 0 ? argument : "";
}

/*
 * Slurm prints what is here in a column of HELP_WIDTH, and breaks it at blanks.
 * It lists the options of all plugins one after the other: each line says whose
 * it is, and is filled up with blanks to end where Slurm breaks.
 */
#define HELP_WIDTH 50
#define HELP_MARK "[gputune]"

static void lay_out(struct text *text, const char *usage)
{
	size_t column = HELP_WIDTH;

	while (*usage) {
		size_t length = strcspn(usage, " ");

		if (column + 1 + length >= HELP_WIDTH) {
			for (; column < HELP_WIDTH; column++)
				text_add(text, " ");
			text_add(text, HELP_MARK);
			column = strlen(HELP_MARK);
		}
		text_add(text, " ");
		for (size_t i = 0; i < length; i++)
			text_add(text, (char[]){ usage[i], '\0' });
		column += 1 + length;
		usage += length + strspn(usage + length, " ");
	}
}

/* Slurm keeps copies of all that is in option. */
void option_register(spank_t sp, struct spank_option *option)
{
	struct spank_option marked = *option;
	char usage[1024];
	struct text text = text_in(usage, sizeof(usage));

	lay_out(&text, option->usage);
	marked.usage = usage;
	if (spank_option_register(sp, &marked) != ESPANK_SUCCESS)
		slurm_error("gputune: option --%s could not be registered: another plugin may have it", option->name);
}

/* May be called several times, from the environment first and the command line
 * last: the last value wins. */
static int option_given(int val, const char *argument, int remote)
{
	(void)val;
	argument = option_value(argument);
	/* A value that does not fit is longer than the grammar accepts. What comes
	 * to the node unchecked is cut, and then refused there. */
	if (!remote && strlen(argument) >= GPUTUNE_OPTION) {
		slurm_error("gputune: --%s: more than %d bytes", OPTION_NAME, GPUTUNE_OPTION - 1);
		return -1;
	}
	if (!remote && *argument && submit_check(&settings, OPTION_NAME, argument))
		return -1;
	settings.given = true;
	struct text value = text_in(settings.value, sizeof(settings.value));
	text_add(&value, argument);
	return 0;
}

static struct spank_option option = {
	.name = OPTION_NAME,
	.arginfo = "[ITEM,...]",
	.usage = "bind each task to the CPUs and memory near its GPUs: on, off, "
		 "cpus=node|exclusive|core-complex| socket|none, mem=prefer|bind|interleave|none, "
		 "smt=all|one, gpus=auto|all|local, enforce=cgroup|affinity, follow, strict, verbose, quiet",
	.has_arg = 2,
	.val = 0,
	.cb = option_given,
};

EXPORT int slurm_spank_init(spank_t sp, int ac, char **av)
{
	switch (spank_context()) {
	case S_CTX_LOCAL:
	case S_CTX_ALLOCATOR:
	case S_CTX_REMOTE:
		break;
	default: /* slurmd has no use for any of this */
		return ESPANK_SUCCESS;
	}
	for (int i = 0; i < ac; i++)
		read_argument(av[i]);
	option_register(sp, &option);
	job_options_register(sp, &settings);
	return ESPANK_SUCCESS;
}

EXPORT int slurm_spank_init_post_opt(spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	switch (spank_context()) {
	case S_CTX_LOCAL:
	case S_CTX_ALLOCATOR:
		job_options_pass(sp);
		break;
	case S_CTX_REMOTE:
		notice_open(sp, &settings);
		if (!notice_fails())
			mps_open(sp, &settings);
		if (!notice_fails() && !mps_fails()) { /* else no task of the step gets as far as its binding */
			process_open(sp, &settings);
			step_open(sp, &settings);
		}
		break;
	default:
		break;
	}
	return ESPANK_SUCCESS;
}

EXPORT int slurm_spank_task_post_fork(spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	process_forked(sp);
	step_forked(sp);
	return ESPANK_SUCCESS;
}

EXPORT int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	bool lost = false;
	struct gputune_page *page;

	notice_tell(sp);
	mps_tell(sp);
	process_begin(sp);
	page = step_page(&lost);
	if (page)
		task_bind(sp, page);
	else if (lost)
		_exit(1); /* slurmd's log says why */
	mps_devices(sp); /* the binding reads Slurm's numbers */
	return ESPANK_SUCCESS;
}

EXPORT int slurm_spank_exit(spank_t sp, int ac, char **av)
{
	(void)sp;
	(void)ac;
	(void)av;
	step_close();
	mps_close();
	notice_close();
	return ESPANK_SUCCESS;
}
