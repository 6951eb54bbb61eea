package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"gputune/internal/setting"
)

// step is one change of Apply, ready to be made.
type step struct {
	setting setting.Setting
	entry   entry
	before  string // what to put back instead of what is found; "" is what is found
	current string // what the key has now; "" for a write-only setting
	fresh   bool   // the job did not hold the key before
	write   bool   // the key has another value
	tried   bool   // Write was called
	done    bool   // and the key has its value
	outcome Outcome
}

// Apply changes settings for a job, in the order given. Either all of them have
// their values after it, or the error says why not and everything that the job
// held is put back.
//
// A value that the machine cannot take (*KeyError), a key that another job holds
// at another value (*HeldError) and a lock that is not to be had (*LockedError) are found
// before anything is changed. What goes wrong later is an *ApplyError.
//
// A job may apply again: what it holds already stays as it is and what is new
// is added. If it asks for another value of a key that it holds, all that it
// held is put back first. A record of the same job from before the last boot is
// released first.
func (l *Ledger) Apply(ctx context.Context, job string, changes []Change) (Report, error) {
	if err := checkJob(job); err != nil {
		return Report{}, err
	}
	steps, err := prepare(ctx, changes)
	if err != nil || len(steps) == 0 {
		return Report{}, err
	}
	if err := l.store.prepare(); err != nil {
		return Report{}, fmt.Errorf("ledger: %w", err)
	}
	unlockJob, err := l.lockJob(ctx, job)
	if err != nil {
		return Report{}, err
	}
	defer unlockJob()
	mine, err := l.store.loadMine(job)
	if err != nil {
		return Report{}, fmt.Errorf("ledger: %w", err)
	}
	keys := mine.keys()
	for _, s := range steps {
		keys = append(keys, s.entry.Key)
	}
	unlock, err := l.lockDomains(ctx, job, keys)
	if err != nil {
		return Report{}, err
	}
	defer unlock()

	if mine != nil && (mine.Boot != l.boot || asksOtherwise(mine, steps)) {
		report, err := l.release(ctx, mine, nil)
		if err != nil {
			return report, &ApplyError{Job: job, Err: errors.New("what it held before has to go first"), Rollback: report, Record: err}
		}
		mine = nil
	}
	others, err := l.holders(job)
	if err != nil {
		return Report{}, err
	}
	if err := plan(ctx, steps, mine, others); err != nil {
		return Report{}, err
	}
	return l.carryOut(ctx, job, mine, steps)
}

// prepare checks changes and makes steps of them.
func prepare(ctx context.Context, changes []Change) ([]*step, error) {
	steps := make([]*step, 0, len(changes))
	seen := map[string]bool{}
	for _, change := range changes {
		key := change.Setting.Key()
		if err := setting.CheckKey(key); err != nil {
			return nil, err
		}
		if seen[key] {
			return nil, fmt.Errorf("%s: asked for twice", key)
		}
		seen[key] = true
		value, err := change.Setting.Check(ctx, change.Value)
		if err != nil {
			return nil, &KeyError{key, err}
		}
		traits := change.Setting.Traits()
		e := entry{
			Key: key, Set: value, State: intent,
			Lifetime: traits.Lifetime, WriteOnly: traits.WriteOnly, Loose: traits.Loose,
		}
		before := ""
		if change.Before != "" {
			if before, err = change.Setting.Check(ctx, change.Before); err != nil {
				return nil, fmt.Errorf("value to put back: %w", err)
			}
		}
		if traits.WriteOnly {
			e.Prior = cmp.Or(before, traits.Neutral)
		}
		steps = append(steps, &step{setting: change.Setting, entry: e, before: before})
	}
	return steps, nil
}

// asksOtherwise tells whether a job wants another value of a key it holds.
func asksOtherwise(mine *record, steps []*step) bool {
	return slices.ContainsFunc(steps, func(s *step) bool {
		i := mine.find(s.entry.Key)
		return i >= 0 && mine.Entries[i].wanted() != s.entry.Set
	})
}

// plan reads the present values and fills in what each entry has to say. It
// changes nothing.
func plan(ctx context.Context, steps []*step, mine *record, others map[string][]holding) error {
	for _, s := range steps {
		e := &s.entry
		var base *entry // the entry of whoever set the key last
		for _, other := range others[e.Key] {
			if other.entry.wanted() != e.Set {
				return &HeldError{Key: e.Key, Job: other.job, Value: other.entry.wanted(), Wanted: e.Set}
			}
			s.outcome.Holders = append(s.outcome.Holders, other.job)
			if base == nil || other.entry.Epoch > base.Epoch {
				base = &other.entry
			}
		}
		own := mine.find(e.Key)
		if own >= 0 && (base == nil || mine.Entries[own].Epoch >= base.Epoch) {
			base = &mine.Entries[own]
		}
		if err := s.from(ctx, base); err != nil {
			return err
		}
		s.fresh = own < 0
		if !s.fresh && !s.write && mine.Entries[own].State == applied && mine.Entries[own].Epoch == e.Epoch {
			*e = mine.Entries[own]
		}
		s.outcome.Key, s.outcome.Prior, s.outcome.Set, s.outcome.Current = e.Key, e.Prior, e.Set, s.current
	}
	return nil
}

// from completes a step by what the key has now and, where somebody holds it,
// what is known from there.
func (s *step) from(ctx context.Context, base *entry) error {
	e := &s.entry
	s.write, s.outcome.Action = true, Set
	if base != nil {
		e.Prior, e.Found, e.Epoch = base.Prior, base.Found, base.Epoch
	}
	if e.WriteOnly {
		return nil
	}
	current, err := s.setting.Read(ctx)
	if err != nil {
		return &KeyError{e.Key, fmt.Errorf("read the value before: %w", err)}
	}
	s.current = current
	if base == nil {
		e.Prior = current
		if s.before != "" && s.before != current {
			e.Prior, e.Found = s.before, current
		}
		if current == e.Set {
			s.write, s.outcome.Action = false, Already
		}
		return nil
	}
	switch {
	case current == base.Set && base.State == applied:
		e.Asked, e.Set = base.Asked, base.Set // what a loose setting made of the value
		s.write, s.outcome.Action = false, Already
	case current == e.Set && !e.Loose:
		s.write, s.outcome.Action = false, Already
	case current != base.Prior && !base.ours(s.setting, current):
		e.Prior, e.Found, e.Epoch = current, "", base.Epoch+1
		s.outcome.Action = Retaken
	}
	return nil
}

// carryOut writes the intent, makes the changes and writes that they are made.
func (l *Ledger) carryOut(ctx context.Context, job string, mine *record, steps []*step) (Report, error) {
	next := &record{Job: job, Boot: l.boot}
	if mine != nil {
		next.Entries = slices.Clone(mine.Entries)
	}
	changed := false
	for _, s := range steps {
		i := next.find(s.entry.Key)
		switch {
		case i < 0:
			next.Entries = append(next.Entries, s.entry)
			changed = true
		case next.Entries[i] != s.entry:
			next.Entries[i] = s.entry
			changed = true
		}
		s.outcome.Job = job
	}
	var report Report
	if changed {
		if err := l.store.save(next, mine == nil, true); err != nil {
			err = fmt.Errorf("ledger: write what is about to change: %w", err)
			return report, l.undo(ctx, job, "", err, next, steps)
		}
	}
	for _, s := range steps {
		report.Outcomes = append(report.Outcomes, s.outcome)
		if !s.write {
			continue
		}
		if err := l.set(ctx, s); err != nil {
			return report, l.undo(ctx, job, s.entry.Key, err, next, steps)
		}
		next.Entries[next.find(s.entry.Key)] = s.entry
		report.Outcomes[len(report.Outcomes)-1].Set = s.entry.Set
	}
	if !changed {
		return report, nil
	}
	// An earlier Apply that was killed may have left entries of keys that this
	// one was not asked for; they stay what they are.
	durable := false
	for _, s := range steps {
		e := &next.Entries[next.find(s.entry.Key)]
		e.State = applied
		durable = durable || e.Loose && e.Lifetime == setting.Kept
	}
	// A power cut that leaves the intent in place of this does no harm to
	// settings that it resets, nor to those whose every value tells whose it is.
	if err := l.store.save(next, false, durable); err != nil {
		err = fmt.Errorf("ledger: write what was changed: %w", err)
		return report, l.undo(ctx, job, "", err, next, steps)
	}
	return report, nil
}

// set makes one change.
func (l *Ledger) set(ctx context.Context, s *step) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.tried = true
	if err := s.setting.Write(ctx, s.entry.Set); err != nil {
		return err
	}
	if !s.entry.Loose {
		s.done = true
		return nil
	}
	is, err := s.setting.Read(ctx)
	if err != nil {
		return err
	}
	if is != s.entry.Set {
		s.entry.Asked, s.entry.Set = s.entry.Set, is
	}
	s.done = true
	return nil
}

// undo puts back everything of a job after a failure and returns the failure.
func (l *Ledger) undo(ctx context.Context, job, key string, cause error, r *record, steps []*step) error {
	// A deadline that ended the change must not end its undoing.
	ctx = context.WithoutCancel(ctx)
	report, err := l.release(ctx, r, steps)
	if err != nil && report.Err() != nil {
		err = nil // that the record stays is right
	}
	return &ApplyError{Job: job, Key: key, Err: cause, Rollback: report, Record: err}
}

// holding is one key that another job holds.
type holding struct {
	job   string
	entry entry
}

// holders returns what all jobs but one hold, by key. What is no record is set
// aside unless somebody is working on it.
func (l *Ledger) holders(but string) (map[string][]holding, error) {
	jobs, err := l.store.jobs()
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	held := map[string][]holding{}
	for _, job := range jobs {
		if job == but {
			continue
		}
		r, err := l.store.load(job)
		if bad := (*badRecord)(nil); errors.As(err, &bad) {
			l.tidy(job)
			continue
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("ledger: %w", err)
		}
		if r == nil {
			continue
		}
		for _, e := range r.Entries {
			if !r.forgot(e, l.boot) {
				held[e.Key] = append(held[e.Key], holding{job, e})
			}
		}
	}
	return held, nil
}

// tidy sets aside what is not the record of a job that nobody works on.
func (l *Ledger) tidy(job string) {
	unlock, ok := l.locks.tryJob(job)
	if !ok {
		return
	}
	defer unlock()
	if _, err := l.store.loadMine(job); err != nil {
		l.log.Error("cannot set aside what is not a record of the ledger", "job", job, "error", err)
	}
}
