// Package recovery decides which jobs have ended without their Epilog, from what
// they hold and from what the node shows of them. It reads nothing itself.
package recovery

import (
	"slices"
	"time"
)

// Trace is something of gputune's that a job has left: its record in the ledger,
// or a report. Written is when; a job that runs again writes again.
type Trace struct {
	Job     string
	Written time.Time
}

// Watch remembers since when traces have been without their job. A job counts as
// ended when that was so at every look for as long as Grace, because between a
// Prolog's end and the job's first slurmstepd a node shows nothing of it. The
// zero value with a Grace is ready.
type Watch struct {
	Grace time.Duration
	since map[Trace]time.Time
}

// Look takes one look and returns the jobs that have ended. left is everything
// that jobs have left, here the jobs that the node shows. next is after how long
// a further look can tell more, 0 if nothing is waited for. now must not go back:
// only its monotonic clock counts.
func (w *Watch) Look(now time.Time, left []Trace, here map[string]string) (ended []string, next time.Duration) {
	since := map[Trace]time.Time{}
	for _, trace := range left {
		if here[trace.Job] != "" {
			continue
		}
		first, known := w.since[trace]
		if !known {
			first = now
		}
		since[trace] = first
		wait := w.Grace - now.Sub(first)
		switch {
		case wait <= 0:
			ended = append(ended, trace.Job)
		case next == 0 || wait < next:
			next = wait
		}
	}
	w.since = since
	// A job is over when all that it has left is.
	for trace, first := range since {
		if now.Sub(first) < w.Grace {
			ended = slices.DeleteFunc(ended, func(job string) bool { return job == trace.Job })
		}
	}
	slices.Sort(ended)
	return slices.Compact(ended), next
}

// Forget starts over: it is for looks that could not tell.
func (w *Watch) Forget() { w.since = nil }
