package ledger

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"gputune/internal/setting"
)

// Release puts back what a job changed, in reverse order, and forgets the job.
// A job that the ledger does not know is no error, so it may be called any
// number of times.
//
// The error is nil if all of it is back, is held by another job, or was taken
// over by somebody (Drifted). Otherwise it names what could not be put back,
// which stays in the ledger for the next call.
func (l *Ledger) Release(ctx context.Context, job string) (Report, error) {
	if err := checkJob(job); err != nil {
		return Report{}, err
	}
	return l.releaseIf(ctx, job, func(*record) bool { return true })
}

// ReleaseAll releases every job that is not alive, and every record from before
// the last boot. It goes on after a failure and returns all of them.
//
// alive is asked about each job twice, before and after its lock is taken, and
// must answer by what is so at that moment: a list from before the call would
// end a job that has begun since.
func (l *Ledger) ReleaseAll(ctx context.Context, alive func(job string) bool) (Report, error) {
	jobs, err := l.store.jobs()
	if err != nil {
		return Report{}, fmt.Errorf("ledger: %w", err)
	}
	dead := func(r *record) bool { return r.Boot != l.boot || !alive(r.Job) }
	var report Report
	var failed []error
	for _, job := range jobs {
		if err := ctx.Err(); err != nil {
			failed = append(failed, err)
			break
		}
		if checkJob(job) != nil {
			l.alien(job)
			continue
		}
		if r, err := l.store.load(job); err == nil && r != nil && !dead(r) {
			continue
		}
		one, err := l.releaseIf(ctx, job, dead)
		report.Outcomes = append(report.Outcomes, one.Outcomes...)
		if err != nil {
			failed = append(failed, err)
		}
	}
	return report, errors.Join(failed...)
}

// alien sets aside a name among the records that no job can have.
func (l *Ledger) alien(name string) {
	unlock, ok := l.locks.tryJob(name)
	if !ok {
		return
	}
	defer unlock()
	err := l.store.setAside("alien", &badRecord{name: jobFolder(name), err: errors.New("not the id of a job")})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.log.Error("cannot set aside what is not a record of the ledger", "name", name, "error", err)
	}
}

// releaseIf releases a job under its locks if its record passes.
func (l *Ledger) releaseIf(ctx context.Context, job string, passes func(*record) bool) (Report, error) {
	unlockJob, err := l.lockJob(ctx, job)
	if errors.Is(err, fs.ErrNotExist) {
		return Report{}, nil // nobody has ever applied anything
	}
	if err != nil {
		return Report{}, err
	}
	defer unlockJob()
	r, err := l.store.loadMine(job)
	if err != nil {
		return Report{}, fmt.Errorf("ledger: %w", err)
	}
	if r == nil {
		// At most what a program left that was killed before it had a record.
		if err := l.store.drop(job); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Report{}, fmt.Errorf("ledger: %w", err)
		}
		return Report{}, nil
	}
	if !passes(r) {
		return Report{}, nil
	}
	unlock, err := l.lockDomains(ctx, job, r.keys())
	if err != nil {
		return Report{}, err
	}
	defer unlock()
	return l.release(ctx, r, nil)
}

// undoing is what is to be done about one entry.
type undoing struct {
	place   int // in the record
	setting setting.Setting
	outcome Outcome
	value   string // to write, if write is true
	write   bool
	shared  bool // other jobs hold the key, and value is not the one before
	again   bool // value is there, but a write that failed may take effect yet
}

// release puts back a record's entries and removes it, or what of it could not
// be put back stays. steps are what this call of Apply did so far: unlike a
// program that finds the record later, it knows which keys it has touched. The
// caller has all locks.
func (l *Ledger) release(ctx context.Context, r *record, steps []*step) (Report, error) {
	others, err := l.holders(r.Job)
	if err != nil {
		return Report{}, err
	}
	todo := make([]undoing, 0, len(r.Entries))
	for i, e := range slices.Backward(r.Entries) {
		at := slices.IndexFunc(steps, func(s *step) bool { return s.entry.Key == e.Key })
		var u undoing
		if at >= 0 && steps[at].fresh && !steps[at].tried {
			u.outcome = Outcome{Job: r.Job, Key: e.Key, Action: Unchanged, Prior: e.Prior, Set: e.Set, Current: steps[at].current}
		} else {
			u = l.judge(ctx, r, e, others[e.Key])
		}
		if at >= 0 && steps[at].tried && !steps[at].done {
			u.mend(e, steps[at])
		}
		u.place = i
		todo = append(todo, u)
	}
	l.announce(r, todo)

	var report Report
	var left []entry
	for _, u := range todo {
		if u.write {
			u.outcome.Action = Restored
			if u.shared {
				u.outcome.Action = StillHeld
			}
			if err := u.put(ctx); u.again && (err == nil || u.still(ctx)) {
				u.outcome.Action = Unchanged
			} else if r.Entries[u.place].Lifetime == setting.WhileThere && errors.Is(err, setting.ErrGone) {
				u.outcome.Action = Forgotten
			} else if err != nil {
				u.outcome.Action = Failed
				u.outcome.Err = fmt.Errorf("job %s: %s: put back %s: %w", r.Job, u.outcome.Key, u.value, err)
			}
		}
		switch e := r.Entries[u.place]; u.outcome.Action {
		case Failed:
			if u.write && !e.WriteOnly {
				if now, err := u.setting.Read(ctx); err == nil {
					e.Left = now
				}
			}
			left = append(left, e)
		case Drifted:
			l.log.Warn("somebody changed a setting that a job held: left alone",
				"job", r.Job, "key", e.Key, "before", e.Prior, "set", e.Set, "now", u.outcome.Current)
		}
		report.Outcomes = append(report.Outcomes, u.outcome)
	}
	slices.Reverse(left)
	return report, errors.Join(report.Err(), l.keep(r, left))
}

// keep writes what is left of a record, or removes it.
func (l *Ledger) keep(r *record, left []entry) error {
	var err error
	switch {
	case len(left) == 0:
		err = l.store.drop(r.Job)
	case !slices.Equal(left, r.Entries):
		err = l.store.save(&record{Job: r.Job, Boot: r.Boot, Entries: left}, false, true)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("ledger: record of job %s: %w", r.Job, err)
	}
	return nil
}

// judge decides by a key's present value and its other holders what becomes of
// an entry.
func (l *Ledger) judge(ctx context.Context, r *record, e entry, others []holding) undoing {
	u := undoing{value: e.Prior, outcome: Outcome{Job: r.Job, Key: e.Key, Prior: e.Prior, Set: e.Set}}
	fail := func(err error) undoing {
		u.outcome.Action = Failed
		u.outcome.Err = fmt.Errorf("job %s: %s: put back %s: %w", r.Job, e.Key, e.Prior, err)
		return u
	}
	if r.forgot(e, l.boot) {
		u.outcome.Action = Forgotten
		return u
	}
	for _, other := range others {
		if other.entry.Epoch >= e.Epoch {
			u.outcome.Holders = append(u.outcome.Holders, other.job)
		}
	}
	if len(u.outcome.Holders) > 0 {
		u.outcome.Action = StillHeld
		return u
	}
	s, err := l.resolve(e.Key)
	if err != nil {
		return fail(err)
	}
	u.setting = s
	if e.WriteOnly {
		u.write = true
		return u
	}
	current, err := s.Read(ctx)
	if e.Lifetime == setting.WhileThere && errors.Is(err, setting.ErrGone) {
		u.outcome.Action = Forgotten
		return u
	}
	if err != nil {
		return fail(err)
	}
	u.outcome.Current = current
	switch {
	case current == e.Prior:
		u.outcome.Action = Unchanged
	case e.ours(s, current):
		u.write = true
	default:
		u.outcome.Action = Drifted
	}
	return u
}

// mend is for a key whose write failed just now. Whatever value it has is this
// program's doing.
func (u *undoing) mend(e entry, broken *step) {
	switch {
	case u.outcome.Action == Drifted:
		u.write = true
	case u.outcome.Action == Unchanged:
		// A driver that timed out, or that reads as it was for a while, may
		// carry it out later. The value before is the last thing it is told.
		u.write, u.again, u.setting = true, true, broken.setting
	case u.outcome.Action == StillHeld && !e.WriteOnly:
		// What the other jobs had there, or who had taken over.
		u.write, u.shared, u.setting, u.value = true, true, broken.setting, broken.current
	}
}

// announce writes to disk that loose settings are about to be put back, since
// a program that is killed in the middle leaves a value that nobody set.
func (l *Ledger) announce(r *record, todo []undoing) {
	changed := false
	for _, u := range todo {
		if e := &r.Entries[u.place]; u.write && e.Loose && e.State == applied {
			e.State = restoring
			changed = true
		}
	}
	if !changed {
		return
	}
	if err := l.store.save(r, false, true); err != nil {
		// A full disk is no reason to leave the node changed.
		l.log.Warn("cannot write that a job's settings are put back", "job", r.Job, "error", err)
	}
}

// still tells whether a key has the value before although it could not be
// written.
func (u *undoing) still(ctx context.Context) bool {
	current, err := u.setting.Read(ctx)
	return err == nil && current == u.value
}

// put writes the value that was there before.
func (u *undoing) put(ctx context.Context) error {
	if err := u.setting.Write(ctx, u.value); err != nil {
		return err
	}
	if !u.setting.Traits().Loose {
		return nil // Write has read it back
	}
	is, err := u.setting.Read(ctx)
	if err != nil {
		return err
	}
	if is != u.value {
		return &setting.ReadBackError{Of: u.outcome.Key, Wrote: u.value, Read: is}
	}
	return nil
}
