package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"gputune/internal/setting"
)

// Holding is one key that a job holds.
type Holding struct {
	Key, Job string
	Prior    string
	Set      string
	Current  string // "" if it cannot be read
	State    string // Applied, or how far a change has come that was not finished
	Since    time.Time
	// Drift says that somebody took over: Current is not what can be there.
	Drift bool
	// Forgotten says that the machine has booted and forgot it, or that what
	// had the value is gone.
	Forgotten bool
	WriteOnly bool
	Err       error // why Current cannot be read
}

// StateApplied is the State of a change that was finished.
const StateApplied = string(applied)

// Holders returns the jobs that hold a key in one of the domains, in order. It
// reads no setting and waits for no lock.
func (l *Ledger) Holders(domains ...string) ([]string, error) {
	held, err := l.holders("")
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for key, holdings := range held {
		for _, h := range holdings {
			found[h.job] = found[h.job] || slices.Contains(domains, setting.Domain(key))
		}
	}
	maps.DeleteFunc(found, func(_ string, in bool) bool { return !in })
	return slices.Sorted(maps.Keys(found)), nil
}

// Held returns what all jobs hold, by job and in the order in which it was set.
// It waits for no lock, so a job that begins or ends at the time may be in it
// by half. What is no record is left out and stays where it is.
func (l *Ledger) Held(ctx context.Context) ([]Holding, error) {
	jobs, err := l.store.jobs()
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	var list []Holding
	for _, job := range jobs {
		r, err := l.store.load(job)
		if bad := (*badRecord)(nil); errors.As(err, &bad) {
			l.log.Warn("not a record of the ledger", "file", bad.name, "reason", bad.err)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("ledger: %w", err)
		}
		if r == nil {
			continue
		}
		for _, e := range r.Entries {
			list = append(list, l.look(ctx, r, e))
		}
	}
	return list, nil
}

func (l *Ledger) look(ctx context.Context, r *record, e entry) Holding {
	h := Holding{
		Key: e.Key, Job: r.Job, Prior: e.Prior, Set: e.Set, State: string(e.State), Since: r.Written,
		WriteOnly: e.WriteOnly, Forgotten: r.forgot(e, l.boot),
	}
	if e.WriteOnly {
		return h
	}
	s, err := l.resolve(e.Key)
	if err == nil {
		h.Current, err = s.Read(ctx)
	}
	if e.Lifetime == setting.WhileThere && errors.Is(err, setting.ErrGone) {
		h.Forgotten = true
		return h
	}
	if err != nil {
		h.Err = err
		return h
	}
	h.Drift = !h.Forgotten && !e.ours(s, h.Current) && (e.State == applied || h.Current != e.Prior)
	return h
}
