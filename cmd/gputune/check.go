package main

import (
	"github.com/spf13/cobra"

	"gputune/internal/option"
)

func checkCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "check --OPTION=VALUE…",
		Short: "Check values of options: exit status 0 if all are accepted, 3 if one is refused",
		Args:  cobra.NoArgs,
	}
	checks := map[string]func(value string) error{
		option.BindName: func(value string) error {
			_, err := option.ParseBind(value, option.DefaultBind())
			return err
		},
	}
	for _, o := range option.JobOptions() {
		checks[o.Name] = o.Check
	}
	for name := range checks {
		command.Flags().String(name, "", "value to check")
	}
	command.RunE = func(command *cobra.Command, _ []string) error {
		for name, check := range checks {
			if !command.Flags().Changed(name) {
				continue
			}
			value, err := command.Flags().GetString(name)
			if err != nil {
				return err
			}
			if err := check(value); err != nil {
				return refusal{err}
			}
		}
		return nil
	}
	return command
}
