// Command gputune is gputune's program for people, and the one that the plugin
// runs to check an option where it is typed.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

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

// Unwrap returns the error.
func (r refusal) Unwrap() error { return r.error }

// statusError is an error with an exit status of its own.
type statusError struct {
	error
	status int
}

// Unwrap returns the error.
func (s statusError) Unwrap() error { return s.error }

func main() {
	// At each submission the plugin waits for this one, so it comes before the
	// commands are put together.
	if err, done := quickCheck(os.Args[1:]); done {
		os.Exit(exitStatus(os.Stderr, err))
	}
	os.Exit(exitStatus(os.Stderr, command().Execute()))
}

// exitStatus writes why the program failed and returns its exit status.
func exitStatus(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	var said job.SaidError
	if !errors.As(err, &said) {
		fmt.Fprintf(w, "gputune: %v\n", err)
	}
	var own statusError
	var refused refusal
	switch {
	case errors.As(err, &own):
		return own.status
	case errors.As(err, &refused):
		return exitRefused
	}
	return exitFailed
}
