package job

import (
	"context"
	"errors"
	"maps"
	"slices"

	"gputune/conf"
	"gputune/internal/idset"
	"gputune/internal/ledger"
	"gputune/internal/nodeplan"
	"gputune/internal/option"
	"gputune/internal/setting"
)

// profile is --node-profile.
type profile struct {
	want conf.Profile
	none error // why there is no such profile
	site conf.Config
	plan nodeplan.Plan
}

func newProfile(value string, site conf.Config) (wish, error) {
	name, err := option.ParseNodeProfile(value)
	if err != nil {
		return nil, err
	}
	want, none := site.Profile(name)
	return &profile{want: want, none: none, site: site}, nil
}

func (w *profile) access() conf.Access { return w.site.NodeProfile.Access }

// changes implements wish. What the job asks for by an option of its own is left to
// that.
func (w *profile) changes(ctx context.Context, s *scene) ([]ledger.Change, error) {
	if w.none != nil {
		return nil, w.none
	}
	want := w.want
	for name, key := range map[string]*conf.Want{
		option.THPName: &want.THP, option.HugepagesName: &want.Hugepages,
		option.DropCachesName: &want.DropCaches, option.ClocksName: &want.GPUClocks,
	} {
		if _, given := s.value(name); given {
			*key = conf.Want{}
		}
	}
	var err error
	if w.plan, err = s.plan(ctx, want); err != nil {
		return nil, plain(err)
	}
	changes, err := s.changesOf(w.plan)
	if err != nil {
		return nil, err
	}
	locks, err := w.gpuClocks(ctx, s, want.GPUClocks)
	if err != nil {
		return nil, plain(err)
	}
	return append(changes, locks...), nil
}

// gpuClocks returns what locks the clocks of the job's GPUs. The site's bounds are
// those of --gpu-clocks; who may use that does not matter, the profile is the
// site's.
func (w *profile) gpuClocks(ctx context.Context, s *scene, want conf.Want) ([]ledger.Change, error) {
	if w.plan.GPUClocks == (option.Clocks{}) {
		return nil, nil
	}
	const key = "gpu_clocks"
	changes, err := eachGPU{clocks{w.plan.GPUClocks, w.site.Clocks}}.changes(ctx, s)
	switch nobodys := (fault{}); {
	case err == nil:
		return changes, nil
	case errors.As(err, &nobodys):
		return nil, err
	case errors.Is(err, setting.ErrUnsupported) && want.Missing != conf.MissingRefuses:
		w.plan.Skipped = append(w.plan.Skipped, nodeplan.Skip{Key: key, Reason: err})
		return nil, nil
	default:
		return nil, &nodeplan.RefusedError{Key: key, Reason: err}
	}
}

// plain keeps an error's text and leaves out the nearest value, which is none of
// the option's, unless it is a fault.
func plain(err error) error {
	if nobodys := (fault{}); errors.As(err, &nobodys) {
		return err
	}
	return errors.New(err.Error())
}

// explain implements explaining.
func (w *profile) explain(err error) error { return plain(err) }

// drops implements dropping.
func (w *profile) drops() option.Caches { return w.plan.DropCaches }

// compacts implements compacting.
func (w *profile) compacts() idset.Set { return w.plan.Compact }

// note implements noted.
func (w *profile) note(o *Option) {
	for _, skip := range w.plan.Skipped {
		o.Skipped = append(o.Skipped, Skipped{Key: skip.Key, Reason: skip.Reason.Error()})
	}
	for _, pci := range slices.Sorted(maps.Keys(w.plan.Unmovable)) {
		o.Unmovable = append(o.Unmovable, Unmovable{PCI: pci, IRQs: w.plan.Unmovable[pci]})
	}
}

// noSwap tells whether the job's cgroup is to have no swap.
func (s *scene) noSwap() bool {
	return slices.ContainsFunc(s.options, func(a *asked) bool {
		w, is := a.wish.(*profile)
		return is && w.plan.NoSwap && (a.State == "" || a.State == Applied)
	})
}
