package agent

import (
	"context"
	"errors"
	"time"

	"gputune/conf"
)

// Bounded is a Verifier that gives another one agent.deadline. A check reads memory
// and memory maps of users' processes, and a user can see to it that this takes for
// ever, as with an environment in a mapped file of a file system that does not
// answer. There is no further check until one that hangs has ended.
type Bounded struct {
	Verifier
	running chan checked
}

type checked struct {
	cost time.Duration
	err  error
}

var errChecking = errors.New("a check of bound tasks hangs: a process among them cannot be read")

// Check implements Verifier. It is not for several goroutines at once.
func (b *Bounded) Check(ctx context.Context, site conf.Agent) (cost time.Duration, err error) {
	wait := time.Duration(site.Deadline)
	if b.running != nil {
		wait = 0 // it has had its time
	} else {
		running := make(chan checked, 1)
		b.running = running
		go func() {
			cost, err := b.Verifier.Check(ctx, site)
			running <- checked{cost, err}
		}()
	}
	late := time.NewTimer(wait)
	defer late.Stop()
	select {
	case c := <-b.running:
		return b.ended(c)
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-late.C:
	}
	select {
	case c := <-b.running: // both at once
		return b.ended(c)
	default:
		return 0, errChecking
	}
}

func (b *Bounded) ended(c checked) (time.Duration, error) {
	b.running = nil
	return c.cost, c.err
}
