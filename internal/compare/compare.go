// Package compare works out where the tasks of a step would run if something else
// than gputune placed them: Slurm alone, a numactl for each GPU, or torchrun. It
// does no I/O; the models leave out what depends on more than the machine and the
// grant, and say so.
package compare

import (
	"gputune/internal/idset"
	"gputune/internal/placement"
	"gputune/internal/topology"
)

// Way is one way to place a step's tasks.
type Way struct {
	Name  string // a word or two: "slurm block"
	Means string // what one would type
	Tasks []Task // in the order of the plan
}

// Task is what one task gets.
type Task struct {
	LocalID   int                `json:"local_id"`
	GPUs      []int              `json:"gpus"`
	CPUs      idset.Set          `json:"cpus"`
	Mems      idset.Set          `json:"mems"`
	MemPolicy placement.MemMode  `json:"mem_policy"`
	Locality  placement.Locality `json:"locality"`
	Failure   string             `json:"failure,omitempty"` // why it would not start, "": it would
}

// Counts is how many tasks of a way are how near to their GPUs.
type Counts struct {
	Local   int `json:"local"`
	Mixed   int `json:"mixed"`
	Remote  int `json:"remote"`
	Unknown int `json:"unknown"`
	Failed  int `json:"failed"`
}

// Counts counts.
func (w Way) Counts() Counts {
	var c Counts
	for _, task := range w.Tasks {
		switch {
		case task.Failure != "":
			c.Failed++
		case task.Locality == placement.Local:
			c.Local++
		case task.Locality == placement.Mixed:
			c.Mixed++
		case task.Locality == placement.Remote:
			c.Remote++
		default:
			c.Unknown++
		}
	}
	return c
}

// All returns the plan itself and every other way, for the same grant and with
// the same GPUs for each task.
func All(machine *topology.Machine, request placement.Request, plan placement.Result) []Way {
	s := newStep(machine, request, plan)
	own := Way{Name: "gputune", Means: "srun --gpu-numa-bind"}
	for _, b := range plan.Tasks {
		own.Tasks = append(own.Tasks, Task{
			LocalID: b.LocalID, GPUs: b.GPUs, CPUs: b.CPUs, Mems: b.Mems, MemPolicy: b.MemPolicy, Locality: b.Locality,
		})
	}
	ways := []Way{own}
	for _, way := range []struct {
		name, means string
		place       func(task int) (cpus, mems idset.Set, failure string)
	}{
		{"slurm block", "srun --distribution=block:block --cpu-bind=cores, the cores divided by -c", s.slurmBlock()},
		{"slurm cyclic", "srun --distribution=block:cyclic --cpu-bind=cores, the cores divided by -c", s.slurmCyclic()},
		{"numactl", "numactl --cpunodebind=N --membind=N with the GPU's numa_node", s.numactl},
		{"torchrun node", "torchrun --numa-binding=node", s.torchrun(s.torchNode)},
		{"torchrun socket", "torchrun --numa-binding=socket", s.torchrun(s.torchSocket)},
		{"torchrun exclusive", "torchrun --numa-binding=exclusive", s.torchrun(s.torchExclusive)},
		{"torchrun core-complex", "torchrun --numa-binding=core-complex", s.torchrun(s.torchCoreComplex)},
	} {
		w := Way{Name: way.name, Means: way.means}
		for i, b := range plan.Tasks {
			task := Task{LocalID: b.LocalID, GPUs: b.GPUs, MemPolicy: placement.MemNone, Locality: placement.Unknown}
			if task.CPUs, task.Mems, task.Failure = way.place(i); task.Failure == "" {
				task.Locality = placement.Judge(machine, task.CPUs, task.GPUs)
			}
			if !task.Mems.Empty() {
				task.MemPolicy = placement.MemBind
			}
			w.Tasks = append(w.Tasks, task)
		}
		ways = append(ways, w)
	}
	return ways
}

// step is what the models need.
type step struct {
	machine *topology.Machine
	granted idset.Set
	mems    idset.Set // empty: all
	gpus    [][]int   // of each task
	cores   []idset.Set
}

func newStep(machine *topology.Machine, request placement.Request, plan placement.Result) *step {
	s := &step{machine: machine, granted: request.CPUs, mems: request.Mems}
	if s.granted.Empty() {
		s.granted = machine.CPUs
	}
	for _, b := range plan.Tasks {
		s.gpus = append(s.gpus, b.GPUs)
	}
	s.cores = s.coresIn(s.granted)
	return s
}

// coresIn cuts CPUs into cores, in the order of their numbers. A CPU whose core is
// not known is one.
func (s *step) coresIn(cpus idset.Set) []idset.Set {
	var cores []idset.Set
	rest := cpus
	for _, core := range s.machine.Cores {
		if in := core.CPUs.And(cpus); !in.Empty() {
			cores = append(cores, in)
			rest = rest.AndNot(in)
		}
	}
	for cpu := range rest.All() {
		cores = append(cores, idset.Of(cpu))
	}
	return cores
}

// nodeCPUs returns all CPUs of a node.
func (s *step) nodeCPUs(id int) idset.Set {
	for _, node := range s.machine.Nodes {
		if node.ID == id {
			return node.CPUs
		}
	}
	return idset.Set{}
}

// numaNode returns what a script reads in the numa_node file of a GPU: one node,
// or -1. Sources other than sysfs state nodes, of which it is the lowest.
func (s *step) numaNode(gpu int) int {
	g := &s.machine.GPUs[gpu]
	if g.NUMANode < 0 && s.machine.Source != topology.KindSysfs && s.machine.Source != topology.KindSnapshot {
		return g.Nodes.Min()
	}
	return g.NUMANode
}
