package hwloc

import (
	"cmp"
	"fmt"
	"slices"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

// memoryOnly are the subtypes of nodes that the kernel gives no CPUs. hwloc
// states for them the CPUs that they are near to.
var memoryOnly = []string{"MCDRAM", "HBM", "GPUMemory", "SPM", "NVM", "CXL-DRAM", "CXL-NVM"}

// finish puts into order what was read, and finds out what follows from it.
func (r *reader) finish() error {
	m := r.m
	for _, e := range r.old {
		if err := r.distances1(e); err != nil {
			return err
		}
	}
	if r.online != nil {
		m.Offline = m.CPUs.AndNot(*r.online)
		m.CPUs = m.CPUs.And(*r.online)
		r.dropOffline()
	}
	if len(m.Nodes) == 0 && r.memory >= 0 {
		// hwloc 1 has no node where the kernel has node 0 only.
		m.Nodes = append(m.Nodes, topology.Node{ID: 0, CPUs: m.CPUs, MemoryMiB: r.memory})
	}
	r.nodeCPUs()
	slices.SortFunc(m.Nodes, func(a, b topology.Node) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortStableFunc(m.Packages, func(a, b topology.Package) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(m.Cores, func(a, b topology.Core) int { return cmp.Compare(a.CPUs.Min(), b.CPUs.Min()) })
	slices.SortFunc(m.L3, func(a, b topology.L3Group) int { return cmp.Compare(a.CPUs.Min(), b.CPUs.Min()) })
	m.SortDevices()
	m.Resolve()
	r.sayWhatIsMissing()
	return nil
}

// dropOffline takes CPUs that are not online from what they are part of.
func (r *reader) dropOffline() {
	m := r.m
	for i := range m.Packages {
		m.Packages[i].CPUs = m.Packages[i].CPUs.And(m.CPUs)
	}
	for i := range m.Cores {
		m.Cores[i].CPUs = m.Cores[i].CPUs.And(m.CPUs)
	}
	for i := range m.L3 {
		m.L3[i].CPUs = m.L3[i].CPUs.And(m.CPUs)
	}
	m.Packages = slices.DeleteFunc(m.Packages, func(p topology.Package) bool { return p.CPUs.Empty() })
	m.Cores = slices.DeleteFunc(m.Cores, func(c topology.Core) bool { return c.CPUs.Empty() })
	m.L3 = slices.DeleteFunc(m.L3, func(l topology.L3Group) bool { return l.CPUs.Empty() })
}

// nodeCPUs takes CPUs from nodes that have none of their own, and warns of
// nodes that have the same.
func (r *reader) nodeCPUs() {
	var owned idset.Set
	for _, node := range r.m.Nodes {
		if !slices.Contains(memoryOnly, r.subtype[node.ID]) {
			owned = owned.Or(node.CPUs)
		}
	}
	var covered idset.Set
	for i := range r.m.Nodes {
		node := &r.m.Nodes[i]
		if slices.Contains(memoryOnly, r.subtype[node.ID]) && node.CPUs.SubsetOf(owned) {
			node.CPUs = idset.Set{}
		}
		node.CPUs = node.CPUs.And(r.m.CPUs)
		if shared := node.CPUs.And(covered); !shared.Empty() {
			r.m.Warnings = append(r.m.Warnings, fmt.Sprintf("node %d: CPUs %s belong to another node already", node.ID, shared))
		}
		covered = covered.Or(node.CPUs)
	}
}

func (r *reader) sayWhatIsMissing() {
	m := r.m
	if len(r.seen) == 0 {
		r.say("PCI devices are not stated.")
	} else if len(m.GPUs) == 0 {
		r.say("GPUs are not stated.")
	}
	for _, missing := range []struct {
		what string
		none bool
	}{
		{"NUMA nodes", len(m.Nodes) == 0},
		{"Packages", len(m.Packages) == 0},
		{"Cores", len(m.Cores) == 0},
		{"L3 caches", len(m.L3) == 0},
		{"Distances between nodes", len(m.Nodes) > 1 && !slices.ContainsFunc(m.Nodes, func(n topology.Node) bool { return n.Distances != nil })},
	} {
		if missing.none {
			r.say("%s are not stated.", missing.what)
		}
	}
	var lost []string
	for _, gpu := range m.GPUs {
		if gpu.Nodes.Empty() {
			lost = append(lost, gpu.PCI)
		}
	}
	for _, pci := range lost {
		r.say("The NUMA node of GPU %s is not stated.", pci)
	}
}
