package job

import (
	"context"
	"errors"
	"strconv"

	"gputune/conf"
	"gputune/internal/idset"
	"gputune/internal/ledger"
	"gputune/internal/nodeplan"
	"gputune/internal/option"
	"gputune/internal/setting"
)

// hugepages is --hugepages: pools on the NUMA nodes of the job's GPUs.
type hugepages struct {
	want []option.Hugepages
	site conf.Hugepages
	plan nodeplan.Plan
}

func newHugepages(value string, site conf.Config) (wish, error) {
	want, err := option.ParseHugepages(value)
	return &hugepages{want: want, site: site.Hugepages}, err
}

func (w *hugepages) access() conf.Access { return w.site.Access }

// changes implements wish.
func (w *hugepages) changes(ctx context.Context, s *scene) (_ []ledger.Change, err error) {
	if !s.job.HasGPUs() {
		return nil, errors.New("the job has no GPU of its own on this node, and the hugepages go where its GPUs are")
	}
	if w.plan, err = s.single(ctx, conf.NodeOptions{Hugepages: w.want}); err != nil {
		return nil, w.explain(err)
	}
	return s.changesOf(w.plan)
}

// explain puts the nearest value as the option takes it in the place of the size of
// a pool, which has pages of others in it, too.
func (w *hugepages) explain(err error) error {
	value := (*setting.ValueError)(nil)
	if !errors.As(err, &value) {
		return err
	}
	most, err := strconv.ParseUint(value.Nearest, 10, 63)
	if err != nil {
		return value // it has none, or the option's already
	}
	near := ""
	if all, err := strconv.ParseUint(value.Value, 10, 63); err == nil && len(w.want) == 1 {
		one := w.want[0]
		if others := all - min(all, one.Count); most > others {
			one.Count = most - others
			near = option.HugepagesString([]option.Hugepages{one})
		}
	}
	return &setting.ValueError{Of: value.Of, Value: value.Value + " in all", Accepts: value.Accepts, Nearest: near}
}

// compacts implements compacting.
func (w *hugepages) compacts() idset.Set { return w.plan.Compact }
