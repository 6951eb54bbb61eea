// Package slurm knows Slurm's environment variables, the parts of its
// configuration files that decide how GPUs are numbered and tasks constrained,
// and its numberings. It reads files when asked to and runs nothing, so that
// the plugin's core can use it inside slurmstepd.
//
// What it says holds for Slurm 22.05 to 26.05 unless a docstring says
// otherwise. Sources are the man pages slurm.conf(5), gres.conf(5),
// cgroup.conf(5) and srun(1), Slurm's src/common/{hostlist,parse_config,env}.c,
// src/interfaces/gres.c and src/plugins/gres/gpu/gres_gpu.c, and the variables
// seen in steps of 22.05, 24.11 and 26.05.
package slurm

import "path/filepath"

// defaultConf is where slurm.conf is when SLURM_CONF is not set.
const defaultConf = "/etc/slurm/slurm.conf"

// ConfPath returns the path of slurm.conf; the other files are in its folder.
//
// In slurmstepd, getenv is that of the process (getenv(3)): slurmd sets
// SLURM_CONF there to the file it uses itself, also with --export=NONE and
// where slurmd fetched its configuration from slurmctld. The variable of the
// same name in the step's environment comes from the user.
func ConfPath(getenv func(string) (string, bool)) string {
	if path, found := getenv("SLURM_CONF"); found && filepath.IsAbs(path) {
		return path
	}
	return defaultConf
}

// NodeName returns the name that Slurm has for this node, which is not always
// its host name, and false where it is not known. In slurmstepd, getenv is that
// of the process, as for ConfPath.
func NodeName(getenv func(string) (string, bool)) (string, bool) {
	name, found := getenv("SLURMD_NODENAME")
	return name, found && name != ""
}
