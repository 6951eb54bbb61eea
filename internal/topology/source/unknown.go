package source

import "gputune/internal/topology"

// copyUnknown says what sys and proc, or a copy of them, leave open. That there
// are no GPUs or L3 caches can be the truth; files that were not copied are
// among the machine's warnings.
func copyUnknown(m *topology.Machine) []string {
	var unknown []string
	for _, missing := range []struct {
		none     bool
		sentence string
	}{
		{len(m.Nodes) == 0, "NUMA nodes are not stated."},
		{len(m.Packages) == 0, "Packages are not stated."},
	} {
		if missing.none {
			unknown = append(unknown, missing.sentence)
		}
	}
	for _, gpu := range m.GPUs {
		if gpu.Nodes.Empty() {
			unknown = append(unknown, "The NUMA node of GPU "+gpu.PCI+" is not stated.")
		}
	}
	return unknown
}
