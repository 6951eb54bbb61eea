package main

import (
	"github.com/spf13/cobra"

	"gputune/conf"
)

// configFlag adds --config to a command.
func configFlag(command *cobra.Command, file *string) {
	command.Flags().StringVar(file, "config", "", "`FILE` of settings (default: "+conf.File+")")
	if err := command.MarkFlagFilename("config", "toml"); err != nil {
		panic(err) // the flag is above
	}
}
