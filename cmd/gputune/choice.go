package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// choice is a flag that takes one of a few words.
type choice struct {
	value    string
	accepted []string
}

// String implements pflag.Value.
func (c *choice) String() string { return c.value }

// Type implements pflag.Value.
func (c *choice) Type() string { return "string" }

// Set implements pflag.Value.
func (c *choice) Set(value string) error {
	if !slices.Contains(c.accepted, value) {
		return errors.New(want(value, c.accepted))
	}
	c.value = value
	return nil
}

// The forms in which commands write what they found.
const (
	formatText = "text"
	formatJSON = "json"
	formatSVG  = "svg"
)

// formatFlag adds --format to a command; the first form is the default.
func formatFlag(command *cobra.Command, accepted ...string) *choice {
	c := &choice{accepted[0], accepted}
	command.Flags().Var(c, "format", "`FORM` of the output: "+strings.Join(accepted, ", "))
	complete(command, "format", accepted)
	return c
}

// complete offers words for a flag's value.
func complete(command *cobra.Command, flag string, words []string) {
	if err := command.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the command has no such flag
	}
}
