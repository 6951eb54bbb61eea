package slurm

import (
	"slices"
	"strings"
)

// ExplicitCPUBind tells whether the user asked for a CPU binding, and for which
// ("--cpu-bind=cores").
//
// getenv must be the step's environment as slurmstepd's parent process has it
// (spank_getenv in init_post_opt, user_init or task_post_fork). There
// SLURM_CPU_BIND is what srun made of --cpu-bind or of SLURM_CPU_BIND, and is
// missing where Slurm binds by itself: by task/affinity's automatic binding, by
// TaskPluginParam or by a node's CpuBind. In a task's own environment (task_init)
// the two cannot be told apart: both read "mask_cpu:…". It makes no difference
// which TaskPlugin is used. Batch and interactive steps are not for this
// function: Slurm does not bind them, and what they have is the submitter's.
//
// Not the user's binding are "none", "verbose" and "quiet", and the cores or
// threads that --hint and --threads-per-core imply, which say how many hardware
// threads of a core to use and not where. srun inside a task of another step
// takes that task's SLURM_CPU_BIND as its own option, so a binding that Slurm
// chose for the outer step is the user's for the inner.
func ExplicitCPUBind(getenv func(string) (string, bool)) (what string, explicit bool) {
	kind, explicit := boundKind(getenv, "SLURM_CPU_BIND", "SLURM_CPU_BIND_TYPE")
	if !explicit {
		return "", false
	}
	list, _ := getenv("SLURM_CPU_BIND_LIST")
	if strings.HasSuffix(kind, ":") {
		return "--cpu-bind=" + kind + list, true
	}
	// 22.05 leaves the word that the user wrote in the list.
	if !slices.Contains(strings.Split(list, ","), kind) && impliedByHint(kind, getenv) {
		return "", false
	}
	return "--cpu-bind=" + kind, true
}

// ExplicitMemBind tells whether the user asked for a memory binding, and for
// which ("--mem-bind=prefer,local"), by --mem-bind or SLURM_MEM_BIND. getenv is
// that of ExplicitCPUBind. Slurm binds memory only when asked to, so here a
// task's own environment tells the same. "none", "verbose", "quiet" and "sort"
// bind nothing.
func ExplicitMemBind(getenv func(string) (string, bool)) (what string, explicit bool) {
	kind, explicit := boundKind(getenv, "SLURM_MEM_BIND", "SLURM_MEM_BIND_TYPE")
	if !explicit {
		return "", false
	}
	what = "--mem-bind="
	if prefer, _ := getenv("SLURM_MEM_BIND_PREFER"); prefer != "" {
		what += "prefer,"
	}
	what += kind
	if strings.HasSuffix(kind, ":") {
		list, _ := getenv("SLURM_MEM_BIND_LIST")
		what += list
	}
	return what, true
}

// boundKind returns the kind of binding. Both variables must be there, and the
// first begin as srun writes it: the user's own shell can have set either.
func boundKind(getenv func(string) (string, bool), option, kindOf string) (string, bool) {
	value, _ := getenv(option)
	kind, _ := getenv(kindOf)
	verbosity, _, _ := strings.Cut(value, ",")
	if kind == "" || kind == "none" || verbosity != "quiet" && verbosity != "verbose" {
		return "", false
	}
	return kind, true
}

// impliedByHint tells whether "cores" or "threads" can come from --hint or
// --threads-per-core: of srun, which then sets SLURM_THREADS_PER_CORE or, for
// --hint=multithread, SLURM_NTASKS_PER_CORE to 65535; or of sbatch, which sets
// SLURM_HINT for the srun in it.
func impliedByHint(kind string, getenv func(string) (string, bool)) bool {
	hint, _ := getenv("SLURM_HINT")
	threads, _ := getenv("SLURM_THREADS_PER_CORE")
	tasks, _ := getenv("SLURM_NTASKS_PER_CORE")
	switch kind {
	case "threads":
		return hint == "nomultithread" || hint == "multithread" || threads != "" || tasks == "65535"
	case "cores":
		return hint == "compute_bound" || hint == "memory_bound" || hint == "" && threads != ""
	default:
		return false
	}
}
