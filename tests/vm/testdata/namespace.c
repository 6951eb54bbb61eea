/*
 * A SPANK plugin that does to its tasks what those that enter containers do
 * (pyxis): a mount namespace of their own, in which /sys, /run and /dev are other
 * ones than the node's, here empty.
 */
#include <sched.h>
#include <sys/mount.h>

#include <slurm/spank.h>

const char plugin_name[] = "namespace";
const char plugin_type[] = "spank";
const unsigned int plugin_version = SLURM_RELEASE;

int slurm_spank_task_init_privileged(spank_t sp, int ac, char **av)
{
	static const char *const targets[] = { "/sys", "/run", "/dev" };

	(void)sp;
	(void)ac;
	(void)av;
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) {
		slurm_error("namespace: mount namespace: %m");
		return -1;
	}
	for (unsigned int i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
		if (mount("namespace", targets[i], "tmpfs", 0, "mode=755,size=1m")) {
			slurm_error("namespace: tmpfs over %s: %m", targets[i]);
			return -1;
		}
	}
	return 0;
}
