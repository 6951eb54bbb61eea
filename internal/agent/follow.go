package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gputune/conf"
	"gputune/internal/follow"
	"gputune/internal/ledger"
	"gputune/internal/metrics"
	"gputune/internal/setting"
	"gputune/internal/verify"
)

// Follower binds the workers of steps with --gpu-numa-bind=follow to the GPUs that
// they use. While there is such a step, a child asks the driver; with none there is
// no child, and nothing of the agent's has the driver open.
type Follower struct {
	Host    verify.Host
	Config  string // gputune.toml, for the child
	Watcher Watcher
	Log     *slog.Logger
	Metrics *metrics.Set

	mu       sync.Mutex
	settings followSettings
	changed  chan struct{}

	binder follow.Binder
	steps  follow.Steps
	seen   Seen
	said   map[string]string
	child  *followChild
	retry  time.Time // no child before
	away   time.Time // until when it lets go of the driver
	due    bool      // something has changed since binding
	next   time.Time // no binding before
	mover  mover
}

type followSettings struct {
	run      string
	locks    string        // of the ledger
	interval time.Duration // 0: nobody is followed
}

// Configure gives it the site's rules, before Run and at any time during it.
func (f *Follower) Configure(root string, site conf.Config) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settings = followSettings{
		filepath.Join(root, string(site.Paths.Run)), ledger.LocksFolder(string(site.Paths.State)), time.Duration(site.Agent.FollowInterval),
	}
	if f.changed == nil {
		f.changed = make(chan struct{}, 1)
	}
	select {
	case f.changed <- struct{}{}:
	default: // it has not seen the last one yet
	}
}

func (f *Follower) current() followSettings {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.settings
}

// How long it waits: for a step, where the kernel does not tell of one; for
// a slurmstepd to end that cannot say so; after a child that failed.
const (
	idleWait  = 10 * time.Second
	busyWait  = time.Second
	retryWait = 10 * time.Second
)

// awayTime is how long the child lets go of the driver when somebody takes the ledger's
// lock of a GPU, a Prolog or an Epilog: no GPU can be split or reset that it has open.
const awayTime = 5 * time.Second

// Run works until the context ends. Configure comes before it.
func (f *Follower) Run(ctx context.Context) {
	f.said = map[string]string{}
	f.steps.Runs = func(pid int) (string, bool) {
		p, there := f.Host.Find(pid)
		return p.Began(), there
	}
	f.binder.Host = f.Host
	folder := folderWatch{what: unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_DELETE}
	defer folder.close()
	locks := folderWatch{what: unix.IN_OPEN, prefix: setting.GPUDomain}
	defer locks.close()
	defer f.mover.wait()
	defer f.stop()
	for ctx.Err() == nil {
		settings := f.current()
		changed, noticed := false, error(nil)
		if settings.interval == 0 {
			f.stop()
			f.Metrics.FollowSteps.Set(0)
		} else {
			f.steps.Run = settings.run
			var err error
			changed, err = f.steps.Update()
			f.say("steps", err)
			noticed = folder.open(follow.Folder(settings.run))
			f.say("notice of new steps", noticed)
			if err := locks.open(settings.locks); !errors.Is(err, fs.ErrNotExist) { // nothing was ever set
				f.say("notice of Prologs and Epilogs", err)
			}
			f.ask(ctx, settings)
		}
		f.due = f.due || changed
		if f.due && !time.Now().Before(f.next) {
			f.due = false
			f.bind(ctx)
		}
		wait := idleWait
		if noticed != nil || len(f.steps.List()) > 0 {
			wait = busyWait
		}
		if f.due {
			wait = min(wait, time.Until(f.next))
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-f.changed:
		case <-folder.events():
		case <-locks.events():
			if f.child != nil {
				f.away = time.Now().Add(awayTime)
			}
		case seen := <-f.lines():
			f.count(seen)
			f.seen, f.due = seen, true
			f.say("asking who uses the GPUs", nil)
		case err := <-f.ended():
			f.child = nil
			f.seen = Seen{}
			f.retry = time.Now().Add(retryWait)
			f.say("asking who uses the GPUs", err)
		case <-timer.C:
		}
		timer.Stop()
	}
}

// followChild is a child that asks the driver.
type followChild struct {
	interval time.Duration
	gpus     []string
	stop     context.CancelFunc
	orders   chan any
	lines    chan Seen
	ended    chan error
}

func (f *Follower) lines() <-chan Seen {
	if f.child == nil {
		return nil
	}
	return f.child.lines
}

func (f *Follower) ended() <-chan error {
	if f.child == nil {
		return nil
	}
	return f.child.ended
}

// ask has a child ask about the GPUs of all steps, none where there are no steps.
func (f *Follower) ask(ctx context.Context, settings followSettings) {
	var gpus []string
	for _, step := range f.steps.List() {
		for _, share := range step.Shares {
			gpus = append(gpus, share.PCI)
		}
	}
	slices.Sort(gpus)
	gpus = slices.Compact(gpus)
	none := len(gpus) == 0
	if time.Now().Before(f.away) {
		gpus = nil
	}
	f.Metrics.FollowSteps.Set(float64(len(f.steps.List())))
	if f.child != nil && f.child.interval != settings.interval {
		f.stop()
	}
	switch {
	case none:
		f.stop()
	case f.child == nil && len(gpus) > 0 && !time.Now().Before(f.retry):
		f.child = f.start(ctx, Work{Role: RoleFollow, Config: f.Config, GPUs: gpus, Interval: settings.interval})
	case f.child != nil && !slices.Equal(gpus, f.child.gpus):
		select {
		case f.child.orders <- FollowOrder{gpus}:
			f.child.gpus = gpus
		default: // it does not take orders now: next time
		}
	}
}

func (f *Follower) start(ctx context.Context, work Work) *followChild {
	ctx, stop := context.WithCancel(ctx)
	child := &followChild{interval: work.Interval, gpus: work.GPUs, stop: stop, orders: make(chan any, 1), lines: make(chan Seen), ended: make(chan error, 1)}
	go func() {
		child.ended <- f.Watcher.Watch(ctx, work, child.orders, silence, func(line []byte) error {
			var seen Seen
			if err := json.Unmarshal(line, &seen); err != nil {
				return err
			}
			select {
			case child.lines <- seen:
			case <-ctx.Done():
			}
			return nil
		})
	}()
	return child
}

// stop ends the child and waits for that: afterwards nothing has the driver open.
func (f *Follower) stop() {
	if f.child == nil {
		return
	}
	f.child.stop()
	f.say("asking who uses the GPUs", <-f.child.ended)
	f.child, f.seen = nil, Seen{}
}

// count adds what the child has taken since its last line.
func (f *Follower) count(seen Seen) {
	if more := seen.CPU - f.seen.CPU; more > 0 {
		f.Metrics.FollowSeconds.Add(more)
	}
}

// bind binds who is to be bound anew, and says what it did.
func (f *Follower) bind(ctx context.Context) {
	begin := used()
	done, left, err := f.binder.Bind(f.steps.List(), f.seen.Lists)
	f.say("binding", err)
	for _, one := range done {
		log := f.Log.With("job", one.Job, "step", one.Step, "pid", one.PID, "program", one.Program, "gpu", strings.Join(one.GPUs, ","))
		outcome := "done"
		if one.Err != nil {
			outcome = "failed"
			log.Warn("a worker cannot be bound to its GPU", "error", one.Err)
		} else {
			log.Info("a worker is bound to its GPU", "cpus", one.CPUs.String(), "mems", one.Mems.String(), "processes", one.Processes,
				"threads", one.Threads, "locality", string(one.Locality))
		}
		f.Metrics.FollowBindings.WithLabelValues(string(one.Locality), outcome).Inc()
		for _, move := range one.Moves {
			f.mover.add(ctx, func() { f.move(log, move) })
		}
	}
	for _, l := range left {
		f.Log.Info("left alone: "+l.String(), "gpu", l.PCI)
	}
	cost := used() - begin
	f.Metrics.FollowSeconds.Add(cost.Seconds())
	// However often a job's programs come and go.
	f.next = time.Now().Add(min(time.Duration(float64(cost)/maxShare), heartbeat))
}

// fewPages is what each program has that stays where it is, such as the vDSO.
const fewPages = 1 << 20 >> 12

func (f *Follower) move(log *slog.Logger, move follow.Move) {
	left, err := f.binder.Move(move)
	switch {
	case err != nil:
		log.Warn("its pages cannot be moved", "of", move.PID, "mems", move.To.String(), "error", err)
	case left >= fewPages:
		log.Info("some of its pages stay where they are, such as those that the driver has pinned", "of", move.PID, "mems", move.To.String(), "pages", left)
	}
}

// say logs trouble when it begins or changes.
func (f *Follower) say(what string, err error) {
	text := ""
	if err != nil {
		text = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	if f.said[what] == text {
		return
	}
	f.said[what] = text
	if err == nil {
		f.Log.Info("all right again", "work", RoleFollow, "what", what)
		return
	}
	f.Log.Error("not done", "work", RoleFollow, "what", what, "error", text)
}

// mover moves pages, one process after the other: large ones take their time, in
// which other workers are bound all the same.
type mover struct {
	mu     sync.Mutex
	queue  []func()
	active bool
	group  sync.WaitGroup
}

func (m *mover) add(ctx context.Context, do func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queue = append(m.queue, do)
	if m.active {
		return
	}
	m.active = true
	m.group.Go(func() {
		for {
			m.mu.Lock()
			if len(m.queue) == 0 || ctx.Err() != nil {
				m.queue, m.active = nil, false
				m.mu.Unlock()
				return
			}
			next := m.queue[0]
			m.queue = m.queue[1:]
			m.mu.Unlock()
			next()
		}
	})
}

func (m *mover) wait() { m.group.Wait() }
