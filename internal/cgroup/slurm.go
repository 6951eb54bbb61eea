package cgroup

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// Kind is what a cgroup is to a Slurm task in it.
type Kind int

// The kinds of cgroup.
const (
	Foreign Kind = iota // not Slurm's, or not one that Slurm puts tasks into
	Task                // task_N: Slurm made it for one task
	Special             // task_special, which the tasks of a step share
	Step                // a whole step's or job's; on v1, up to 24.05, the cpuset of all its tasks
	Daemon              // slurmd's or slurmstepd's own
)

// String returns the kind in words for a message.
func (k Kind) String() string {
	switch k {
	case Task:
		return "a task's cgroup"
	case Special:
		return "task_special, which all tasks of the step share"
	case Step:
		return "the whole step's cgroup"
	case Daemon:
		return "a cgroup of Slurm's own processes"
	default:
		return "not one of Slurm's cgroups"
	}
}

// KindOf tells what the cgroup at path, as /proc/PID/cgroup has it, is. Slurm's
// are
//
//	v2 …/[NODE_]slurmstepd.scope/{system | JOB/step_S/{slurm | user/{task_special | task_N}}}
//	v1 /slurm[_NODE]/uid_U/job_J/step_S[/task_N | /task_special]
//
// where JOB is job_J, or the job's SLUID since 26.05, and S a number, batch,
// extern or interactive, with "+C" behind it in heterogeneous jobs. A cgroup
// below a task's is foreign: the task made it itself.
func KindOf(path string) Kind {
	parts := strings.Split(path, "/")
	slurm := slurmPart(path)
	if slurm < 0 {
		return Foreign
	}
	below := parts[slurm+1:]
	if strings.HasSuffix(parts[slurm], scope) {
		return kindV2(below)
	}
	return kindV1(below)
}

const scope = "slurmstepd.scope"

// slurmPart returns which part of the path is Slurm's top folder, -1 for none.
// Both have the node's name where several slurmd can run on one machine, as
// Debian's can.
func slurmPart(path string) int {
	for i, part := range strings.Split(path, "/") {
		switch {
		case part == scope, strings.HasSuffix(part, "_"+scope):
			return i
		case i == 1 && (part == "slurm" || strings.HasPrefix(part, "slurm_")):
			return i
		}
	}
	return -1
}

func kindV2(below []string) Kind {
	if len(below) == 0 || below[0] == "system" {
		return Daemon
	}
	if len(below) < 2 || !strings.HasPrefix(below[1], "step_") {
		return stepOr(len(below) == 1)
	}
	switch inStep := below[2:]; {
	case len(inStep) == 0:
		return Step
	case inStep[0] == "slurm":
		return Daemon
	case inStep[0] != "user":
		return Foreign
	case len(inStep) == 1:
		return Step
	case len(inStep) == 2:
		return taskKind(inStep[1])
	default:
		return Foreign
	}
}

func kindV1(below []string) Kind {
	for i, prefix := range []string{"uid_", "job_", "step_"} {
		if len(below) == i {
			if i == 0 {
				return Daemon
			}
			return Step
		}
		if !strings.HasPrefix(below[i], prefix) {
			return stepOr(false)
		}
	}
	switch len(below) {
	case 3:
		return Step
	case 4:
		return taskKind(below[3])
	default:
		return Foreign
	}
}

// JobOf returns the path of the cgroup v2 of the whole job that a process in the
// cgroup at path, as /proc/PID/cgroup has it, belongs to; false if it is in no
// job's. With a path of v1 it is false, too.
func JobOf(path string) (string, bool) {
	parts := strings.Split(path, "/")
	slurm := slurmPart(path)
	if slurm < 0 || !strings.HasSuffix(parts[slurm], scope) || len(parts) < slurm+2 || parts[slurm+1] == "system" || parts[slurm+1] == "" {
		return "", false
	}
	return strings.Join(parts[:slurm+2], "/"), true
}

// StepOf returns the path of the cgroup of the whole step that a process in the
// cgroup at path, as /proc/PID/cgroup has it, belongs to, of v2 or v1; false if it is
// in no step's.
func StepOf(path string) (string, bool) {
	parts := strings.Split(path, "/")
	slurm := slurmPart(path)
	if slurm < 0 {
		return "", false
	}
	step := slurm + 2 // JOB/step_S
	if !strings.HasSuffix(parts[slurm], scope) {
		step = slurm + 3 // uid_U/job_J/step_S
	}
	if len(parts) <= step || !strings.HasPrefix(parts[step], "step_") {
		return "", false
	}
	return strings.Join(parts[:step+1], "/"), true
}

func stepOr(step bool) Kind {
	if step {
		return Step
	}
	return Foreign
}

func taskKind(name string) Kind {
	if name == "task_special" {
		return Special
	}
	if number, found := strings.CutPrefix(name, "task_"); found {
		if _, err := strconv.ParseUint(number, 10, 32); err == nil {
			return Task
		}
	}
	return Foreign
}

// Exclusive tells whether the cgroup at p is one that Slurm made for the task pid
// alone and that nothing else is in, so that what is set there meets that task
// and no other. If not, reason says why, in words for a user.
func (p Place) Exclusive(pid int) (exclusive bool, reason string) {
	if p.None() {
		return false, "the task is in no such cgroup"
	}
	if kind := KindOf(p.Path); kind != Task {
		return false, fmt.Sprintf("%s is %s", p.Path, kind)
	}
	pids, err := Procs(p)
	if err != nil {
		return false, err.Error()
	}
	if len(pids) == 1 && pids[0] == pid {
		return true, ""
	}
	found := false
	for _, other := range pids {
		found = found || other == pid
	}
	if !found {
		return false, fmt.Sprintf("process %d is not in %s", pid, p.Path)
	}
	return false, fmt.Sprintf("%s holds %d processes, not only %d", filepath.Base(p.Path), len(pids), pid)
}
