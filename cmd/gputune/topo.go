package main

import (
	"github.com/spf13/cobra"

	"gputune/internal/draw"
)

func topoCommand() *cobra.Command {
	var which machineFlags
	command := &cobra.Command{
		Use:   "topo [OPTION…]",
		Short: "Show nodes, CPUs, GPUs and NICs, who is near whom, and what looks wrong",
		Long: `Show a machine's NUMA nodes, CPUs, distances, GPUs and NICs, who is near whom
and how that is known, and what looks wrong. The machine is this one, or what a
FILE describes: a folder with a copy of /sys and /proc or a tar archive of one,
hwloc XML, NCCL topology XML, the text of nvidia-smi topo -m, or a snapshot.`,
		Example: `  gputune topo
  nvidia-smi topo -m >node.txt; gputune topo --topology node.txt
  gputune topo --format svg >node.svg`,
		Args: noArguments,
	}
	which.add(command)
	format := formatFlag(command, formatText, formatJSON, formatSVG)
	command.RunE = func(command *cobra.Command, _ []string) error {
		machine, source, err := which.read()
		if err != nil {
			return err
		}
		odd := machine.Odd()
		if which.own() {
			odd = append(odd, mpsServers(which.root)...)
		}
		out := command.OutOrStdout()
		switch format.value {
		case formatJSON:
			return writeTopoJSON(out, machine, append(odd, source.Unknown...))
		case formatSVG:
			return draw.Machine(machine).WriteSVG(out)
		}
		return topoText{machine, source, odd, colours(out)}.write(out)
	}
	return command
}
