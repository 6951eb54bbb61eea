// Package nic finds the network devices nearest to a task's GPUs.
package nic

import (
	"cmp"
	"slices"
	"strings"

	"gputune/internal/topology"
)

// Device is a network device that tasks can use.
type Device struct {
	topology.NIC
	Name string // how programs name it: the RDMA device's, mlx5_0, else the interface's, eth0
}

// Near are the devices for one task.
type Near struct {
	Best string   // the one that is the task's, "" if there is none
	All  []string // all that are as near, Best first
}

// Assign returns for each task the devices nearest to its GPUs. Devices are
// compared by how much of the way through the PCI bridges they share with a GPU,
// then by NUMA node; a task with several GPUs has those that are near to the most
// of them. Tasks that have the same nearest devices take turns, in their order.
// The same input gives the same result.
func Assign(tasks [][]topology.GPU, devices []Device) []Near {
	devices = slices.Clone(devices)
	slices.SortFunc(devices, func(a, b Device) int { return cmp.Or(cmp.Compare(a.PCI, b.PCI), cmp.Compare(a.Name, b.Name)) })
	used := map[string]int{}
	result := make([]Near, len(tasks))
	for i, gpus := range tasks {
		near := nearest(gpus, devices)
		if len(near) == 0 {
			continue
		}
		first := 0
		for j := range near {
			if used[near[j]] < used[near[first]] {
				first = j
			}
		}
		best := near[first]
		used[best]++
		result[i] = Near{Best: best, All: append([]string{best}, slices.Delete(slices.Clone(near), first, first+1)...)}
	}
	return result
}

// nearest returns the names of the devices that share the longest way with the
// GPUs, in order.
func nearest(gpus []topology.GPU, devices []Device) []string {
	if len(gpus) == 0 {
		return nil
	}
	most := -1
	var names []string
	for _, d := range devices {
		score := 0
		for _, gpu := range gpus {
			score += closeness(gpu, d.NIC)
		}
		switch {
		case score > most:
			most, names = score, []string{d.Name}
		case score == most:
			names = append(names, d.Name)
		}
	}
	return names
}

// closeness is 0 for devices of different or unknown nodes, 1 for those of one
// node, and one more for each bridge that both are behind.
func closeness(gpu topology.GPU, nic topology.NIC) int {
	shared := 0
	for _, a := range gpu.Bridges {
		if slices.ContainsFunc(nic.Bridges, func(b topology.Bridge) bool { return b.PCI == a.PCI }) {
			shared++
		}
	}
	if shared > 0 {
		return shared + 1
	}
	if !gpu.Nodes.And(nic.Nodes).Empty() {
		return 1
	}
	return 0
}

// isBond tells whether a name is that of a bond of RDMA devices.
func isBond(name string) bool { return strings.Contains(name, "bond") }
