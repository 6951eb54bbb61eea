package smi

import (
	"fmt"
	"strings"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

func gpuLabel(number int) string { return fmt.Sprintf("GPU%d", number) }

// nics lists the NICs of the matrix. A NIC is on the node of the GPUs to which
// its link stays within one: NODE, PHB, PXB and PIX. SYS says nothing about the
// GPUs of virtual machines, and a NIC with SYS only has no known node.
func (b *builder) nics(m *topology.Machine) {
	if b.table == nil {
		return
	}
	var lost []string
	for at, name := range b.table.devices {
		if gpuName().MatchString(name) {
			continue
		}
		nic := topology.NIC{Names: []string{name}, NUMANode: -1}
		if device, ok := b.table.legend[name]; ok {
			nic.Names[0] = device
		}
		nic.Nodes = b.nicNodes(m, at)
		if nic.Nodes.Empty() {
			lost = append(lost, nic.Names[0])
		}
		m.NICs = append(m.NICs, nic)
	}
	if len(lost) > 0 {
		b.say("The NUMA node of NIC %s is not stated.", strings.Join(lost, ", "))
	}
	if len(m.NICs) > 0 {
		b.say("The PCI addresses of NICs are not stated.")
	}
}

func (b *builder) nicNodes(m *topology.Machine, at int) idset.Set {
	var nodes idset.Set
	for _, gpu := range m.GPUs {
		r := b.table.rows[b.gpuNames[gpu.Index]]
		if r == nil || gpu.Nodes.Empty() {
			continue
		}
		switch r.links[at] {
		case "NODE", "PHB", "PXB", "PIX":
			if !nodes.Empty() && !nodes.Equal(gpu.Nodes) {
				return idset.Set{}
			}
			nodes = gpu.Nodes
		}
	}
	return nodes
}
