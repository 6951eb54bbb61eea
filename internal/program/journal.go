package program

import (
	"strings"

	"gputune/internal/journal"
)

// newJournal returns systemd's journal at a socket, "" none, for the lines of a
// program about a job: slurmd keeps what a Prolog writes only if that fails. Nobody
// waits for it, and a node without it has slurmd's log alone.
func newJournal(socket, name, job string) *journal.Writer {
	if socket == "" {
		return nil
	}
	fields := []journal.Field{{Name: "SYSLOG_IDENTIFIER", Value: name}}
	if job != "" && strings.Trim(job, "0123456789") == "" {
		fields = append(fields, journal.Field{Name: "GPUTUNE_JOB", Value: job})
	}
	return &journal.Writer{Path: socket, Fields: fields}
}
