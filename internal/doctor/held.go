package doctor

import (
	"context"
	"errors"
	"io/fs"
)

// held: what jobs have set is still what they have set.
func held(ctx context.Context, h *Host) []Finding {
	if h.Held == nil {
		return []Finding{ok("not looked at: it is of another machine")}
	}
	list, err := h.Held(ctx)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return []Finding{warn("run this as root", "what jobs have set cannot be read: %v", err)}
	case err != nil:
		return []Finding{warn("see gputune status", "%v", err)}
	}
	var found []Finding
	for _, key := range list {
		switch {
		case key.Drift:
			found = append(found, warn("find out who: it is left alone after the job", "%s: job %s has set %s, and somebody else %s since", key.Key, key.Job, key.Set, key.Current))
		case key.Err != nil:
			found = append(found, warn("see gputune status", "%s, which job %s has set, cannot be read: %v", key.Key, key.Job, key.Err))
		}
	}
	if len(found) == 0 {
		return []Finding{ok("%d settings of jobs are as they were set", len(list))}
	}
	return found
}
