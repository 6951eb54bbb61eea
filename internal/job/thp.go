package job

import (
	"context"
	"errors"
	"slices"

	"gputune/conf"
	"gputune/internal/ledger"
	"gputune/internal/nodeplan"
	"gputune/internal/option"
)

// thp is --thp.
type thp struct {
	want option.THP
	site conf.THP
	// tasksOnly says that the job's steps see to it, and the node stays as it is.
	tasksOnly bool
}

func newTHP(value string, site conf.Config) (wish, error) {
	want, err := option.ParseTHP(value)
	return &thp{want: want, site: site.THP}, err
}

func (w *thp) access() conf.Access { return w.site.Access }

// changes implements wish. Tasks can be kept from transparent hugepages one by
// one, prctl(2) PR_SET_THP_DISABLE, so that a job that shares its node gets "never"
// all the same.
func (w *thp) changes(ctx context.Context, s *scene) ([]ledger.Change, error) {
	plan, err := s.single(ctx, conf.NodeOptions{THP: w.want})
	if shared := (*nodeplan.SharedError)(nil); errors.As(err, &shared) && w.want == option.THPNever {
		w.tasksOnly = true
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return s.changesOf(plan)
}

// note implements noted.
func (w *thp) note(o *Option) { o.TasksOnly = w.tasksOnly }

// thpDisable tells whether the job's tasks are to be kept from transparent
// hugepages by their steps.
func (s *scene) thpDisable() bool {
	return slices.ContainsFunc(s.options, func(a *asked) bool {
		w, is := a.wish.(*thp)
		return is && w.tasksOnly && (a.State == "" || a.State == Applied)
	})
}
