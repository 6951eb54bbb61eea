// Command gputune-epilog is Slurm's Epilog: it puts back what a job has changed.
//
// It exits with 0 if the node is what it was before the job; anything else
// drains the node, with the reason on standard error and so in slurmd's log.
package main

import (
	"context"
	"os"
	"time"

	"gputune/conf"
	"gputune/internal/job"
	"gputune/internal/program"
)

// version is set by the linker.
var version = "unknown"

func main() {
	os.Exit(program.Program{
		Name:     "gputune-epilog",
		Version:  version,
		Deadline: func(site conf.Config) time.Duration { return time.Duration(site.Job.EpilogDeadline) },
		Quick:    func(h *job.Host) bool { return !h.Holds() },
		Work:     func(ctx context.Context, h *job.Host) error { return h.Epilog(ctx) },
		Again:    true,
		Broken:   1,
		Lost:     func(_ *job.Host, why error) error { return why },
	}.Main(os.Args[1:]))
}
