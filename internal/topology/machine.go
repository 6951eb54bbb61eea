// Package topology knows what a machine consists of: NUMA nodes, packages,
// cores, L3 groups, GPUs and NICs, and which of them are near each other.
// It reads that from a movable root (/sys and /proc), from NVML through an
// interface, or from a snapshot; it decides nothing about placement.
package topology

import (
	"slices"

	"gputune/internal/idset"
)

// Machine is one computer as its source describes it. CPUs and nodes keep the
// kernel's numbers, which can have holes. Facts that the source does not state
// are empty, never guessed.
type Machine struct {
	Source   string    `json:"source"`             // the kind of source it was read from, one of the Kind… constants
	CPUs     idset.Set `json:"cpus"`               // online CPUs
	Offline  idset.Set `json:"offline,omitzero"`   // present CPUs that are not online
	Nodes    []Node    `json:"nodes"`              // by ascending ID
	Packages []Package `json:"packages"`           // by ascending ID
	Cores    []Core    `json:"cores"`              // by lowest CPU
	L3       []L3Group `json:"l3"`                 // by lowest CPU
	GPUs     []GPU     `json:"gpus"`               // by PCI address
	NICs     []NIC     `json:"nics"`               // by PCI address
	Driver   string    `json:"driver,omitempty"`   // version of the NVIDIA driver
	Warnings []string  `json:"warnings,omitempty"` // what looks wrong

	resolved []string // the warnings that the last Resolve added
}

// Node is one NUMA node. It may lack CPUs (memory of a GPU or an expander) or
// memory.
type Node struct {
	ID        int         `json:"id"`
	CPUs      idset.Set   `json:"cpus"`                // online CPUs
	MemoryMiB int64       `json:"memory_mib"`          // MemTotal of the node's meminfo, 0: no memory, MemoryUnknown
	Distances map[int]int `json:"distances,omitempty"` // to each node by its ID, ACPI SLIT units (10: itself)
}

// Package is one processor package (socket). Ids are not unique where the
// architecture numbers no packages.
type Package struct {
	ID   int       `json:"id"` // physical_package_id, -1 not numbered
	CPUs idset.Set `json:"cpus"`
}

// Core is one physical core; its CPUs are its hardware threads (SMT siblings).
type Core struct {
	CPUs idset.Set `json:"cpus"`
}

// L3Group is a set of CPUs that share one L3 cache (a core complex).
type L3Group struct {
	CPUs idset.Set `json:"cpus"`
}

// GPU is one NVIDIA GPU; files that describe other machines can have AMD's. It is named by PCI address and UUID; Index, Minor and
// Slurm's gres index are three further, different numberings.
type GPU struct {
	Index int    `json:"index"`           // position in Machine.GPUs, by PCI address (NVML's order)
	PCI   string `json:"pci"`             // "0000:47:00.0", "" where the source names GPUs by number only
	UUID  string `json:"uuid"`            // "GPU-…", "" unknown
	Minor int    `json:"minor"`           // N of /dev/nvidiaN, -1 unknown
	Model string `json:"model,omitempty"` // as the driver names it

	// What each source said.
	NUMANode   int       `json:"numa_node"`            // sysfs numa_node, -1 none
	LocalCPUs  idset.Set `json:"local_cpus,omitzero"`  // sysfs local_cpulist
	NVMLMemory idset.Set `json:"nvml_memory,omitzero"` // nvmlDeviceGetMemoryAffinity, scope node
	NVMLCPUs   idset.Set `json:"nvml_cpus,omitzero"`   // nvmlDeviceGetCpuAffinity
	Bridges    []Bridge  `json:"bridges,omitempty"`    // ancestors, nearest first
	MIG        []string  `json:"mig,omitempty"`        // UUIDs of its MIG devices ("MIG-…")

	// What follows from it (see Resolve).
	Nodes     idset.Set `json:"nodes"`                // local NUMA nodes that have CPUs, empty: unknown, the GPU is everywhere
	CPUs      idset.Set `json:"cpus"`                 // the CPU list that the source states for it
	NodesFrom string    `json:"nodes_from,omitempty"` // which source Nodes came from, one of the From… constants

	// CPUsDoubted marks a list that another one in the same source contradicts:
	// it is shown as stated, and is no base for a placement.
	CPUsDoubted bool `json:"cpus_doubted,omitempty"`
}

// Bridge is one PCI bridge above a device.
type Bridge struct {
	PCI       string    `json:"pci"`
	NUMANode  int       `json:"numa_node"` // -1 none
	LocalCPUs idset.Set `json:"local_cpus,omitzero"`
}

// NIC is one network or InfiniBand PCI function.
type NIC struct {
	PCI       string    `json:"pci"`
	Names     []string  `json:"names,omitempty"` // network interfaces and InfiniBand devices
	NUMANode  int       `json:"numa_node"`       // -1 none
	LocalCPUs idset.Set `json:"local_cpus,omitzero"`
	Bridges   []Bridge  `json:"bridges,omitempty"`
	Nodes     idset.Set `json:"nodes"` // local NUMA nodes that have CPUs, empty: unknown
}

// SortDevices puts GPUs and NICs into the order of their PCI addresses and
// numbers the GPUs. Devices whose address is not known keep their order, before
// all others.
func (m *Machine) SortDevices() {
	slices.SortStableFunc(m.GPUs, func(a, b GPU) int { return comparePCI(a.PCI, b.PCI) })
	slices.SortStableFunc(m.NICs, func(a, b NIC) int { return comparePCI(a.PCI, b.PCI) })
	for i := range m.GPUs {
		m.GPUs[i].Index = i
	}
}
