package job

import (
	"context"
	"errors"
	"time"

	"gputune/internal/action"
	"gputune/internal/idset"
	"gputune/internal/option"
)

// dropping is a wish that has caches dropped, "" none, which is not put back.
type dropping interface {
	drops() option.Caches
}

// compacting is a wish that has the memory of NUMA nodes compacted.
type compacting interface {
	compacts() idset.Set
}

// noted is a wish with something for the report once it is applied.
type noted interface {
	note(*Option)
}

// act does what granted options have done once, before anything is set and outside
// of every lock: it can take seconds. Caches are dropped first, since that leaves
// more to compact. Its error is a fault.
func (h *Host) act(ctx context.Context, s *scene) error {
	host := action.Host{Root: string(h.Site.Paths.Machine), Now: h.Now, Sync: h.Sync}
	for _, a := range granted(s.options) {
		w, is := a.wish.(dropping)
		if !is || w.drops() == "" {
			continue
		}
		dropped, err := host.DropCaches(ctx, w.drops(), h.syncFor(ctx))
		switch {
		case ctx.Err() != nil:
			return err
		case err != nil:
			a.refuse(err)
			if h.over(s.options) {
				return nil
			}
		default:
			a.Dropped = &dropped
			if !dropped.Synced {
				a.Caution = "the disks were not done writing in time: what they still had to write stays in memory"
			}
			h.say("job %s: %s: %v", s.job.ID, a.given(), dropped)
		}
	}
	var done idset.Set
	for _, a := range granted(s.options) {
		w, is := a.wish.(compacting)
		if !is {
			continue
		}
		nodes := w.compacts().AndNot(done)
		if nodes.Empty() {
			continue
		}
		done = done.Or(nodes)
		compacted, err := compact(ctx, host, nodes)
		switch {
		case ctx.Err() != nil:
			return err
		case err != nil: // it would have helped, no more
			a.Skipped = append(a.Skipped, Skipped{Key: "compact_memory", Reason: err.Error()})
		default:
			a.Compacted = &compacted
			h.say("job %s: %s: compacted the memory of node %v in %v", s.job.ID, a.given(), compacted.Nodes, compacted.Took.Round(time.Millisecond))
		}
	}
	return nil
}

// compact compacts memory for half of the time that is left at most. The kernel goes
// on longer only until this program ends.
func compact(ctx context.Context, host action.Host, nodes idset.Set) (action.Compacted, error) {
	type result struct {
		compacted action.Compacted
		err       error
	}
	done := make(chan result, 1)
	go func() {
		compacted, err := host.Compact(ctx, nodes)
		done <- result{compacted, err}
	}()
	var late <-chan time.Time
	if end, has := ctx.Deadline(); has {
		late = time.After(time.Until(end) / 2)
	}
	select {
	case r := <-done:
		return r.compacted, r.err
	case <-late:
		return action.Compacted{}, errors.New("compact memory: not done in half of the Prolog's time")
	}
}

// syncFor is how long the disks may take to write before caches are dropped: not
// more than half of the time that the Prolog has left.
func (h *Host) syncFor(ctx context.Context) time.Duration {
	limit := time.Duration(h.Site.DropCaches.SyncDeadline)
	if end, has := ctx.Deadline(); has {
		limit = min(limit, time.Until(end)/2)
	}
	return limit
}
