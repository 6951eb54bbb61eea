// Package launch is the binding without Slurm's plugin: a process finds out which
// rank of which launcher it is and which GPUs it sees, binds itself, and becomes
// the command that it was given.
package launch

import (
	"fmt"
	"strconv"
	"strings"
)

// Rank is one of the processes that a launcher has started on this machine.
type Rank struct {
	Local int    // from 0
	Size  int    // ranks on this machine, 0: not known
	From  string // the variable that says so, "": no launcher, one process alone
}

// launchers are the variables of rank and size on a node, of torchrun, Open MPI,
// Intel MPI and MPICH. A batch script has SLURM_LOCALID, and hands it on to what
// mpirun and torchrun start, so Slurm's come last.
var launchers = []struct{ rank, size string }{
	{"LOCAL_RANK", "LOCAL_WORLD_SIZE"},
	{"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
	{"MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
	{"SLURM_LOCALID", ""},
}

// FromEnvironment finds the process's rank. lookup is getenv(3). An error is a
// variable with a value that is none.
func FromEnvironment(lookup func(string) (string, bool)) (Rank, error) {
	for _, l := range launchers {
		local, found, err := number(lookup, l.rank)
		if err != nil {
			return Rank{}, err
		}
		if !found {
			continue
		}
		rank := Rank{Local: local, From: l.rank}
		if l.size == "" {
			rank.Size, err = slurmSize(lookup)
		} else {
			rank.Size, _, err = number(lookup, l.size)
		}
		if err == nil && rank.Size > 0 && local >= rank.Size {
			err = fmt.Errorf("%s=%d: there are %d ranks on this node", l.rank, local, rank.Size)
		}
		return rank, err
	}
	return Rank{Size: 1}, nil
}

// maxRanks bounds what a variable can make of memory.
const maxRanks = 4096

func number(lookup func(string) (string, bool), name string) (n int, found bool, err error) {
	text, found := lookup(name)
	if !found || text == "" {
		return 0, false, nil
	}
	n, err = strconv.Atoi(text)
	if err != nil || n < 0 || n > maxRanks {
		return 0, true, fmt.Errorf("%s=%.20q: want a number from 0 to %d", name, text, maxRanks)
	}
	return n, true, nil
}

// slurmSize returns how many tasks the step has on this node: the SLURM_NODEID-th
// number of SLURM_STEP_TASKS_PER_NODE, "4(x2),3". Outside a step, as in a batch
// script, there is one.
func slurmSize(lookup func(string) (string, bool)) (int, error) {
	const variable = "SLURM_STEP_TASKS_PER_NODE"
	list, found := lookup(variable)
	if !found || list == "" {
		return 1, nil
	}
	id, _, err := number(lookup, "SLURM_NODEID")
	if err != nil {
		return 0, err
	}
	node := id
	for piece := range strings.SplitSeq(list, ",") {
		tasks, times, repeated := strings.Cut(piece, "(x")
		nodes := 1
		if repeated {
			nodes, err = strconv.Atoi(strings.TrimSuffix(times, ")"))
		}
		n, bad := strconv.Atoi(tasks)
		if err != nil || bad != nil || nodes < 1 || n < 0 || n > maxRanks {
			return 0, fmt.Errorf("%s=%.40q: want numbers of tasks such as 4(x2),3", variable, list)
		}
		if node < nodes {
			return n, nil
		}
		node -= nodes
	}
	return 0, fmt.Errorf("%s=%.40q: says nothing about node %d", variable, list, id)
}
