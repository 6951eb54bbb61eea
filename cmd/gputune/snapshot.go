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
		Use:   "snapshot",
		Short: "Ask the kernel and NVML about this machine and keep the answer for the plugin",
		Long: "Ask the kernel and NVML about this machine and keep the answer for the plugin,\n" +
			"which never calls NVML itself. Worth it where sysfs does not tell a GPU's NUMA node;\n" +
			"run it after the driver was loaded. The plugin passes over a snapshot that no longer\n" +
			"fits the machine.",
		Args: cobra.NoArgs,
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
			for _, warning := range machine.Warnings {
				fmt.Fprintf(command.ErrOrStderr(), "gputune: %s\n", warning)
			}
			return nil
		},
	}
	command.Flags().StringVar(&config, "config", "", "gputune.toml to read (default "+conf.File+")")
	command.Flags().StringVar(&output, "output", "", "file to write (default: paths.snapshot of the configuration)")
	return command
}
