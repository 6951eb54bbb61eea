package topology

import (
	"cmp"
	"slices"

	"gputune/internal/idset"
)

// Nearness tells how near two PCI devices are to each other, in the words of
// "nvidia-smi topo -m".
type Nearness string

// The ways between two devices, the shortest first.
const (
	SameSwitch  Nearness = "PIX"  // over one PCIe switch at most
	SameBridges Nearness = "PXB"  // over several bridges, below one root port
	SameNode    Nearness = "NODE" // over a NUMA node
	FarNode     Nearness = "SYS"  // from one NUMA node to another
	NotKnown    Nearness = ""     // no source tells the node of one of them
)

// nearnesses is all of them in order.
var nearnesses = []Nearness{SameSwitch, SameBridges, SameNode, FarNode, NotKnown}

// Compare is below zero if n is the shorter way.
func (n Nearness) Compare(other Nearness) int {
	return slices.Index(nearnesses, n) - slices.Index(nearnesses, other)
}

// Near tells how near a GPU and a NIC are to each other.
func Near(gpu *GPU, nic *NIC) Nearness {
	near, _ := way(gpu, nic)
	return near
}

// way returns also how many bridges are on the way, where one is above both.
func way(gpu *GPU, nic *NIC) (near Nearness, bridges int) {
	for i, bridge := range gpu.Bridges {
		j := slices.IndexFunc(nic.Bridges, func(b Bridge) bool { return b.PCI == bridge.PCI })
		switch {
		case j < 0:
		case i <= 1 && j <= 1: // a switch is two bridges: its upstream port and one downstream for each device
			return SameSwitch, i + j + 1
		default:
			return SameBridges, i + j + 1
		}
	}
	switch {
	case gpu.Nodes.Empty() || nic.Nodes.Empty():
		return NotKnown, 0
	case gpu.Nodes.And(nic.Nodes).Empty():
		return FarNode, 0
	}
	return SameNode, 0
}

// NearestNICs returns the positions in NICs of those nearest to a GPU, and how
// near they are. NICs at other nodes, or at nodes not known, are near to none.
func (m *Machine) NearestNICs(gpu *GPU) ([]int, Nearness) {
	best, fewest := FarNode, 0
	var nics []int
	for i := range m.NICs {
		near, bridges := way(gpu, &m.NICs[i])
		switch c := cmp.Or(near.Compare(best), cmp.Compare(bridges, fewest)); {
		case near.Compare(SameNode) > 0 || len(nics) > 0 && c > 0:
		case len(nics) > 0 && c == 0:
			nics = append(nics, i)
		default:
			best, fewest, nics = near, bridges, []int{i}
		}
	}
	if len(nics) == 0 {
		return nil, NotKnown
	}
	return nics, best
}

// Odd returns what looks wrong or is worth knowing before tasks are placed, a
// line each: Warnings, nodes whose tasks would have no memory of their own, and
// GPUs that are split by MIG.
func (m *Machine) Odd() []string {
	lines := slices.Clone(m.Warnings)
	var without idset.Set
	for _, node := range m.Nodes {
		if node.MemoryMiB == 0 && !node.CPUs.Empty() {
			without.Add(node.ID)
		}
	}
	if !without.Empty() {
		lines = append(lines, "node "+without.String()+": has CPUs but no memory: its tasks use another node's")
	}
	for _, gpu := range m.GPUs {
		if len(gpu.MIG) > 0 {
			lines = append(lines, "GPU "+gpu.PCI+": MIG is on: jobs get its instances, which share it")
		}
	}
	return lines
}
