package main

import (
	"github.com/spf13/cobra"

	"gputune/internal/option"
)

func checkCommand() *cobra.Command {
	var bind string
	command := &cobra.Command{
		Use:   "check --" + option.BindName + " ITEMS",
		Short: "Check the value of an option: exit status 0 if it is accepted, 3 if it is refused",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if _, err := option.ParseBind(bind, option.DefaultBind()); err != nil {
				return refusal{err}
			}
			return nil
		},
	}
	command.Flags().StringVar(&bind, option.BindName, "", "value to check")
	return command
}
