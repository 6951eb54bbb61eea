package topology

import (
	"slices"

	"gputune/internal/idset"
)

// NVML is the part of NVIDIA's management library that knows about topology.
// Package nvml implements it; it is an interface because that package cannot
// be linked into a library that is loaded with RTLD_NOW, as Slurm's plugins
// are.
type NVML interface {
	// Facts asks about all GPUs. cpus and nodes are one more than the highest
	// id of the machine's CPUs and NUMA nodes.
	Facts(cpus, nodes int) NVMLFacts
}

// NVMLFacts is what NVML says about a machine. All of it can be empty, and is
// where the library is not installed.
type NVMLFacts struct {
	Driver   string // nvmlSystemGetDriverVersion
	GPUs     []NVMLGPU
	Warnings []string // what was asked and refused
}

// NVMLGPU is what NVML says about one GPU. NVML's index is left out on
// purpose: GPUs are matched by their PCI address.
type NVMLGPU struct {
	PCI    string // in any form that NormalizePCI reads
	UUID   string
	Model  string
	Minor  int       // N of /dev/nvidiaN, -1 unknown
	Memory idset.Set // nvmlDeviceGetMemoryAffinity, NUMA nodes
	CPUs   idset.Set // nvmlDeviceGetCpuAffinity
	MIG    []string  // UUIDs of its MIG devices
}

// AddNVML adds what NVML says to the GPUs of the machine and resolves their
// locality again. Where NVML and the kernel's files differ, NVML is believed
// and the machine gets a warning.
func (m *Machine) AddNVML(nvml NVML) {
	nodes := 1
	for _, node := range m.Nodes {
		nodes = max(nodes, node.ID+1)
	}
	facts := nvml.Facts(m.CPUs.Or(m.Offline).Max()+1, nodes)
	warn := func(text string) {
		if !slices.Contains(m.Warnings, text) {
			m.Warnings = append(m.Warnings, text)
		}
	}
	for _, text := range facts.Warnings {
		warn(text)
	}
	if facts.Driver != "" {
		m.Driver = facts.Driver
	}
	answered := make(map[string]bool)
	for _, fact := range facts.GPUs {
		pci, err := NormalizePCI(fact.PCI)
		if err != nil {
			warn("NVML: " + err.Error())
			continue
		}
		i := slices.IndexFunc(m.GPUs, func(gpu GPU) bool { return gpu.PCI == pci })
		if i < 0 {
			warn("NVML: GPU " + pci + " is not among those that sysfs and the driver list")
			continue
		}
		answered[pci] = true
		if text := m.GPUs[i].addNVML(fact); text != "" {
			warn(text)
		}
	}
	for _, gpu := range m.GPUs {
		if len(facts.GPUs) > 0 && !answered[gpu.PCI] {
			warn("NVML: says nothing about GPU " + gpu.PCI)
		}
	}
	m.Resolve()
}

// addNVML returns a warning if NVML takes the GPU for another one.
func (gpu *GPU) addNVML(fact NVMLGPU) (warning string) {
	if gpu.UUID != "" && fact.UUID != "" && gpu.UUID != fact.UUID {
		warning = "GPU " + gpu.PCI + ": the driver's information file says " + gpu.UUID + ", NVML says " + fact.UUID
	}
	if fact.UUID != "" {
		gpu.UUID = fact.UUID
	}
	if fact.Minor >= 0 {
		gpu.Minor = fact.Minor
	}
	if fact.Model != "" {
		gpu.Model = fact.Model
	}
	gpu.NVMLMemory, gpu.NVMLCPUs, gpu.MIG = fact.Memory, fact.CPUs, fact.MIG
	return warning
}
