package compare

import (
	"cmp"
	"fmt"
	"slices"

	"gputune/internal/idset"
)

// torchrun models PyTorch's --numa-binding: local rank n uses GPU n, a numa_node
// of -1 counts as node 0, CPUs outside the grant are left out, and an error ends
// the launch where none is left. It sets no memory policy.
func (s *step) torchrun(choose func(gpu, node int, cpus idset.Set) (idset.Set, string)) func(int) (cpus, mems idset.Set, failure string) {
	return func(task int) (cpus, mems idset.Set, failure string) {
		if len(s.gpus[task]) == 0 {
			return s.granted, idset.Set{}, ""
		}
		gpu := s.gpus[task][0]
		node := s.torchNodeOf(gpu)
		cpus, failure = choose(gpu, node, s.nodeCPUs(node).And(s.granted))
		if failure == "" && cpus.Empty() {
			failure = fmt.Sprintf("no CPU of node %d is granted", node)
		}
		return cpus, idset.Set{}, failure
	}
}

func (s *step) torchNodeOf(gpu int) int { return max(0, s.numaNode(gpu)) }

func (s *step) torchNode(_, _ int, cpus idset.Set) (idset.Set, string) { return cpus, "" }

// torchSocket takes all CPUs of the package that the node's lowest CPU is on.
func (s *step) torchSocket(_, node int, cpus idset.Set) (idset.Set, string) {
	lowest := s.nodeCPUs(node).Min()
	for _, p := range s.machine.Packages {
		if p.CPUs.Has(lowest) {
			return p.CPUs.And(s.granted), ""
		}
	}
	return cpus, ""
}

// mates returns the GPU's place among those of its node, and how many they are.
func (s *step) mates(gpu, node int) (place, count int) {
	for other := range s.machine.GPUs {
		if s.torchNodeOf(other) != node {
			continue
		}
		if other < gpu {
			place++
		}
		count++
	}
	return place, count
}

// torchExclusive divides the node's cores among all GPUs of the node, a core more
// for the first ones where they do not divide.
func (s *step) torchExclusive(gpu, node int, cpus idset.Set) (idset.Set, string) {
	place, count := s.mates(gpu, node)
	cores := s.coresIn(cpus)
	if len(cores) < count {
		return idset.Set{}, fmt.Sprintf("%d cores of node %d for %d GPUs", len(cores), node, count)
	}
	each, more := len(cores)/count, len(cores)%count
	start := place*each + min(place, more)
	end := start + each
	if place < more {
		end++
	}
	var share idset.Set
	for _, core := range cores[start:end] {
		share = share.Or(core)
	}
	return share, ""
}

// torchCoreComplex takes the L3 groups of the node in turn, the largest first.
func (s *step) torchCoreComplex(gpu, node int, cpus idset.Set) (idset.Set, string) {
	var groups []idset.Set
	for _, group := range s.machine.L3 {
		if in := group.CPUs.And(cpus); !in.Empty() {
			groups = append(groups, in)
		}
	}
	if len(groups) == 0 {
		return cpus, ""
	}
	slices.SortStableFunc(groups, func(a, b idset.Set) int {
		return cmp.Or(cmp.Compare(b.Len(), a.Len()), cmp.Compare(a.Min(), b.Min()))
	})
	place, _ := s.mates(gpu, node)
	return groups[place%len(groups)], ""
}
