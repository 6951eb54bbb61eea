package job

import (
	"context"
	"errors"
)

// Restore puts back what a job has changed, whether it has ended or not, and
// then removes the reports on it. It writes a line for each result. An error
// names what could not be put back.
func (h *Host) Restore(ctx context.Context, id string) error {
	if err := h.release(ctx, id, ""); err != nil {
		return err
	}
	return h.reports().remove(id)
}

// RestoreAll puts back what all jobs have changed, and removes the reports on
// those: others have only been refused something, and may run. It goes on after
// a failure.
func (h *Host) RestoreAll(ctx context.Context) error {
	defer h.quiet("")()
	l, env, err := h.Open()
	if err != nil {
		return err
	}
	report, err := l.ReleaseAll(ctx, func(string) bool { return false })
	h.describe(report.Outcomes)
	failed := map[string]bool{}
	for _, outcome := range report.Outcomes {
		failed[outcome.Job] = failed[outcome.Job] || outcome.Err != nil
	}
	var other []error
	for id := range failed {
		if !failed[id] {
			other = append(other, h.reports().remove(id))
		}
	}
	// A restore that was killed may have put a job back and left its reports.
	ids, unread := h.reports().applied()
	other = append(other, unread)
	for _, id := range ids {
		if !h.held(id) {
			other = append(other, h.reports().remove(id))
		}
	}
	if err != nil && report.Err() == nil {
		other = append(other, err)
	}
	other = append(other, env.Close())
	if err := errors.Join(other...); err != nil {
		return err
	}
	if err != nil {
		return SaidError{err}
	}
	return nil
}
