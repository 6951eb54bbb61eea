package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"gputune/conf"
	"gputune/internal/compare"
	"gputune/internal/draw"
	"gputune/internal/idset"
	"gputune/internal/option"
	"gputune/internal/placement"
	"gputune/internal/step"
	"gputune/internal/topology"
)

// maxTasks bounds --tasks: a node runs no more.
const maxTasks = 4096

// planFlags say which step is planned.
type planFlags struct {
	which                           machineFlags
	tasks, gpusPerTask              int
	gpus, bind, config              string
	allowedCPUs, allowedMems        string
	explain, compare                bool
	format                          *choice
	tasksGiven, cpusGiven, memGiven bool
}

func planCommand() *cobra.Command {
	var f planFlags
	command := &cobra.Command{
		Use:   "plan [OPTION…]",
		Short: "Show where srun --gpu-numa-bind would put a step's tasks, and why",
		Long: `Show where srun --gpu-numa-bind would put a step's tasks, on this machine or
one that a FILE describes (see gputune topo). Tasks that see the same GPUs
are paired with them in the order of --gpus, as by CUDA_VISIBLE_DEVICES.`,
		Example: "  gputune plan --topology node.txt --tasks 8 --gpus-per-task 1 --compare",
		Args:    noArguments,
	}
	f.which.add(command)
	flags := command.Flags()
	flags.IntVar(&f.tasks, "tasks", 0, "`N` tasks (default: as many as there are GPUs for)")
	flags.IntVar(&f.gpusPerTask, "gpus-per-task", 0, "`M` GPUs for each task (default: each sees all)")
	flags.StringVar(&f.gpus, "gpus", "", "`LIST` of indices, addresses, UUIDs (default: all GPUs)")
	flags.StringVar(&f.bind, "bind", "", "`ITEMS` of --gpu-numa-bind: see gputune help items")
	flags.StringVar(&f.allowedCPUs, "allowed-cpus", "", "`LIST` of the CPUs granted, 0-15,64-79 (default: all)")
	flags.StringVar(&f.allowedMems, "allowed-mems", "", "`LIST` of the memory nodes granted (default: all)")
	flags.BoolVar(&f.explain, "explain", false, "say why")
	flags.BoolVar(&f.compare, "compare", false, "beside it: Slurm alone, numactl and torchrun")
	configFlag(command, &f.config)
	f.format = formatFlag(command, formatText, formatJSON, formatSVG)
	completeItems(command, "bind")
	command.RunE = func(command *cobra.Command, _ []string) error {
		f.tasksGiven = flags.Changed("tasks")
		f.cpusGiven, f.memGiven = flags.Changed("allowed-cpus"), flags.Changed("allowed-mems")
		plan, err := f.plan()
		if err != nil {
			return err
		}
		out := command.OutOrStdout()
		switch f.format.value {
		case formatJSON:
			return writePlanJSON(out, plan)
		case formatSVG:
			return draw.Plan(plan.machine, plan.request, plan.result).WriteSVG(out)
		}
		return planText{plan, colours(out)}.write(out)
	}
	return command
}

// plan is a planned step.
type plan struct {
	machine *topology.Machine
	source  topology.Source
	bind    option.Bind
	request placement.Request
	result  placement.Result
	reasons [][]string    // of each task, nil: not asked for
	ways    []compare.Way // nil: not asked for
}

// plan reads what is asked for and plans it with what the plugin's core uses.
func (f *planFlags) plan() (plan, error) {
	site, err := conf.Load(f.config)
	if err != nil {
		return plan{}, err
	}
	p := plan{}
	if p.bind, err = option.ParseBind(f.bind, site.NUMABind.Items.Bind); err != nil {
		return plan{}, refusal{err}
	}
	if !p.bind.On {
		return plan{}, refusal{fmt.Errorf("--bind %q: nothing is bound, so there is nothing to plan", f.bind)}
	}
	if p.machine, p.source, err = f.which.read(); err != nil {
		return plan{}, err
	}
	layout, err := f.layout(p.machine)
	if err != nil {
		return plan{}, refusal{err}
	}
	layout.Policy = p.bind.Policy
	p.request = layout.Request()
	p.result = placement.Plan(p.machine, p.request)
	if f.explain {
		p.reasons = placement.Explain(p.machine, p.request, p.result)
	}
	if f.compare {
		p.ways = compare.All(p.machine, p.request, p.result)
	}
	return p, nil
}

// layout deals the GPUs out.
func (f *planFlags) layout(m *topology.Machine) (step.Layout, error) {
	var layout step.Layout
	var err error
	if layout.CPUs, err = granted("--allowed-cpus", f.allowedCPUs, f.cpusGiven, "CPUs", m.CPUs); err != nil {
		return layout, err
	}
	var nodes idset.Set
	for _, node := range m.Nodes {
		nodes.Add(node.ID)
	}
	if layout.Mems, err = granted("--allowed-mems", f.allowedMems, f.memGiven, "nodes", nodes); err != nil {
		return layout, err
	}
	gpus, err := f.listed(m)
	if err != nil {
		return layout, err
	}
	layout.GPUs = idset.Of(gpus...)
	if f.gpusPerTask < 0 || f.gpusPerTask > len(gpus) {
		return layout, fmt.Errorf("--gpus-per-task %d: want 1 to %d, the number of GPUs", f.gpusPerTask, len(gpus))
	}
	tasks := f.tasks
	most := maxTasks
	if f.gpusPerTask > 0 {
		most = len(gpus) / f.gpusPerTask
	}
	if !f.tasksGiven {
		tasks = min(most, len(gpus))
	}
	switch {
	case tasks >= 1 && tasks <= most:
	case f.gpusPerTask > 0 && tasks > most:
		return layout, fmt.Errorf("--tasks %d --gpus-per-task %d: with %s there are at most %s; without --gpus-per-task all tasks see all GPUs",
			tasks, f.gpusPerTask, counted(len(gpus), "GPU"), counted(most, "task"))
	default:
		return layout, fmt.Errorf("--tasks %d: want 1 to %d", tasks, most)
	}
	now := layout.CPUs
	if now.Empty() {
		now = m.CPUs
	}
	for id := range tasks {
		sees := gpus
		if f.gpusPerTask > 0 {
			sees = gpus[id*f.gpusPerTask : (id+1)*f.gpusPerTask]
		}
		layout.Tasks = append(layout.Tasks, placement.Task{LocalID: id, GPUs: sees, CPUs: now})
	}
	return layout, nil
}

func (f *planFlags) listed(m *topology.Machine) ([]int, error) {
	if len(m.GPUs) == 0 {
		return nil, fmt.Errorf("%s: has no GPU that tasks could be near to", m.Source)
	}
	if f.gpus != "" {
		gpus, err := m.FindGPUs(f.gpus)
		if err != nil {
			return nil, fmt.Errorf("--gpus: %w", err)
		}
		return gpus, nil
	}
	gpus := make([]int, len(m.GPUs))
	for i := range gpus {
		gpus[i] = i
	}
	return gpus, nil
}

// granted reads a list of what is granted of all there is.
func granted(flag, list string, given bool, what string, all idset.Set) (idset.Set, error) {
	if !given {
		return idset.Set{}, nil
	}
	set, err := idset.Parse(list)
	switch {
	case err != nil:
		return set, fmt.Errorf("%s: %w", flag, err)
	case set.Empty():
		return set, fmt.Errorf("%s %q: want a list such as %s", flag, list, all)
	case !all.Empty() && !set.SubsetOf(all):
		return set, fmt.Errorf("%s %s: the machine has no %s %s: want some of %s", flag, list, what, set.AndNot(all), all)
	}
	return set, nil
}
