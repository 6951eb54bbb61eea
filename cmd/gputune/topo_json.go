package main

import (
	"encoding/json"
	"io"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

// topoJSON is a machine as "gputune topo --format json" shows it.
type topoJSON struct {
	Source   string             `json:"source"`
	GPUs     []gpuJSON          `json:"gpus"`
	Nodes    []nodeJSON         `json:"nodes"`
	Packages []topology.Package `json:"packages"`
	NICs     []nicJSON          `json:"nics"`
	Warnings []string           `json:"warnings"`
}

// gpuJSON is a GPU as "topo" and "plan" show it.
type gpuJSON struct {
	Index int       `json:"index"`
	PCI   string    `json:"pci"`
	UUID  string    `json:"uuid"`
	Nodes idset.Set `json:"nodes"`
	CPUs  idset.Set `json:"cpus"`
}

type nodeJSON struct {
	ID        int         `json:"id"`
	CPUs      idset.Set   `json:"cpus"`
	MemoryMiB *int64      `json:"memory_mib,omitempty"` // absent: not known
	Distances map[int]int `json:"distances,omitempty"`
}

type nicJSON struct {
	PCI   string    `json:"pci"`
	Names []string  `json:"names"`
	Nodes idset.Set `json:"nodes"`
}

func gpusJSON(m *topology.Machine) []gpuJSON {
	list := []gpuJSON{}
	for _, gpu := range m.GPUs {
		list = append(list, gpuJSON{gpu.Index, gpu.PCI, gpu.UUID, gpu.Nodes, gpu.CPUs})
	}
	return list
}

func writeTopoJSON(w io.Writer, m *topology.Machine, warnings []string) error {
	view := topoJSON{
		Source: m.Source, GPUs: gpusJSON(m), Nodes: []nodeJSON{}, Packages: append([]topology.Package{}, m.Packages...),
		NICs: []nicJSON{}, Warnings: append([]string{}, warnings...),
	}
	for _, node := range m.Nodes {
		shown := nodeJSON{node.ID, node.CPUs, &node.MemoryMiB, node.Distances}
		if node.MemoryMiB == topology.MemoryUnknown {
			shown.MemoryMiB = nil
		}
		view.Nodes = append(view.Nodes, shown)
	}
	for _, nic := range m.NICs {
		view.NICs = append(view.NICs, nicJSON{nic.PCI, append([]string{}, nic.Names...), nic.Nodes})
	}
	return writeJSON(w, view)
}

func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}
