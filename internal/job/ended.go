package job

import (
	"context"
	"errors"
	"maps"
	"slices"

	"gputune/internal/ledger"
)

// Records returns which jobs hold something on this node. It loads no library.
func (h *Host) Records() ([]ledger.JobRecord, error) {
	l, env, err := h.Open()
	if err != nil {
		return nil, err
	}
	records, err := l.Jobs()
	return records, errors.Join(err, env.Close())
}

// Held returns what jobs hold and what is there now, as ledger.Held.
func (h *Host) Held(ctx context.Context) ([]ledger.Holding, error) {
	l, env, err := h.Open()
	if err != nil {
		return nil, err
	}
	held, err := l.Held(ctx)
	return held, errors.Join(err, env.Close())
}

// Reports returns what Prologs have reported on jobs whose Epilog has not come
// yet. What is no report, or goes meanwhile, is left out.
func (h *Host) Reports() ([]Report, error) {
	found, err := h.reports().all()
	var list []Report
	for _, id := range slices.Sorted(maps.Keys(found)) {
		if report := found[id]; report.Job == id {
			list = append(list, report)
		}
	}
	return list, err
}

// RestoreEnded puts back what jobs have changed that are not alive, and what is
// from before the last boot, and then removes the reports on them. alive is asked
// as ledger.ReleaseAll does. It goes on after a failure; the error names what
// could not be put back.
func (h *Host) RestoreEnded(ctx context.Context, alive func(job string) bool) ([]ledger.Outcome, error) {
	done := h.releaseAll(ctx, alive)
	return done.report.Outcomes, errors.Join(done.left, done.other)
}

// released is what putting back several jobs came to.
type released struct {
	report ledger.Report
	left   error // what could not be put back
	other  error // what else went wrong
}

// releaseAll puts back what jobs have changed that are not alive, and removes the
// reports on those of which nothing is left.
func (h *Host) releaseAll(ctx context.Context, alive func(job string) bool) released {
	defer h.quiet("")()
	l, env, err := h.Open()
	if err != nil {
		return released{other: err}
	}
	report, left := l.ReleaseAll(ctx, alive)
	failed := map[string]bool{}
	for _, outcome := range report.Outcomes {
		failed[outcome.Job] = failed[outcome.Job] || outcome.Err != nil
	}
	var other []error
	for id, any := range failed {
		if !any && !alive(id) { // it may have been requeued, and have a new report
			other = append(other, h.Forget(id))
		}
	}
	return released{report, left, errors.Join(append(other, env.Close())...)}
}

// Forget removes the reports on a job that holds nothing.
func (h *Host) Forget(id string) error {
	if h.held(id) {
		return nil
	}
	return h.reports().remove(id)
}
