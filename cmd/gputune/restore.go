package main

import (
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"gputune/conf"
	"gputune/internal/job"
	"gputune/internal/program"
)

func restoreCommand() *cobra.Command {
	var config string
	var one uint32
	var all bool
	command := &cobra.Command{
		Use:   "restore --job N | --all",
		Short: "Put back what jobs have changed on this node",
		Long: `Put back what jobs have changed on this node, as the Epilog does: after an
Epilog that could not, or one that never ran. It does not ask whether a job has
ended. Exit status 0 if nothing is left changed; it can be called any number of
times.`,
		Args: noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			// A reader that has gone must not end the work in the middle.
			signal.Ignore(unix.SIGPIPE)
			h, err := thisHost(config, command.OutOrStdout())
			if err != nil {
				return err
			}
			if all {
				return h.RestoreAll(command.Context())
			}
			if one == 0 {
				return refusal{errors.New("--job 0: want a job's number")}
			}
			return h.Restore(command.Context(), strconv.FormatUint(uint64(one), 10))
		},
	}
	configFlag(command, &config)
	command.Flags().Uint32Var(&one, "job", 0, "job `N`, whose changes are put back")
	command.Flags().BoolVar(&all, "all", false, "put back the changes of all jobs, running ones included")
	command.MarkFlagsMutuallyExclusive("job", "all")
	command.MarkFlagsOneRequired("job", "all")
	return command
}

// thisHost is this node for package job, with output for lines. A configuration
// with an error is refused: a person is there to mend it, and it may be in what it
// says of the ledger's place.
func thisHost(config string, output io.Writer) (*job.Host, error) {
	site, err := conf.Load(config)
	if err != nil {
		return nil, fmt.Errorf("%w: what jobs have changed is where it says", err)
	}
	h := program.Host(output)
	h.Site = site
	return h, nil
}
