package step

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"gputune/conf"
	"gputune/internal/idset"
	"gputune/internal/nic"
	"gputune/internal/placement"
	"gputune/internal/template"
	"gputune/internal/topology"
)

// Variables are those that the site wants a task to have, unless the user has set
// them.
type Variables struct {
	GPUs idset.Set // of the machine: the variables are for a task with exactly these
	Set  []string  // "NAME=VALUE", by name
	Left []string  // names of those whose value is not known
}

// Templates are the variables that a site gives its tasks, with what they are filled
// in from. The zero value has none.
type Templates struct {
	machine *topology.Machine
	byName  map[string]template.Template
	nics    []nic.Device // that can be used, none where no template needs one
}

// ReadTemplates returns the site's templates for tasks on machine, and looks for
// its network devices if any needs one. Those cost a walk over the PCI bus where no
// snapshot has them; where that fails, the templates beside the error know none.
func ReadTemplates(config conf.Config, machine *topology.Machine) (Templates, error) {
	t := Templates{machine: machine, byName: config.Templates()}
	if !slices.ContainsFunc(slices.Collect(maps.Values(t.byName)), template.Template.NeedsNIC) {
		return t, nil
	}
	root := string(config.Paths.Machine)
	if len(machine.NICs) == 0 {
		var err error
		if machine, err = topology.Read(root, topology.Options{NICs: true}); err != nil {
			return t, fmt.Errorf("network devices: %w: variables that need them are not set", err)
		}
	}
	t.nics = nic.Usable(root, machine)
	return t, nil
}

// variables fills in the site's templates for all tasks, for each GPU of the step
// and for a task whose GPUs are not known. Which GPUs a task has whose environment
// decides is not known yet: the likeliest is that it sees all of the step's.
func (s *Step) variables(layout Layout, result *Result) {
	if len(s.templates.byName) == 0 {
		return
	}
	tasks := make([]idset.Set, len(result.Tasks))
	likely := s.likely(layout, result)
	for i, outcome := range result.Tasks {
		tasks[i] = idset.Of(outcome.Binding.GPUs...)
		if outcome.ByEnvironment {
			tasks[i] = likely[i]
		}
	}
	for i, v := range s.templates.Fill(tasks) {
		result.Tasks[i].Variables = v
	}
	var single []idset.Set
	for gpu := range result.GPUs.All() {
		single = append(single, idset.Of(gpu))
	}
	result.OfGPU = s.templates.Fill(single)
	result.Anywhere = s.templates.Fill([]idset.Set{{}})[0]
}

// likely returns the GPUs of each task as if each saw all of the step's, or those
// of them that the step's list of devices names.
func (s *Step) likely(layout Layout, result *Result) []idset.Set {
	var gpus []int
	for _, gpu := range s.counted(s.managed()) {
		if result.GPUs.Has(gpu) {
			gpus = append(gpus, gpu)
		}
	}
	if len(gpus) == 0 {
		gpus = slices.Collect(result.GPUs.All())
	}
	layout.Tasks = slices.Clone(layout.Tasks)
	for i := range layout.Tasks {
		layout.Tasks[i].GPUs = gpus
	}
	sets := make([]idset.Set, len(layout.Tasks))
	for i, binding := range placement.Plan(s.Machine, layout.Request()).Tasks {
		sets[i] = idset.Of(binding.GPUs...)
	}
	return sets
}

// Fill fills in the templates for tasks that have these GPUs, in the tasks' order:
// those that are as near to several network devices take turns.
func (t Templates) Fill(tasks []idset.Set) []Variables {
	gpus := make([][]topology.GPU, len(tasks))
	for i, set := range tasks {
		for gpu := range set.All() {
			gpus[i] = append(gpus[i], t.machine.GPUs[gpu])
		}
	}
	filled := make([]Variables, len(tasks))
	for i, near := range nic.Assign(gpus, t.nics) {
		var nodes idset.Set
		known := true
		for _, gpu := range gpus[i] {
			nodes = nodes.Or(gpu.Nodes)
			known = known && !gpu.Nodes.Empty()
		}
		place := template.Place{NIC: near.Best, NICs: near.All}
		if known {
			place.Nodes = nodes.String()
		}
		got := template.Fill(t.byName, place, func(string) bool { return false }) // the task knows what it has
		filled[i] = Variables{GPUs: tasks[i], Left: slices.Sorted(maps.Keys(got.Left))}
		for _, name := range slices.Sorted(maps.Keys(got.Set)) {
			filled[i].Set = append(filled[i].Set, name+"="+got.Set[name])
		}
	}
	return filled
}

// ErrNoRoom is in the error of Pack.
var ErrNoRoom = errors.New("no room for it")

// Pack writes variables as the task reads them: strings, each ended by NUL, those
// without "=" being the ones that are not set, and a NUL after the last. What does
// not fit into size bytes is left out as a whole; the error names it.
func (v Variables) Pack(size int) (string, error) {
	var text string
	var failed []error
	for _, variable := range slices.Concat(v.Set, v.Left) {
		if len(text)+len(variable)+2 > size {
			failed = append(failed, fmt.Errorf("%.100s: %w", variable, ErrNoRoom))
			continue
		}
		text += variable + "\x00"
	}
	return text + "\x00", errors.Join(failed...)
}
