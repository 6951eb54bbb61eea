package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"gputune/conf"
	"gputune/internal/doctor"
	"gputune/internal/job"
	"gputune/internal/table"
)

func doctorCommand() *cobra.Command {
	var config, root string
	command := &cobra.Command{
		Use:   "doctor [OPTION…]",
		Short: "Look for what is wrong with gputune's installation and this node",
		Long: `Look for what is wrong with gputune's installation and this node: the plugin and
its release, Slurm's files, limits, cgroups, the order of GPUs, daemons that get
in the way, values of jobs that somebody else has set, PCIe links, interrupts.
Each line is ok, warn or bad, with what to do. Nothing is changed. Best run as
root on a compute node.

Exit status 0 if nothing is bad, 1 if something is.`,
		Args: noArguments,
	}
	configFlag(command, &config)
	command.Flags().StringVar(&root, "root", "/", "`FOLDER` with this node's files (default: /)")
	format := formatFlag(command, formatText, formatJSON)
	command.RunE = func(command *cobra.Command, _ []string) error {
		site, broken := conf.Load(config)
		h, err := doctor.Open(root, site, broken, os.LookupEnv)
		if err != nil {
			return err
		}
		if root == "/" {
			// What is wrong with the configuration is a finding.
			if host, err := thisHost(config, command.ErrOrStderr()); err == nil {
				h.Held = host.Held
			}
		}
		findings := doctor.Run(command.Context(), h)
		out := command.OutOrStdout()
		if format.value == formatJSON {
			err = writeJSON(out, struct {
				Findings []doctor.Finding `json:"findings"`
			}{findings})
		} else {
			err = writeFindings(out, findings, colours(out))
		}
		if err != nil {
			return err
		}
		for _, finding := range findings {
			if finding.Level == doctor.Bad {
				return job.SaidError{Err: errors.New("see what is bad")}
			}
		}
		return nil
	}
	return command
}

func writeFindings(w io.Writer, findings []doctor.Finding, colours bool) error {
	styles := map[doctor.Level]table.Style{doctor.OK: table.Good, doctor.Warn: table.Odd, doctor.Bad: table.Bad}
	list := table.Table{Head: []string{"CHECK", "LEVEL", "FOUND"}}
	count := make(map[doctor.Level]int)
	for _, f := range findings {
		count[f.Level]++
		list.Add(table.Text(f.Check), table.Cell{Text: string(f.Level), Style: styles[f.Level]}, table.Text(f.Text))
		if f.Do != "" {
			list.Add(table.Text(" "), table.Text(" "), table.Text("-> "+f.Do))
		}
	}
	if err := list.Write(w, colours); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%d ok, %d to look at, %d bad\n", count[doctor.OK], count[doctor.Warn], count[doctor.Bad])
	return err
}
