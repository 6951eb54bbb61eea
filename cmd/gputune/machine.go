package main

import (
	"errors"

	"github.com/spf13/cobra"

	"gputune/internal/nvml"
	"gputune/internal/topology"
	"gputune/internal/topology/source"
)

// machineFlags say which machine a command is about.
type machineFlags struct {
	topology, root string
}

func (f *machineFlags) add(command *cobra.Command) {
	command.Flags().StringVar(&f.topology, "topology", "", "`FILE` or folder that describes a machine (default: this)")
	command.Flags().StringVar(&f.root, "root", "/", "`FOLDER` with sys and proc of this machine (default: /)")
	command.MarkFlagsMutuallyExclusive("topology", "root")
	if err := errors.Join(command.MarkFlagFilename("topology"), command.MarkFlagDirname("root")); err != nil {
		panic(err) // the flags are above
	}
}

// own tells whether it is this machine.
func (f *machineFlags) own() bool { return f.topology == "" || f.topology == "/" }

// read reads the machine. NVML knows only this one.
func (f *machineFlags) read() (*topology.Machine, topology.Source, error) {
	if !f.own() {
		return source.Open(f.topology)
	}
	from := topology.Source{Kind: topology.KindSysfs, File: f.root}
	machine, err := topology.Read(f.root, topology.Options{NICs: true})
	if err != nil {
		return nil, from, err
	}
	machine.AddNVML(nvml.New())
	return machine, from, nil
}
