package job

import (
	"context"
	"errors"

	"gputune/conf"
	"gputune/internal/ledger"
	"gputune/internal/nodeplan"
	"gputune/internal/setting"
	"gputune/internal/topology"
)

// plan plans settings of the node for the job. An error is why they cannot be had,
// or a fault.
func (s *scene) plan(ctx context.Context, profile conf.Profile) (nodeplan.Plan, error) {
	n, err := s.read()
	if err != nil {
		return nodeplan.Plan{}, err
	}
	shared := n.Shared(s.job)
	job := nodeplan.Job{
		Machine: n.Machine, Alone: shared == nil, WhyShared: shared,
		// CPUs stay unknown: slurmd tells how many they are, and not which.
		HugepagesPercent: int(s.site.Hugepages.MaxPercent),
	}
	wants := profile.Wants()
	has := func(key string) bool { _, is := wants[key]; return is }
	if (has("hugepages") || has("irqs") || has("gpu_clocks")) && s.job.HasGPUs() {
		if n.Unread != nil {
			return nodeplan.Plan{}, fault{n.Unread}
		}
		near, err := n.Near(s.job)
		if err != nil {
			return nodeplan.Plan{}, fault{err}
		}
		for _, position := range near {
			job.GPUs = append(job.GPUs, n.Machine.GPUs[position])
		}
	}
	if has("irqs") && len(job.GPUs) > 0 && len(n.Machine.NICs) == 0 { // a snapshot has them, what a step reads has not
		whole, err := topology.Read(string(s.site.Paths.Machine), topology.Options{NICs: true})
		if err != nil {
			return nodeplan.Plan{}, fault{err}
		}
		machine := *n.Machine
		machine.NICs, job.Machine = whole.NICs, &machine
	}
	return nodeplan.New(ctx, s.env, profile, job)
}

// alone tells whether the job has the node for itself.
func (s *scene) alone() bool {
	n, err := s.read()
	return err == nil && n.Shared(s.job) == nil
}

// changesOf returns what a plan sets.
func (s *scene) changesOf(plan nodeplan.Plan) ([]ledger.Change, error) {
	changes := make([]ledger.Change, 0, len(plan.Wishes))
	for _, w := range plan.Wishes {
		parsed, err := setting.Parse(s.env, w.Key)
		if err != nil {
			return nil, err
		}
		changes = append(changes, ledger.Change{Setting: parsed, Value: w.Value})
	}
	return changes, nil
}

// single plans one option for the node by itself. In its error the key that the
// option would have in a profile is left out.
func (s *scene) single(ctx context.Context, asked conf.NodeOptions) (nodeplan.Plan, error) {
	plan, err := s.plan(ctx, s.site.With(conf.Profile{}, asked))
	if refused := (*nodeplan.RefusedError)(nil); errors.As(err, &refused) {
		err = refused.Reason
	}
	return plan, err
}
