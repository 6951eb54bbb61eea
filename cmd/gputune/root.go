package main

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// command returns the whole program.
func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "gputune",
		Short: "Where a GPU job's tasks run and why, and what jobs have changed on this node",
		Long: `Where a GPU job's tasks run and why, and what jobs have changed on this node.
srun, sbatch and salloc have gputune's options; this is what to look with.`,
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          knownCommand,
		RunE:          func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	root.SetHelpFunc(func(c *cobra.Command, _ []string) { fmt.Fprint(c.OutOrStdout(), helpText(c)) })
	root.SetUsageFunc(func(c *cobra.Command) error { fmt.Fprint(c.OutOrStderr(), helpText(c)); return nil })
	root.SetFlagErrorFunc(flagError)
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(topoCommand(), planCommand(), execCommand(), doctorCommand(), statusCommand(), restoreCommand(), verifyCommand(), reportCommand(), snapshotCommand(),
		checkCommand(), completionCommand(), itemsTopic())
	root.SetHelpCommand(helpCommand())
	root.InitDefaultHelpCmd() // as Execute does, so that the man pages show it
	for _, c := range append(root.Commands(), root) {
		c.DisableFlagsInUseLine = true
		c.InitDefaultHelpFlag()
		c.Flags().Lookup("help").Usage = "this text"
	}
	root.InitDefaultVersionFlag()
	root.Flags().Lookup("version").Usage = "print the version"
	return root
}

// knownCommand refuses what is no command, with the ones that it is near to.
func knownCommand(command *cobra.Command, arguments []string) error {
	if len(arguments) == 0 {
		return nil
	}
	return refusal{fmt.Errorf("command %q: %s", arguments[0], want(arguments[0], names(command)))}
}

// names returns the names of a command's commands and topics.
func names(command *cobra.Command) []string {
	var list []string
	for _, c := range command.Commands() {
		if isShown(c) {
			list = append(list, c.Name())
		}
	}
	return list
}

// flagError says which flags there are in place of one that is not, and names the
// flag before what is wrong with its value.
func flagError(command *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "":
		var names []string
		command.Flags().VisitAll(func(flag *pflag.Flag) {
			if !flag.Hidden {
				names = append(names, "--"+flag.Name)
			}
		})
		given := "--" + unknown.GetSpecifiedName()
		return fmt.Errorf("%s is no option of %q: %s", given, command.CommandPath(), want(given, names))
	case errors.As(err, &invalid):
		cause := invalid.Unwrap()
		var number *strconv.NumError
		if errors.As(cause, &number) {
			cause = errors.New("want a number")
		}
		return refusal{fmt.Errorf("--%s %q: %w", invalid.GetFlag().Name, invalid.GetValue(), cause)}
	}
	return err
}

// noArguments refuses arguments that are no options.
func noArguments(command *cobra.Command, arguments []string) error {
	if len(arguments) == 0 {
		return nil
	}
	return refusal{fmt.Errorf("argument %q: %s takes options alone: see %s --help", arguments[0], command.CommandPath(), command.CommandPath())}
}
