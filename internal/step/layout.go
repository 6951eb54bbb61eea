package step

import (
	"gputune/internal/idset"
	"gputune/internal/placement"
)

// Layout is what is known about a step before it is planned: what it was
// granted, and what each of its tasks sees.
type Layout struct {
	Policy placement.Policy
	CPUs   idset.Set // granted, empty: not known
	Mems   idset.Set // granted memory nodes, empty: not known
	GPUs   idset.Set // of the step
	Tasks  []placement.Task
}

// Request returns the layout in the form in which it is planned, the step's GPUs
// in the order of the machine.
func (l Layout) Request() placement.Request {
	request := placement.Request{Policy: l.Policy, CPUs: l.CPUs, Mems: l.Mems, Tasks: l.Tasks}
	for gpu := range l.GPUs.All() {
		request.GPUs = append(request.GPUs, gpu)
	}
	return request
}
