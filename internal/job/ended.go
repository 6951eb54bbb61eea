package job

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"strings"

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
	r := h.reports()
	names, err := r.List(reportsFolder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []Report
	for _, name := range names {
		id, isReport := strings.CutSuffix(name, reportSuffix)
		if !isReport {
			continue
		}
		text, err := r.Read(reportName(id, reportSuffix))
		var report Report
		if err == nil && json.Unmarshal(text, &report) == nil && report.Job == id {
			list = append(list, report)
		}
	}
	return list, nil
}

// RestoreEnded puts back what jobs have changed that are not alive, and what is
// from before the last boot, and then removes the reports on them. alive is asked
// as ledger.ReleaseAll does. It goes on after a failure; the error names what
// could not be put back.
func (h *Host) RestoreEnded(ctx context.Context, alive func(job string) bool) ([]ledger.Outcome, error) {
	l, env, err := h.Open()
	if err != nil {
		return nil, err
	}
	report, err := l.ReleaseAll(ctx, alive)
	failures := []error{err}
	failed := map[string]bool{}
	for _, outcome := range report.Outcomes {
		failed[outcome.Job] = failed[outcome.Job] || outcome.Err != nil
	}
	for id, left := range failed {
		if !left && !h.held(id) && !alive(id) { // it may have been requeued, and have a new report
			failures = append(failures, h.reports().remove(id))
		}
	}
	failures = append(failures, env.Close())
	return report.Outcomes, errors.Join(failures...)
}

// Forget removes the reports on a job that holds nothing.
func (h *Host) Forget(id string) error {
	if h.held(id) {
		return nil
	}
	return h.reports().remove(id)
}
