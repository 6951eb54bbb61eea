// Package agent is gputuned: it puts back what jobs have left that ended without
// their Epilog, keeps the topology snapshot, checks bound tasks and tells
// Prometheus. Everything before it works without it.
//
// One goroutine goes through what is due and waits; whatever calls the driver is
// done by a child (Worker), so that between two pieces of work the agent is a
// process without a GPU, and nothing that it does can hang it.
package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"gputune/conf"
	"gputune/internal/job"
	"gputune/internal/journal"
	"gputune/internal/metrics"
	"gputune/internal/recovery"
)

// Agent is the service. All fields have to be set but Journal, Verify, Follow
// and Reports.
type Agent struct {
	// Config is where gputune.toml is, "" the usual place.
	Config string
	// Host is this node; its configuration is the agent's.
	Host   *job.Host
	Worker Worker
	Notify Notifier
	Log    *slog.Logger
	// Journal is where Log goes; nil: elsewhere. See Logger.
	Journal *journal.Writer
	Metrics *metrics.Set
	// Verify checks bound tasks.
	Verify Verifier
	// Follow binds the workers of steps that ask for it.
	Follow *Follower
	// Reports samples GPUs for the reports on jobs; nil: there are none.
	Reports *Reporter

	watch   recovery.Watch
	key     string // snapshot.Key of the snapshot that this run took
	due     map[string]time.Time
	said    map[string]string // what is not said again until it changes
	server  server
	started time.Time
	by      atomic.Int64 // until when the loop has to get on, since started
}

// Verifier checks tasks that gputune has bound.
type Verifier interface {
	// Check checks all of them once. It returns the processor time it took.
	Check(ctx context.Context, site conf.Agent) (cost time.Duration, err error)
}

// The pieces of work that come round.
const (
	dueRecovery = "recovery"
	dueSnapshot = "snapshot"
	dueDrift    = "drift"
	dueVerify   = "verify"
)

// Load reads the configuration. A broken one leaves the one before in force, and
// at start the defaults with its paths.
func (a *Agent) Load() {
	loaded := *a.Host
	loaded.Load(a.Config)
	site, err := loaded.Site, loaded.SiteError
	first := a.due == nil
	a.Metrics.ConfigValid.Set(1)
	if err != nil {
		a.Metrics.ConfigValid.Set(0)
		a.Log.Error("the configuration has an error", "error", err, "in_force", map[bool]string{true: "the defaults, but for its paths", false: "what was read before"}[first])
	}
	if err == nil || first {
		a.Host.Site, a.Host.SiteError = site, err
	}
	if a.Reports != nil {
		a.Reports.Configure(a.Host.Site)
	}
	a.due = map[string]time.Time{}
	a.watch.Grace = time.Duration(a.Host.Site.Agent.Grace)
	if a.Follow != nil {
		a.Follow.Configure(a.Host.Root, a.Host.Site)
	}
}

// Once goes through everything a single time, waiting out the grace of what jobs
// have left. The error is that something could not be done.
func (a *Agent) Once(ctx context.Context) error {
	a.begin()
	errs := []error{a.takeSnapshot(ctx)}
	for {
		next, err := a.recover(ctx)
		if err != nil || next == 0 {
			errs = append(errs, err)
			break
		}
		if !sleep(ctx, next) {
			return context.Cause(ctx)
		}
	}
	errs = append(errs, a.look(ctx))
	if a.Verify != nil && a.Host.Site.Agent.VerifyInterval != 0 {
		cost, err := a.Verify.Check(ctx, a.Host.Site.Agent)
		a.Metrics.VerifySeconds.Add(cost.Seconds())
		errs = append(errs, err)
	}
	a.count()
	errs = append(errs, a.writeTextfile())
	return errors.Join(errs...)
}

func (a *Agent) begin() {
	a.started = time.Now()
	a.said = map[string]string{}
	a.expect(0)
}

// Run works until the context ends. reload asks to read the configuration again.
func (a *Agent) Run(ctx context.Context, reload <-chan os.Signal) error {
	a.begin()
	defer a.server.stop()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go a.pat(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer stop()
	if a.Follow != nil {
		beside.Go(func() { a.Follow.Run(ctx) })
	}
	if a.Reports != nil {
		beside.Go(func() { a.Reports.Run(ctx) })
	}
	a.serve()
	a.Notify.Notify(daemon.SdNotifyReady)
	a.Log.Info("started", "config", a.Config, "state", string(a.Host.Site.Paths.State))
	for ctx.Err() == nil {
		next := a.round(ctx)
		a.expect(next)
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-reload:
			a.Notify.Notify(reloading())
			a.Load()
			a.serve()
			a.Notify.Notify(daemon.SdNotifyReady)
			a.Log.Info("read the configuration again")
		}
		timer.Stop()
	}
	a.Notify.Notify(daemon.SdNotifyStopping)
	a.Log.Info("stopped")
	return nil
}

// slack is what the loop may be late before the watchdog hears nothing more: what
// ending a child takes, and a machine that is busy.
const slack = time.Minute

// expect says how long the loop's next step may take.
func (a *Agent) expect(step time.Duration) {
	a.by.Store(int64(time.Since(a.started) + step + slack))
}

// pat tells the watchdog that the loop is alive: that it is not longer in one place
// than it said.
func (a *Agent) pat(ctx context.Context) {
	within := a.Notify.Watchdog()
	if within == 0 {
		return
	}
	for tick := time.NewTicker(within / 3); ; {
		if time.Since(a.started) < time.Duration(a.by.Load()) {
			a.Notify.Notify(daemon.SdNotifyWatchdog)
		}
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
	}
}

// round does what is due and returns after how long something is due again.
func (a *Agent) round(ctx context.Context) time.Duration {
	site := a.Host.Site.Agent
	interval := time.Duration(site.Interval)
	type piece struct {
		name string
		do   func(context.Context) (next time.Duration, err error)
	}
	pieces := []piece{
		{dueRecovery, func(ctx context.Context) (time.Duration, error) {
			next, err := a.recover(ctx)
			if next == 0 || next > interval {
				next = interval
			}
			return next, err
		}},
		{dueSnapshot, func(ctx context.Context) (time.Duration, error) { return interval, a.takeSnapshot(ctx) }},
	}
	if site.DriftInterval != 0 {
		pieces = append(pieces, piece{dueDrift, func(ctx context.Context) (time.Duration, error) {
			return time.Duration(site.DriftInterval), a.look(ctx)
		}})
	}
	if a.Verify != nil && site.VerifyInterval != 0 {
		pieces = append(pieces, piece{dueVerify, func(ctx context.Context) (time.Duration, error) {
			cost, err := a.Verify.Check(ctx, site)
			a.Metrics.VerifySeconds.Add(cost.Seconds())
			return max(time.Duration(site.VerifyInterval), cost*100), err // 1 % of a core
		}})
	}
	next := interval
	for _, piece := range pieces {
		if ctx.Err() != nil {
			return 0
		}
		now := time.Now()
		if wait := a.due[piece.name].Sub(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		a.expect(time.Duration(site.Deadline))
		wait, err := piece.do(ctx)
		if ctx.Err() == nil {
			a.sayOnce(piece.name, err)
		}
		a.due[piece.name] = time.Now().Add(wait)
		next = min(next, wait)
	}
	a.count()
	a.sayOnce("textfile", a.writeTextfile())
	if a.Journal != nil {
		_ = a.Journal.TellLost() // one that still takes nothing is asked in the next round
	}
	return next
}

// sayOnce logs trouble when it begins or changes, and its end.
func (a *Agent) sayOnce(what string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if a.said[what] == text {
		return
	}
	a.said[what] = text
	if err == nil {
		a.Log.Info("all right again", "work", what)
		return
	}
	a.Log.Error("not done", "work", what, "error", err)
}

// do has a piece of work done within the deadline and counts it.
func (a *Agent) do(ctx context.Context, work Work, answer any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(a.Host.Site.Agent.Deadline), errNotInTime)
	defer cancel()
	work.Config = a.Config
	err := a.Worker.Do(ctx, work, answer)
	outcome := "done"
	switch {
	case errors.Is(err, ErrStuck):
		outcome = "stuck"
	case errors.Is(err, errNotInTime):
		outcome = "late"
	case err != nil:
		outcome = "failed"
	}
	a.Metrics.Work.WithLabelValues(work.Role, outcome).Inc()
	return err
}

var errNotInTime = errors.New("not done within agent.deadline")

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
