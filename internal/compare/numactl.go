package compare

import (
	"fmt"

	"gputune/internal/idset"
)

// numactl binds CPUs and memory to what numa_node says of the task's GPUs. It
// refuses a node that is none (-1), one without granted CPUs, and memory that the
// cpuset does not allow.
func (s *step) numactl(task int) (cpus, mems idset.Set, failure string) {
	for _, gpu := range s.gpus[task] {
		node := s.numaNode(gpu)
		if node < 0 {
			return idset.Set{}, idset.Set{}, fmt.Sprintf("numa_node is %d, which is no node", node)
		}
		mems.Add(node)
		cpus = cpus.Or(s.nodeCPUs(node))
	}
	cpus = cpus.And(s.granted)
	switch {
	case mems.Empty():
		return s.granted, mems, ""
	case cpus.Empty():
		return cpus, idset.Set{}, fmt.Sprintf("no CPU of node %s is granted", mems)
	case !s.mems.Empty() && !mems.SubsetOf(s.mems):
		return idset.Set{}, idset.Set{}, fmt.Sprintf("memory of node %s is not granted", mems.AndNot(s.mems))
	}
	return cpus, mems, ""
}
