package job

import (
	"context"
	"fmt"
	"strings"

	"gputune/internal/ledger"
	"gputune/internal/setting"
	"gputune/internal/slurm"
)

// Holds tells whether the ledger may have something of the job: whether Epilog
// has work that can take time.
func (h *Host) Holds() bool {
	id, err := slurm.JobID(h.getenv)
	return err == nil && h.held(id)
}

// Epilog puts back what the job that the environment names has changed and
// removes the reports on it. An error means that the node is not what it was.
func (h *Host) Epilog(ctx context.Context) error {
	id, err := slurm.JobID(h.getenv)
	if err != nil {
		return err
	}
	if h.SiteError != nil {
		h.say("%v: the defaults are used, but for its paths", h.SiteError)
	}
	h.ended(id)
	if h.held(id) {
		err = h.release(ctx, id, "")
	}
	if err := h.reports().remove(id); err != nil {
		h.say("job %s: reports: %v", id, err) // no harm to the next job
	}
	return err
}

// SaidError is an error of which all that there is to say has been written.
type SaidError struct{ Err error }

// Error returns the error's text, for who wants it again.
func (e SaidError) Error() string { return e.Err.Error() }

// Unwrap returns the error.
func (e SaidError) Unwrap() error { return e.Err }

// release puts back what a job holds and writes a line for each result. Its
// error is a SaidError.
func (h *Host) release(ctx context.Context, id, why string) error {
	defer h.quiet(id)()
	l, env, err := h.Open()
	if err != nil {
		h.say("job %s: %v", id, err)
		return SaidError{err}
	}
	err = h.releaseFrom(ctx, l, id, why)
	if closed := env.Close(); closed != nil {
		h.say("%v", closed)
	}
	return err
}

// releaseFrom is release with the ledger open.
func (h *Host) releaseFrom(ctx context.Context, l *ledger.Ledger, id, why string) error {
	if why != "" {
		h.say("job %s: %s: putting it back", id, why)
	}
	again := newPatience(ctx)
	for {
		report, err := l.Release(ctx, id)
		h.describe(report.Outcomes)
		if err == nil {
			return nil
		}
		if report.Err() == nil {
			h.say("job %s: %v", id, err)
		}
		if !setting.Passes(err) || !again.wait(ctx) {
			return SaidError{err}
		}
		h.say("job %s: trying again to put back what is left", id)
	}
}

// describe writes lines for what Release did.
func (h *Host) describe(outcomes []ledger.Outcome) {
	var lines []line
	for _, o := range outcomes {
		lines = append(lines, line{o.Job, o.Key, became(o)})
	}
	for _, l := range together(lines) {
		h.say("%s", l)
	}
}

// Describe returns the line for what Release did about one key.
func Describe(o ledger.Outcome) string { return line{o.Job, o.Key, became(o)}.String() }

// became says what Release made of a key.
func became(o ledger.Outcome) string {
	switch o.Action {
	case ledger.Restored:
		return o.Prior + " again"
	case ledger.Unchanged:
		return o.Prior + " already"
	case ledger.StillHeld:
		return fmt.Sprintf("%s, as job %s wants it", o.Set, strings.Join(o.Holders, ", "))
	case ledger.Drifted:
		return fmt.Sprintf("somebody set %s instead of %s: left alone", o.Current, o.Set)
	case ledger.Forgotten:
		return "forgotten when the machine booted"
	case ledger.Failed:
		return strings.TrimPrefix(o.Err.Error(), fmt.Sprintf("job %s: %s: ", o.Job, o.Key))
	}
	return string(o.Action)
}
