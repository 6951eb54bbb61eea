package step

import (
	"fmt"

	"gputune/internal/idset"
	"gputune/internal/mig"
	"gputune/internal/placement"
)

// split notes which MIG devices the job's GPUs have, as the Prolog has written
// it. GPUs that this machine has not are passed over, with a line in the log.
func (s *Step) split(handout string) {
	devices, err := mig.ParseHandout(handout)
	if err != nil {
		s.log("%v: tasks keep the devices that Slurm gave them", err)
		return
	}
	for _, d := range devices {
		position := -1
		for i, gpu := range s.Machine.GPUs {
			if gpu.UUID == d.GPU {
				position = i
			}
		}
		if position < 0 {
			s.log("gpu %s: the job has MIG devices of it, and this machine has no such GPU", d.GPU)
			continue
		}
		s.splits = append(s.splits, mig.Split{GPU: position, UUIDs: d.UUIDs})
	}
}

// deal deals the MIG devices of the step's GPUs out to its tasks. A task that gets
// some has their GPUs from then on and no others. Where devices are not
// constrained, which GPU a task's variables name says nothing any more: all tasks
// are dealt the devices of all the step's GPUs.
func (s *Step) deal(result *Result) {
	if len(s.splits) == 0 {
		return
	}
	tasks := make([][]int, len(result.Tasks))
	for i, outcome := range result.Tasks {
		sees := outcome.Sees
		if outcome.ByEnvironment {
			sees = result.GPUs
		}
		for gpu := range sees.All() {
			tasks[i] = append(tasks[i], gpu)
		}
	}
	for i, hand := range mig.Deal(tasks, s.splits) {
		outcome := &result.Tasks[i]
		if len(hand.UUIDs) == 0 {
			continue
		}
		outcome.Visible = hand.UUIDs
		outcome.Sees, outcome.ByEnvironment = idset.Set{}, false
		for _, gpu := range hand.GPUs {
			outcome.Sees.Add(gpu)
		}
		if hand.Sharers > 1 {
			outcome.Notes = append(outcome.Notes, fmt.Sprintf("%s: %d tasks share it", hand.UUIDs[0], hand.Sharers))
		}
	}
}

// dealt is a policy for tasks whose GPUs are decided: they are not paired anew.
func (s *Step) dealt(policy placement.Policy) placement.Policy {
	if len(s.splits) > 0 {
		policy.GPUs = placement.GPUsAll
	}
	return policy
}
