package doctor

import (
	"context"
	"os"
	"slices"

	"gputune/internal/idset"
)

// interrupts: those of GPUs and NICs are handled by CPUs near them.
func interrupts(_ context.Context, h *Host) []Finding {
	m := h.Node.Machine
	nodes := make(map[string]idset.Set)
	for _, gpu := range m.GPUs {
		nodes[gpu.PCI] = gpu.Nodes
	}
	for _, nic := range m.NICs {
		nodes[nic.PCI] = nic.Nodes
	}
	named := h.devices()
	var found []Finding
	all := 0
	var devices []string
	for pci := range nodes {
		devices = append(devices, pci)
	}
	slices.Sort(devices)
	for _, pci := range devices {
		var near idset.Set
		for _, node := range m.Nodes {
			if nodes[pci].Has(node.ID) {
				near = near.Or(node.CPUs)
			}
		}
		entries, err := os.ReadDir(h.path("/sys/bus/pci/devices", pci, "msi_irqs"))
		if err != nil || near.Empty() {
			continue
		}
		var far idset.Set
		for _, entry := range entries {
			list, err := h.text("/proc/irq/" + entry.Name() + "/effective_affinity_list")
			if err != nil {
				continue // allocated, and nobody's handler
			}
			cpus, err := idset.Parse(list)
			if err != nil || cpus.Empty() {
				continue
			}
			all++
			if cpus.And(near).Empty() {
				far = far.Or(cpus)
			}
		}
		if !far.Empty() {
			found = append(found, warn("write its node's CPUs into /proc/irq/*/smp_affinity_list", "%s: interrupts are handled far away, by cpus %s", named[pci], far))
		}
	}
	if len(found) == 0 {
		found = append(found, ok("%d interrupts of GPUs and NICs are handled near them", all))
	}
	return found
}
