package main

import (
	"errors"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"gputune/internal/job"
	"gputune/internal/verify"
)

func verifyCommand() *cobra.Command {
	var self bool
	command := &cobra.Command{
		Use:   "verify [JOB | PID | --self]",
		Short: "Compare bound tasks with their plan: CPUs, memory policy, where pages are",
		Long: `Compare tasks that --gpu-numa-bind has bound with their plan: the CPUs that
each thread may use, the memory policy and where the pages are. Without an
argument, all tasks on this node; with a number, the job's, or that process and
what is below it; with --self, the process that runs this and what is below it.
Exit status 0 if all is as planned, 1 if not.`,
		Args: cobra.MaximumNArgs(1),
	}
	format := formatFlag(command, formatText, formatJSON)
	command.Flags().BoolVar(&self, "self", false, "the process that runs this, such as a job's script")
	command.RunE = func(command *cobra.Command, arguments []string) error {
		which := ""
		switch {
		case self && len(arguments) > 0:
			return refusal{errors.New("--self: takes no job and no process beside it")}
		case self:
			which = strconv.Itoa(os.Getppid())
		case len(arguments) > 0:
			which = arguments[0]
		}
		return runVerify(verify.This(), command.OutOrStdout(), which, self, format.value)
	}
	return command
}

func runVerify(host verify.Host, w io.Writer, which string, process bool, format string) error {
	tasks, err := host.Select(which, process)
	if err != nil {
		return err
	}
	checked, err := host.CheckAll(tasks)
	if err != nil {
		return err
	}
	if format == formatJSON {
		err = writeJSON(w, checked)
	} else {
		err = checked.Write(w)
	}
	if err == nil && checked.Off() {
		err = job.SaidError{Err: errors.New("not as planned")}
	}
	return err
}
