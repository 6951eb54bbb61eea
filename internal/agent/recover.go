package agent

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gputune/internal/ledger"
	"gputune/internal/recovery"
	"gputune/internal/setting"
	"gputune/internal/snapshot"
)

// recover looks after what jobs have left that are no longer on this node. next
// is after how long a further look can tell more, 0 nothing is waited for.
func (a *Agent) recover(ctx context.Context) (next time.Duration, err error) {
	records, err := a.Host.Records()
	if err != nil {
		return 0, err
	}
	reports, err := a.Host.Reports()
	if err != nil {
		return 0, err
	}
	a.Metrics.Undecided.Set(0)
	a.Metrics.Waiting.Set(0)
	if len(records) == 0 && len(reports) == 0 {
		a.watch.Forget()
		return 0, nil
	}
	var left []recovery.Trace
	earlier := false
	for _, r := range records {
		if r.Earlier || r.Bad != nil {
			earlier = true
			continue
		}
		left = append(left, recovery.Trace{Job: r.Job, Written: r.Written})
	}
	for _, r := range reports {
		left = append(left, recovery.Trace{Job: r.Job, Written: r.Time})
	}
	var ended []string
	here, undecided := jobsHere(a.Host.Root, a.Host.Site)
	if undecided != nil {
		a.watch.Forget()
		a.Metrics.Undecided.Set(1)
	} else {
		ended, next = a.watch.Look(time.Now(), left, here)
		waiting := map[string]bool{}
		for _, trace := range left {
			if here[trace.Job] == "" && !slices.Contains(ended, trace.Job) {
				waiting[trace.Job] = true
			}
		}
		a.Metrics.Waiting.Set(float64(len(waiting)))
	}
	a.sayUndecided(undecided)
	if len(ended) == 0 && !earlier {
		return next, nil
	}
	var answer Restored
	if err := a.do(ctx, Work{Role: RoleRestore, Jobs: ended}, &answer); err != nil {
		return next, err
	}
	for _, o := range answer.Outcomes {
		a.Metrics.Restores.WithLabelValues(strings.ReplaceAll(string(o.Action), " ", "_")).Inc()
		log := a.Log.Info
		if o.Action == ledger.Failed || o.Action == ledger.Drifted {
			log = a.Log.Warn
		}
		if o.Action == ledger.Failed { // it is tried again each time
			what := "failed " + o.Job + " " + o.Key
			if a.said[what] == o.Text {
				continue
			}
			a.said[what] = o.Text
		}
		uuid, name := split(o.Key)
		log("ended without its Epilog: "+o.Text, "job", o.Job, "gpu", uuid, "setting", name, "action", string(o.Action))
	}
	if answer.Error != "" {
		return next, errors.New(strings.ReplaceAll(answer.Error, "\n", "; "))
	}
	return next, nil
}

func (a *Agent) sayUndecided(why error) {
	text := ""
	if why != nil {
		text = why.Error()
	}
	if a.said["undecided"] == text {
		return
	}
	a.said["undecided"] = text
	if why == nil {
		a.Log.Info("it can be told again which jobs are on this node")
		return
	}
	a.Log.Warn("it cannot be told which jobs are on this node, so nothing is put back", "reason", why)
}

// split returns the GPU of a key, "" for one of the node, and the setting's name.
func split(key string) (uuid, name string) {
	if rest, ofGPU := strings.CutPrefix(key, "gpu/"); ofGPU {
		uuid, name, _ = strings.Cut(rest, "/")
		return uuid, name
	}
	return "", key
}

// takeSnapshot takes the topology snapshot anew where it does not hold.
func (a *Agent) takeSnapshot(ctx context.Context) error {
	paths := a.Host.Site.Paths
	why := snapshot.Stale(string(paths.Machine), filepath.Join(a.Host.Root, string(paths.Snapshot)), a.key)
	if why == nil {
		return nil
	}
	key := snapshot.Key(string(paths.Machine)) // before: what changes meanwhile is seen next time
	var answer Snapshot
	if err := a.do(ctx, Work{Role: RoleSnapshot}, &answer); err != nil {
		return err
	}
	a.key = key
	if a.key == "" {
		a.key = "no driver"
	}
	a.Metrics.SnapshotTime.SetToCurrentTime()
	a.Log.Info("took the topology snapshot", "reason", why, "gpus", answer.GPUs)
	for _, warning := range answer.Warnings {
		a.Log.Warn(warning, "work", RoleSnapshot)
	}
	return nil
}

// look compares what jobs have set with what is there.
func (a *Agent) look(ctx context.Context) error {
	records, err := a.Host.Records()
	if err != nil {
		return err
	}
	var answer Held
	if len(records) > 0 {
		if err := a.do(ctx, Work{Role: RoleHeld}, &answer); err != nil {
			return err
		}
	}
	a.Metrics.Update(func() {
		unread := 0
		a.Metrics.SettingsDrifted.Reset()
		for _, h := range answer.Keys {
			gauge := a.Metrics.SettingsDrifted.WithLabelValues(settingName(h.Key))
			if h.Drift {
				gauge.Inc()
			}
			if h.Error != "" {
				unread++
			}
		}
		a.Metrics.SettingsUnread.Set(float64(unread))
	})
	drifted := map[string]bool{}
	for _, h := range answer.Keys {
		if !h.Drift {
			continue
		}
		uuid, name := split(h.Key)
		what := h.Job + " " + h.Key
		drifted[what] = true
		if a.said["drift "+what] == h.Current {
			continue
		}
		a.said["drift "+what] = h.Current
		a.Log.Warn("somebody has changed what a job has set", "job", h.Job, "gpu", uuid, "setting", name, "set", h.Set, "now", h.Current)
	}
	for said := range a.said {
		if what, isDrift := strings.CutPrefix(said, "drift "); isDrift && !drifted[what] {
			delete(a.said, said)
		}
	}
	return nil
}

// settingName is the last part of a GPU's key and the whole of another's, without
// what names one of many, so that there are few.
func settingName(key string) string {
	if setting.Domain(key) != setting.HostDomain {
		return key[strings.LastIndexByte(key, '/')+1:]
	}
	kinds := strings.Split(key, "/")
	for _, kind := range setting.Kinds() {
		pattern := strings.Split(kind.Pattern, "/")
		if len(pattern) != len(kinds) {
			continue
		}
		if !slices.ContainsFunc(pattern, func(p string) bool { return p != "*" && !slices.Contains(kinds, p) }) {
			return kind.Pattern
		}
	}
	return "other"
}
