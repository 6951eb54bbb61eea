package source

import "gputune/internal/topology"

// copyUnknown says what a copy of sys and proc leaves open: NVML's part, and
// whatever was not copied.
func copyUnknown(m *topology.Machine) []string {
	var unknown []string
	for _, missing := range []struct {
		none     bool
		sentence string
	}{
		{len(m.Nodes) == 0, "NUMA nodes are not stated."},
		{len(m.Packages) == 0, "Packages are not stated."},
		{len(m.L3) == 0, "L3 caches are not stated."},
		{len(m.GPUs) == 0, "GPUs are not stated."},
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
