package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// manSection is commands' section of the manual, topicSection the one of what is
// none.
const (
	manSection   = 1
	topicSection = 7
)

// manName is the name of a command's page: "gputune-topo".
func manName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// manFile is the name of a page's file: "gputune-topo.1".
func manFile(c *cobra.Command) string {
	if c.IsAdditionalHelpTopicCommand() {
		return fmt.Sprintf("%s.%d", manName(c), topicSection)
	}
	return fmt.Sprintf("%s.%d", manName(c), manSection)
}

// manPage is a command's page of the manual, from the texts that --help shows. The
// macros are those of man(7).
func manPage(c *cobra.Command) string {
	var b strings.Builder
	_, section, _ := strings.Cut(manFile(c), ".")
	fmt.Fprintf(&b, ".TH %s %s \"\" gputune \"gputune's manual\"\n", strings.ToUpper(manName(c)), section)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(manName(c)), roff(c.Short))
	if c.Runnable() {
		fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(synopsis(c)))
	}
	about := c.Long
	if about == "" {
		about = c.Short + "."
	}
	fmt.Fprintf(&b, ".SH DESCRIPTION\n%s", paragraphs(about))
	var commands [][2]string
	for _, sub := range c.Commands() {
		if isShown(sub) {
			commands = append(commands, [2]string{sub.Name(), sub.Short})
		}
	}
	terms(&b, "COMMANDS", commands)
	terms(&b, "OPTIONS", options(c))
	if c.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roff(c.Example))
	}
	fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n", strings.Join(others(c), ",\n"))
	return b.String()
}

// terms writes a section of words and what they mean.
func terms(b *strings.Builder, head string, rows [][2]string) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(b, ".SH %s\n", head)
	for _, row := range rows {
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", roff(row[0]), roff(row[1]))
	}
}

// paragraphs sets text: a blank line parts paragraphs, lines that begin with blanks
// stay as they are.
func paragraphs(text string) string {
	var b strings.Builder
	for i, paragraph := range strings.Split(strings.TrimSpace(text), "\n\n") {
		paragraph = strings.Trim(paragraph, "\n")
		if i > 0 {
			b.WriteString(".PP\n")
		}
		if strings.HasPrefix(paragraph, " ") {
			fmt.Fprintf(&b, ".nf\n%s\n.fi\n", roff(paragraph))
			continue
		}
		b.WriteString(roff(paragraph) + "\n")
	}
	return b.String()
}

// roff escapes text: a backslash, a dash that is to stay one, and what a line must
// not begin with.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "…", "...").Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

// others names the pages of the program and its other commands.
func others(c *cobra.Command) []string {
	var list []string
	for _, other := range append([]*cobra.Command{c.Root()}, c.Root().Commands()...) {
		if other != c && (isShown(other) || other == c.Root()) {
			name, section, _ := strings.Cut(manFile(other), ".")
			list = append(list, fmt.Sprintf("%s(%s)", roff(name), section))
		}
	}
	return list
}
