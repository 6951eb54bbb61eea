package job

import (
	"context"
	"time"
)

// patience decides for how long something is tried again that failed for the
// moment: once, and more often in the first quarter of the time that there is. What
// fails for longer is for people to mend, who should hear of it before slurmd's own
// time is over.
type patience struct {
	end   time.Time
	pause time.Duration
}

// The first pause; each one after it is twice as long.
const firstPause = 100 * time.Millisecond

// mostPatience is for a context without a deadline.
const mostPatience = 15 * time.Second

func newPatience(ctx context.Context) *patience {
	now := time.Now()
	left := mostPatience
	if deadline, bounded := ctx.Deadline(); bounded {
		left = min(left, deadline.Sub(now)/4)
	}
	return &patience{end: now.Add(left), pause: firstPause}
}

// wait waits before the next try. It returns false if there is to be none.
func (p *patience) wait(ctx context.Context) bool {
	if p.pause > firstPause && time.Now().Add(p.pause).After(p.end) {
		return false
	}
	timer := time.NewTimer(p.pause)
	defer timer.Stop()
	p.pause *= 2
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
