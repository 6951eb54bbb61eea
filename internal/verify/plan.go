// Package verify compares tasks that gputune has bound with their plan: the CPUs
// of each thread, the memory policy and where the pages are. It can put back what
// is off.
//
// The plan is in the task's environment (GPUTUNE_CPUS, GPUTUNE_MEMS,
// GPUTUNE_MEM_POLICY), which the plugin set there and the kernel keeps as it was
// at the task's start (/proc/PID/environ), so that nobody has to write it down
// anywhere else. It is the user's to change: what is mended by it is the user's
// own process, within the cpuset that holds it.
package verify

import (
	"errors"
	"fmt"
	"strings"

	"gputune/internal/idset"
)

// Plan is what gputune gave a task.
type Plan struct {
	CPUs idset.Set // that its threads may use
	Mems idset.Set // its memory nodes, empty where its memory was left alone
	// Policy is "prefer", "bind", "interleave" or "none".
	Policy string
	GPUs   string // PCI addresses, separated by commas
}

// ErrNotBound is a process that gputune has not bound.
var ErrNotBound = errors.New("not bound by gputune: GPUTUNE_CPUS is not in its environment")

// parsePlan reads a plan from the text of /proc/PID/environ.
func parsePlan(environ string) (Plan, error) {
	var p Plan
	var err error
	found := false
	for variable := range strings.SplitSeq(environ, "\x00") {
		name, value, _ := strings.Cut(variable, "=")
		set := (*idset.Set)(nil)
		switch name {
		case "GPUTUNE_CPUS":
			set, found = &p.CPUs, true
		case "GPUTUNE_MEMS":
			set = &p.Mems
		case "GPUTUNE_MEM_POLICY":
			p.Policy = value
		case "GPUTUNE_GPUS":
			p.GPUs = value
		}
		if set == nil {
			continue
		}
		if *set, err = idset.Parse(value); err != nil {
			return Plan{}, fmt.Errorf("%s: %w", name, err)
		}
	}
	if !found || p.CPUs.Empty() {
		return Plan{}, ErrNotBound
	}
	switch p.Policy {
	case "prefer", "bind", "interleave":
	default:
		p.Policy, p.Mems = "none", idset.Set{}
	}
	return p, nil
}
