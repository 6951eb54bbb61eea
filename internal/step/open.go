// Package step binds the tasks of one job step on one node. It joins what the
// other packages know: read the option, the machine and Slurm's numbering
// (Open), find each task's cgroup (Locate), plan and apply (Bind). It is what
// the plugin's core does in slurmstepd, free of C.
package step

import (
	"fmt"

	"gputune/conf"
	"gputune/internal/mig"
	"gputune/internal/node"
	"gputune/internal/option"
	"gputune/internal/placement"
	"gputune/internal/slurm"
	"gputune/internal/topology"
)

// Request is what slurmstepd knows before it forks the tasks.
type Request struct {
	Root        string            // folder below which processes, cgroups and devices are looked up, "/" outside tests
	Config      string            // gputune.toml, "": the built-in place
	Option      string            // value of --gpu-numa-bind
	Given       bool              // the user gave the option; else it is the site's default
	Environment map[string]string // variables of the step
	Process     map[string]string // SLURM_CONF and SLURMD_NODENAME of slurmstepd itself, which no user sets
	MemoryMiB   uint64            // that the step was given on this node, 0: not known
	Job, Step   uint32            // Slurm's ids, for Follow of the option
	MIG         string            // the MIG devices of the job's GPUs as mig.Handout writes them, "": they are not split
}

// Step is one step on this node whose machine and option are known.
type Step struct {
	Option  option.Bind
	Machine *topology.Machine
	// Order has for each of Slurm's gres indices the position of its GPU in
	// Machine.GPUs, -1 where that is not known.
	Order []int
	// Devices has for each GPU of the machine its device file, "" where Slurm
	// does not manage it.
	Devices []string
	// KeepCPUs and KeepMems are the user's own --cpu-bind and --mem-bind, which
	// win; "" if there is none.
	KeepCPUs, KeepMems string
	// Log is what the administrator should know, a line each.
	Log []string

	root        string
	machineRoot string
	site        conf.Config
	job, id     uint32
	given       bool
	memoryMiB   uint64
	templates   Templates
	constrained constraints
	splits      []mig.Split // by position in Machine.GPUs; none: no GPU of the job is split
	environment map[string]string
}

// constraints is what Slurm's configuration says it holds tasks to.
type constraints struct {
	devices, cores bool
}

// OptionError is a value of the option that was not checked at submission and
// is not accepted.
type OptionError struct{ error }

// Unwrap returns the grammar's error.
func (e *OptionError) Unwrap() error { return e.error }

// Open reads the option, the configuration, the machine and Slurm's order of
// its GPUs. An error means that nothing can be bound; it is an *OptionError
// where the user's value is the reason.
func Open(request Request) (*Step, error) {
	s := &Step{
		root: request.Root, job: request.Job, id: request.Step, given: request.Given, environment: request.Environment,
		memoryMiB: request.MemoryMiB,
	}
	config, err := conf.Load(request.Config)
	switch {
	case err != nil:
		s.log("%v: the defaults are used", err)
	case conf.Absent(request.Config):
		s.log("%s is not there: the defaults are used", conf.File)
	}
	s.site = config
	if s.Option, err = option.ParseBind(request.Option, config.NUMABind.Items.Bind); err != nil {
		return nil, &OptionError{err}
	}
	if !s.Option.On { // the step is here for its MIG devices alone
		s.Option.Policy.CPUs, s.Option.Policy.Mem = placement.CPUsNone, placement.MemNone
	}
	s.KeepCPUs, _ = slurm.ExplicitCPUBind(lookup(request.Environment))
	s.KeepMems, _ = slurm.ExplicitMemBind(lookup(request.Environment))
	n, err := node.Read(s.root, config.Paths, lookup(request.Process))
	if err != nil {
		return nil, err
	}
	s.Machine, s.Order, s.Devices = n.Machine, n.Order, n.Devices
	s.machineRoot = string(config.Paths.Machine)
	if s.Option.On {
		if s.templates, err = ReadTemplates(config, s.Machine); err != nil {
			s.log("%v", err)
		}
	}
	s.constrained = constraints{devices: n.ConstrainDevices, cores: n.ConstrainCores}
	s.Log = append(s.Log, n.Log...)
	s.split(request.MIG)
	for index, doubt := range n.Doubt {
		if doubt != "" {
			s.log("gres index %d: %s", index, doubt)
		}
	}
	return s, nil
}

func lookup(environment map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value, found := environment[name]
		return value, found && value != ""
	}
}

func (s *Step) log(format string, arguments ...any) {
	s.Log = append(s.Log, fmt.Sprintf(format, arguments...))
}

// Lose takes a GPU out of the step that cannot be used, such as one that fell
// off the bus. Its gres index stays what it is.
func (s *Step) Lose(gpu int, why error) {
	s.log("gpu %s: %v: it is left out", s.Machine.GPUs[gpu].PCI, why)
	s.Devices[gpu] = ""
	for index := range s.Order {
		if s.Order[index] == gpu {
			s.Order[index] = -1
		}
	}
}
