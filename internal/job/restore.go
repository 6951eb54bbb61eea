package job

import (
	"context"
	"errors"
	"io/fs"
	"strings"
)

// Restore puts back what a job has changed, whether it has ended or not, and
// removes the reports on it. It writes a line for each result. An error names
// what could not be put back.
func (h *Host) Restore(ctx context.Context, id string) error {
	err := h.release(ctx, id, "")
	return errors.Join(err, h.reports().remove(id))
}

// RestoreAll is Restore for every job that has changed something or has a
// report. It goes on after a failure.
func (h *Host) RestoreAll(ctx context.Context) error {
	l, env, err := h.open()
	if err != nil {
		return err
	}
	report, err := l.ReleaseAll(ctx, func(string) bool { return false })
	for _, outcome := range report.Outcomes {
		h.say("%s", Describe(outcome))
	}
	failed := []error{err, env.Close()}
	names, err := h.reports().List(reportsFolder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		failed = append(failed, err)
	}
	for _, name := range names {
		id, _, _ := strings.Cut(name, ".")
		failed = append(failed, h.reports().remove(id))
	}
	return errors.Join(failed...)
}
