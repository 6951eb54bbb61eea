package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"gputune/internal/ledger"
)

func statusCommand() *cobra.Command {
	var config string
	command := &cobra.Command{
		Use:   "status [OPTION…]",
		Short: "Show what jobs have changed on this node and what was there before",
		Long: `Show what jobs have changed on this node: by whom, what was there before, what
was set, what is there now, and what is unusual about it.`,
		Args: noArguments,
	}
	configFlag(command, &config)
	format := formatFlag(command, formatText, formatJSON)
	command.RunE = func(command *cobra.Command, _ []string) error {
		h, err := thisHost(config, command.ErrOrStderr())
		if err != nil {
			return err
		}
		l, env, err := h.Open()
		if err != nil {
			return err
		}
		defer env.Close()
		held, err := l.Held(command.Context())
		if err != nil {
			return err
		}
		if format.value == formatJSON {
			return writeStatusJSON(command.OutOrStdout(), held)
		}
		return writeStatus(command.OutOrStdout(), held, time.Now())
	}
	return command
}

// status is one held key as "gputune status --format json" shows it.
type status struct {
	Job     string    `json:"job"`
	Key     string    `json:"key"`
	Before  string    `json:"before"`
	Set     string    `json:"set"`
	Now     string    `json:"now"` // "" if it cannot be read
	State   string    `json:"state"`
	Since   time.Time `json:"since"`
	Finding string    `json:"finding,omitempty"`
}

// finding says what is unusual about a held key.
func finding(h ledger.Holding) string {
	switch {
	case h.Forgotten:
		return "forgotten when the machine booted"
	case h.Err != nil:
		return h.Err.Error()
	case h.Drift:
		return "drift: somebody else set it"
	case h.State != ledger.StateApplied:
		return "not finished"
	}
	return ""
}

func writeStatusJSON(w io.Writer, held []ledger.Holding) error {
	list := []status{}
	for _, h := range held {
		list = append(list, status{h.Job, h.Key, h.Prior, h.Set, h.Current, h.State, h.Since, finding(h)})
	}
	return writeJSON(w, struct {
		Held []status `json:"held"`
	}{list})
}

func writeStatus(w io.Writer, held []ledger.Holding, now time.Time) error {
	if len(held) == 0 {
		_, err := fmt.Fprintln(w, "no job holds anything on this node")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "JOB\tSETTING\tBEFORE\tSET\tNOW\tSINCE\t")
	for _, h := range held {
		current := dash(h.Current)
		if h.WriteOnly {
			current = "unreadable"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%v\t%s\n", h.Job, h.Key, h.Prior, h.Set, current, now.Sub(h.Since).Round(time.Second), finding(h))
	}
	return table.Flush()
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
