package job

import (
	"context"

	"gputune/internal/conflict"
	"gputune/internal/ledger"
	"gputune/internal/setting"
	"gputune/internal/slurm"
)

// others names whoever else changes what a job has changed: a value that somebody
// had set in between, and programs that may do it next.
func (h *Host) others(job slurm.Job, result ledger.Report) {
	var keys []string
	for _, o := range result.Outcomes {
		keys = append(keys, o.Key)
		if o.Action == ledger.Retaken {
			h.say("job %s: %s: somebody had set %s under another job: it is %s again", job.ID, o.Key, o.Current, o.Set)
		}
	}
	found, err := conflict.Find(string(h.Site.Paths.Machine))
	if err != nil {
		h.say("job %s: %v", job.ID, err)
	}
	for _, f := range found {
		if f.Touches(keys...) {
			h.say("job %s: %v", job.ID, f)
		}
	}
}

// clearNode puts back what other jobs have left on a node that Slurm has given to
// this job alone: they have ended, and their Epilog could not do it or never ran.
// What cannot be put back is said, and in this job's way where both want the same
// key. Its error is a fault.
func (h *Host) clearNode(ctx context.Context, l *ledger.Ledger, s *scene) error {
	wants := false
	for _, a := range granted(s.options) {
		for _, change := range a.changes {
			wants = wants || setting.Domain(change.Setting.Key()) == setting.HostDomain
		}
	}
	if !wants || !s.alone() {
		return nil
	}
	holders, err := l.Holders(setting.HostDomain)
	if err != nil {
		return err
	}
	for _, holder := range holders {
		if holder == s.job.ID {
			continue
		}
		runs, err := slurm.HasStep(h.Root, holder)
		if err != nil {
			return err
		}
		if runs { // one that is suspended
			continue
		}
		if err := h.releaseFrom(ctx, l, holder, "it has ended and left the node changed"); err != nil {
			continue // it is said
		}
		if err := h.reports().remove(holder); err != nil {
			h.say("job %s: reports: %v", holder, err)
		}
	}
	return nil
}
