package main

import (
	"strings"

	"github.com/spf13/cobra"

	"gputune/internal/option"
)

// judge is an option whose value can be checked.
type judge struct {
	name, forms string
	check       func(value string) error
}

// judges returns all options, in the order in which they are checked.
func judges() []judge {
	list := []judge{{option.BindName, option.BindForms, func(value string) error {
		_, err := option.ParseBind(value, option.DefaultBind())
		return err
	}}}
	for _, o := range option.JobOptions() {
		list = append(list, judge{o.Name, o.Forms, o.Check})
	}
	return list
}

// check judges values by the names of their options.
func check(list []judge, values map[string]string) error {
	for _, j := range list {
		value, given := values[j.name]
		if !given {
			continue
		}
		if err := j.check(value); err != nil {
			return refusal{err}
		}
	}
	return nil
}

// quickCheck does what checkCommand does with arguments in the form in which the
// plugin gives them, "check --OPTION=VALUE", and leaves every other to it.
func quickCheck(arguments []string) (err error, done bool) { //nolint:revive // done tells whether there is an error to look at
	if len(arguments) == 0 || arguments[0] != "check" {
		return nil, false
	}
	list := judges()
	values := make(map[string]string, len(arguments))
next:
	for _, argument := range arguments[1:] {
		name, value, _ := strings.Cut(argument, "=")
		for _, j := range list {
			if name == "--"+j.name && len(argument) > len(name) {
				values[j.name] = value
				continue next
			}
		}
		return nil, false
	}
	return check(list, values), true
}

func checkCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "check --OPTION=VALUE…",
		Short: "Check values of options as the plugin does at submission",
		Long: `Check values of the plugin's options, as it does itself at submission. Nothing
is looked up on this machine: a value that is accepted here can still be
refused on the node, by the site or by the GPU.

Exit status 0 if all are accepted, 3 if one is refused.`,
		Example: "  gputune check --gpu-numa-bind=cpus=exclusive,strict",
		Args:    cobra.NoArgs,
	}
	list := judges()
	for _, j := range list {
		command.Flags().String(j.name, "", "`VALUE` to check")
	}
	command.RunE = func(command *cobra.Command, _ []string) error {
		values := make(map[string]string)
		for _, j := range list {
			if flag := command.Flags().Lookup(j.name); flag.Changed {
				values[j.name] = flag.Value.String()
			}
		}
		return check(list, values)
	}
	completeItems(command, option.BindName)
	return command
}
