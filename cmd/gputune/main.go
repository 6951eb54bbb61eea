// Command gputune is gputune's program for people, and the one that the plugin
// runs to check an option where it is typed.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"gputune/internal/job"
)

// version is set by the linker.
var version = "unknown"

// Exit statuses. The plugin relies on exitRefused: any other failure of
// "gputune check" is the program's own and no reason to refuse a job.
const (
	exitFailed  = 1
	exitRefused = 3
)

// refusal is an error about a user's value that was judged and is not accepted.
type refusal struct{ error }

func main() {
	if err := command().Execute(); err != nil {
		var said job.SaidError
		if !errors.As(err, &said) {
			fmt.Fprintf(os.Stderr, "gputune: %v\n", err)
		}
		var refused refusal
		if errors.As(err, &refused) {
			os.Exit(exitRefused)
		}
		os.Exit(exitFailed)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "gputune",
		Short:         "Where a GPU job's tasks run and why, and what jobs have changed on this node",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(checkCommand(), topoCommand(), snapshotCommand(), statusCommand(), restoreCommand(), verifyCommand())
	return root
}
