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
	done := h.releaseAll(ctx, func(string) bool { return false })
	h.describe(done.report.Outcomes)
	// A restore that was killed may have put a job back and left its reports.
	ids, unread := h.reports().applied()
	other := []error{done.other, unread}
	for _, id := range ids {
		other = append(other, h.Forget(id))
	}
	if done.report.Err() == nil {
		other = append(other, done.left)
	}
	if err := errors.Join(other...); err != nil {
		return err
	}
	if done.left != nil {
		return SaidError{done.left}
	}
	return nil
}
