// Command gputune-prolog is Slurm's Prolog: it carries out the options that a job
// was submitted with (--gpu-clocks, --gpu-power, …) before the job starts.
//
// It always exits with 0: neither what a user asks for nor what goes wrong here
// drains a node. What it did is in /run/gputune/jobs, and the plugin tells the
// user.
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
		Name:     "gputune-prolog",
		Version:  version,
		Deadline: func(site conf.Config) time.Duration { return time.Duration(site.Job.PrologDeadline) },
		Quick:    func(h *job.Host) bool { return !h.Asks() },
		Work: func(ctx context.Context, h *job.Host) error {
			h.Prolog(ctx)
			return nil
		},
		Undo: func(ctx context.Context, h *job.Host) error { return h.Undo(ctx) },
		Lost: func(h *job.Host, why error) error {
			h.Lost(why)
			return nil
		},
	}.Main(os.Args[1:]))
}
