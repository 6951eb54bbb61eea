package doctor

import (
	"context"
	"strings"

	"gputune/internal/topology"
)

// gresOrder: each of Slurm's gres indices is known to be a GPU.
func gresOrder(_ context.Context, h *Host) []Finding {
	if len(h.Node.Order) == 0 {
		return []Finding{warn("see gres.conf and NodeName's Gres=", "Slurm manages no GPU of this node")}
	}
	var found []Finding
	for index, gpu := range h.Node.Order {
		switch {
		case gpu < 0:
			found = append(found, bad("compare gres.conf with ls /dev/nvidia*", "gres index %d is no GPU that is known here", index))
		case h.Node.Doubt[index] != "":
			found = append(found, warn("", "gres index %d: %s", index, h.Node.Doubt[index]))
		}
	}
	if len(found) == 0 {
		found = append(found, ok("%d gres indices are known GPUs", len(h.Node.Order)))
	}
	return found
}

// topologyKnown: each GPU has a node.
func topologyKnown(_ context.Context, h *Host) []Finding {
	m := h.Node.Machine
	var found []Finding
	var unknown []string
	for _, gpu := range m.GPUs {
		if gpu.Nodes.Empty() {
			unknown = append(unknown, gpu.PCI)
		}
	}
	switch {
	case len(m.GPUs) == 0:
		found = append(found, warn("see that the driver is loaded", "there is no NVIDIA GPU"))
	case len(unknown) > 0:
		found = append(found, bad("run gputune snapshot after each boot: NVML may know", "no source tells the NUMA node of %s", strings.Join(unknown, ", ")))
	default:
		found = append(found, ok("the NUMA nodes of %d GPUs are known", len(m.GPUs)))
	}
	for _, text := range m.Odd() {
		if !strings.Contains(text, "no source tells its NUMA node") {
			found = append(found, warn("see gputune topo", "%s", text))
		}
	}
	return found
}

// devices returns the addresses and names of GPUs and NICs.
func (h *Host) devices() map[string]string {
	named := make(map[string]string)
	for _, gpu := range h.Node.Machine.GPUs {
		named[gpu.PCI] = "gpu " + gpu.PCI
	}
	for _, nic := range h.Node.Machine.NICs {
		named[nic.PCI] = strings.Join(append([]string{"nic", nic.PCI}, nic.Names...), " ")
	}
	return named
}

// rdma tells whether a NIC is an RDMA device.
func rdma(m *topology.Machine, there func(string) bool) bool {
	for _, nic := range m.NICs {
		if there("/sys/bus/pci/devices/" + nic.PCI + "/infiniband") {
			return true
		}
	}
	return false
}
