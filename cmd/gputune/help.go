package main

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gputune/internal/table"
)

// helpWidth and helpHeight are a terminal's, in which every command's help fits.
const (
	helpWidth  = 80
	helpHeight = 24
)

// helpText is what --help shows: what the command does, how it is called, its
// commands or options, examples.
func helpText(c *cobra.Command) string {
	about := c.Long
	if about == "" {
		about = c.Short
	}
	parts := []string{about}
	if c.Runnable() {
		parts = append(parts, "Usage: "+synopsis(c))
	}
	var rows [][2]string
	for _, sub := range c.Commands() {
		if isShown(sub) {
			rows = append(rows, [2]string{sub.Name(), sub.Short})
		}
	}
	parts = append(parts, list(rows), list(options(c)), c.Example)
	var text []string
	for _, part := range parts {
		if part != "" {
			text = append(text, strings.TrimRight(part, "\n"))
		}
	}
	return strings.Join(text, "\n\n") + "\n"
}

// synopsis is how a command is called: "gputune topo [OPTION…]".
func synopsis(c *cobra.Command) string {
	if c.HasAvailableSubCommands() {
		return c.CommandPath() + " COMMAND"
	}
	return c.UseLine()
}

// isShown tells whether a command is listed.
func isShown(c *cobra.Command) bool {
	return c.Name() == "help" || c.IsAdditionalHelpTopicCommand() || c.IsAvailableCommand()
}

// options returns the names and texts of a command's options, --help last.
func options(c *cobra.Command) [][2]string {
	var rows, last [][2]string
	if !c.Runnable() {
		return nil
	}
	c.LocalFlags().VisitAll(func(flag *pflag.Flag) {
		value, usage := pflag.UnquoteUsage(flag)
		row := [2]string{strings.TrimRight("--"+flag.Name+" "+value, " "), usage}
		switch {
		case flag.Hidden:
		case flag.Name == "help":
			last = append(last, row)
		default:
			rows = append(rows, row)
		}
	})
	return append(rows, last...)
}

// list writes names and texts beside each other.
func list(rows [][2]string) string {
	width := 0
	for _, row := range rows {
		width = max(width, utf8.RuneCountInString(row[0]))
	}
	var b strings.Builder
	for _, row := range rows {
		text := strings.Join(table.Wrap(row[1], helpWidth-width-4), "\n"+strings.Repeat(" ", width+4))
		fmt.Fprintf(&b, "  %-*s  %s\n", width, row[0], text)
	}
	return b.String()
}

// helpCommand is "gputune help COMMAND".
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show what a command does, or what items mean",
		ValidArgsFunction: func(command *cobra.Command, arguments []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(arguments) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return names(command.Root()), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(command *cobra.Command, arguments []string) error {
			about := command.Root()
			if len(arguments) > 0 {
				found, _, err := about.Find(arguments)
				if err != nil || found == about {
					return knownCommand(about, arguments)
				}
				about = found
			}
			return about.Help()
		},
	}
}
