package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"gputune/conf"
	"gputune/internal/ledger"
)

func statusCommand() *cobra.Command {
	var config, format string
	command := &cobra.Command{
		Use:   "status",
		Short: "Show what jobs have changed on this node: by whom, what was there before, what is there now",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if format != "text" && format != "json" {
				return refusal{fmt.Errorf("--format %q: want text or json", format)}
			}
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
			if format == "json" {
				return writeStatusJSON(command.OutOrStdout(), held)
			}
			return writeStatus(command.OutOrStdout(), held, time.Now())
		},
	}
	command.Flags().StringVar(&config, "config", "", "gputune.toml to read (default "+conf.File+")")
	command.Flags().StringVar(&format, "format", "text", "text or json")
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
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(struct {
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
