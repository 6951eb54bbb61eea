package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"gputune/internal/idset"
	"gputune/internal/nvml"
	"gputune/internal/topology"
)

func topoCommand() *cobra.Command {
	var root, format string
	command := &cobra.Command{
		Use:   "topo",
		Short: "Show NUMA nodes, GPUs and NICs of this machine and who is near whom",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if format != "text" && format != "json" {
				return refusal{fmt.Errorf("--format %q: want text or json", format)}
			}
			machine, err := readMachine(root)
			if err != nil {
				return err
			}
			if format == "json" {
				return writeTopoJSON(command.OutOrStdout(), machine)
			}
			return writeTopo(command.OutOrStdout(), machine)
		},
	}
	command.Flags().StringVar(&root, "topology", "/", "folder whose sys and proc describe the machine")
	command.Flags().StringVar(&format, "format", "text", "text or json")
	return command
}

// readMachine reads the machine below root. NVML knows only this machine.
func readMachine(root string) (*topology.Machine, error) {
	machine, err := topology.Read(root, topology.Options{NICs: true})
	if err != nil {
		return nil, err
	}
	if root == "/" {
		machine.AddNVML(nvml.New())
	}
	return machine, nil
}

// topo is the machine as "gputune topo --format json" shows it.
type topo struct {
	Source   string             `json:"source"`
	GPUs     []topoGPU          `json:"gpus"`
	Nodes    []topology.Node    `json:"nodes"`
	Packages []topology.Package `json:"packages"`
	NICs     []topoNIC          `json:"nics"`
	Warnings []string           `json:"warnings"`
}

type topoGPU struct {
	Index int       `json:"index"`
	PCI   string    `json:"pci"`
	UUID  string    `json:"uuid"`
	Nodes idset.Set `json:"nodes"`
	CPUs  idset.Set `json:"cpus"`
}

type topoNIC struct {
	PCI   string    `json:"pci"`
	Names []string  `json:"names"`
	Nodes idset.Set `json:"nodes"`
}

func writeTopoJSON(w io.Writer, m *topology.Machine) error {
	view := topo{
		Source: m.Source, GPUs: []topoGPU{}, Nodes: m.Nodes, Packages: m.Packages,
		NICs: []topoNIC{}, Warnings: append([]string{}, m.Warnings...),
	}
	for _, gpu := range m.GPUs {
		view.GPUs = append(view.GPUs, topoGPU{gpu.Index, gpu.PCI, gpu.UUID, gpu.Nodes, gpu.CPUs})
	}
	for _, nic := range m.NICs {
		view.NICs = append(view.NICs, topoNIC{nic.PCI, append([]string{}, nic.Names...), nic.Nodes})
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(view)
}

func writeTopo(w io.Writer, m *topology.Machine) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tCPUS\tMEMORY\tGPUS\tNICS")
	for _, node := range m.Nodes {
		var gpus, nics []string
		for _, gpu := range m.GPUs {
			if gpu.Nodes.Has(node.ID) {
				gpus = append(gpus, fmt.Sprint(gpu.Index))
			}
		}
		for _, nic := range m.NICs {
			if nic.Nodes.Has(node.ID) {
				nics = append(nics, strings.Join(nic.Names, "+"))
			}
		}
		fmt.Fprintf(table, "%d\t%s\t%d MiB\t%s\t%s\n", node.ID, dash(node.CPUs.String()), node.MemoryMiB,
			dash(strings.Join(gpus, ",")), dash(strings.Join(nics, " ")))
	}
	fmt.Fprintln(table, "\nGPU\tPCI\tNODE\tCPUS\tKNOWN FROM\tUUID")
	for _, gpu := range m.GPUs {
		nodes := gpu.Nodes.String()
		if gpu.Nodes.Empty() {
			nodes = "unknown"
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\n", gpu.Index, gpu.PCI, nodes, dash(gpu.CPUs.String()), dash(gpu.NodesFrom), dash(gpu.UUID))
	}
	for _, warning := range m.Warnings {
		fmt.Fprintf(table, "\nwarning: %s\n", warning)
	}
	return table.Flush()
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
