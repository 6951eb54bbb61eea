package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"gputune/conf"
	"gputune/internal/nvml"
	"gputune/internal/snapshot"
)

func snapshotCommand() *cobra.Command {
	var config, output string
	command := &cobra.Command{
		Use:   "snapshot [OPTION…]",
		Short: "Keep what kernel and NVML say of this machine for the plugin",
		Long: `Ask the kernel and NVML about this machine and keep the answer for the plugin,
which never calls NVML itself. Worth it where sysfs does not tell a GPU's NUMA
node; run it after the driver was loaded. The plugin passes over a snapshot that
no longer fits the machine.`,
		Args: noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			site, err := conf.Load(config)
			if err != nil {
				return err
			}
			if output == "" {
				output = string(site.Paths.Snapshot)
			}
			machine, err := snapshot.Take(string(site.Paths.Machine), output, nvml.New())
			if err != nil {
				return err
			}
			if site.Paths.Machine == "/" { // NVML knows only this machine
				machine.AddNVML(nvml.New())
			}
			for _, warning := range machine.Warnings {
				fmt.Fprintf(command.ErrOrStderr(), "gputune: %s\n", warning)
			}
			return nil
		},
	}
	configFlag(command, &config)
	command.Flags().StringVar(&output, "output", "", "`FILE` to write (default: paths.snapshot of gputune.toml)")
	return command
}
