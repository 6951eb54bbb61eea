// Package bed starts a real one-node Slurm on loopback, for end-to-end tests,
// demonstrations and benchmarks: munged, slurmctld and slurmd as children of
// the calling program, with everything they write in one private folder and
// with device nodes standing in for GPUs. It needs root and Slurm's programs,
// but no systemd, no mounts and no configuration of the machine's own.
//
// Beds can run beside each other, in one program or several, and beside a
// Slurm of the machine's own. What one bed starts is told from everything
// else by its cluster name, its cgroup folder and its private folder, never
// by the name of a program, and it is all that Stop ends.
//
// A program that dies takes its daemons along. The job steps that they leave
// are cleared away by the next Start of any program.
package bed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrUnavailable is wrapped by Start's error when the machine lacks something
// that the bed as asked for needs: root, a program, a cgroup controller. Tests
// skip on it.
var ErrUnavailable = errors.New("this machine cannot run it")

// Names of the daemons, for Log, Pid and Restart.
const (
	Munged    = "munged"
	Slurmctld = "slurmctld"
	Slurmd    = "slurmd"
)

const (
	// The cluster and its node are up in half a second on an idle machine.
	startTimeout = 60 * time.Second
	// Jobs that are cancelled by Stop get this long to end and run their Epilog.
	cancelTimeout = 10 * time.Second
	// Daemons get this long between SIGTERM and SIGKILL.
	termTimeout = 5 * time.Second
	// Another program can take a port between the test whether it is free and
	// the daemon that binds it.
	portAttempts = 3
)

// Bed is a running one-node Slurm. Its methods can be called from several
// goroutines at once.
type Bed struct {
	// Dir is the private folder: etc (configuration), log, spool and state of
	// the daemons, run (pid files, munge's socket), dev (device nodes), and
	// work, where commands start by default and everybody may write.
	Dir string
	// Conf is the path of slurm.conf, the value of SLURM_CONF.
	Conf string
	// Node is the name of the only node.
	Node string
	// Cluster is the name of the cluster. It is unique on this machine, and
	// everything that Slurm runs has it as SLURM_CLUSTER_NAME.
	Cluster string
	// Auth is "munge" or "none".
	Auth string

	options   Options
	host      string
	addresses []string // what host resolves to
	ports     [2]int   // slurmctld, slurmd
	firstJob  int      // the lowest job number
	claims    claims
	nursery   *nursery
	proc      procfs
	cgroups   cgroupTree
	keepDir   bool
	shmRoot   string          // /dev/shm outside of tests
	shmNames  map[string]bool // in shmRoot before the start

	mu       sync.Mutex
	daemons  map[string]*daemon
	commands map[*Cmd]struct{}
	stopping bool

	stopOnce sync.Once
	stopErr  error
}

// Start brings a Slurm up and returns once its node is idle. ctx bounds the
// start only; the bed runs until Stop. An error wraps ErrUnavailable where the
// machine is the reason, and otherwise holds the ends of the daemons' logs.
func Start(ctx context.Context, options Options) (*Bed, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	options, err := options.complete(hostMachine())
	if err != nil {
		return nil, err
	}
	// Errors of the clean-up are not a reason not to start: what is in the way
	// of this bed shows below, by name.
	_ = sweep(os.TempDir())

	for attempt := 1; ; attempt++ {
		b, err := start(ctx, options)
		if err == nil {
			return b, nil
		}
		if attempt == portAttempts || !strings.Contains(err.Error(), "Address already in use") {
			return nil, err
		}
	}
}

func start(ctx context.Context, options Options) (_ *Bed, err error) {
	b := &Bed{
		Node:     options.Node,
		Auth:     options.Auth,
		options:  options,
		nursery:  newNursery(),
		proc:     procfs{root: procRoot},
		cgroups:  cgroupTree{root: cgroupRoot, node: options.Node},
		shmRoot:  shmRoot,
		daemons:  map[string]*daemon{},
		commands: map[*Cmd]struct{}{},
	}
	defer func() {
		if err != nil {
			err = errors.Join(b.withLogs(err), b.Stop())
		}
	}()
	if options.Dir != "" {
		if err := emptyDir(options.Dir); err != nil {
			return nil, err
		}
	}
	if err := b.claimName(ctx); err != nil {
		return nil, err
	}
	if err := b.makeDir(); err != nil {
		return nil, err
	}
	if b.shmNames, err = listNames(b.shmRoot); err != nil {
		return nil, fmt.Errorf("bed: %w", err)
	}
	for i := range b.ports {
		if b.ports[i], err = b.claims.port(); err != nil {
			return nil, err
		}
	}
	if b.firstJob, err = b.claims.jobs(); err != nil {
		return nil, err
	}
	if b.Auth != authNone {
		if err := b.startMunged(ctx); err != nil {
			return nil, err
		}
	}
	if err := b.writeConfiguration(); err != nil {
		return nil, err
	}
	for _, name := range []string{Slurmctld, Slurmd} {
		if err := b.startDaemon(ctx, name); err != nil {
			return nil, err
		}
	}
	if err := b.waitForNode(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

// claimName makes the node's name this bed's alone. The cgroup folders that
// slurmd makes are called after it, so that two nodes of one name on one
// machine would remove each other's.
func (b *Bed) claimName(ctx context.Context) error {
	var err error
	if b.host, b.addresses, err = shortHostname(); err != nil {
		return err
	}
	if b.Node == "" {
		if b.Node, err = b.claims.freeName(); err != nil {
			return err
		}
	} else if err := b.claims.name(ctx, b.Node); err != nil {
		return err
	}
	b.cgroups.node = b.Node
	busy, err := b.cgroups.busy()
	if err != nil {
		return err
	}
	if busy != "" {
		return fmt.Errorf("bed: node name %q: processes run in %s already: another slurmd on this machine has this name; set another Options.Node", b.Node, busy)
	}
	// From here on, what is in the node's cgroup folders is ours to end.
	b.Cluster = fmt.Sprintf("bed%d%s", os.Getpid(), strconv.FormatInt(time.Now().UnixNano(), 36))
	return nil
}

// startMunged starts munged. Where the choice is ours and munged cannot run,
// the bed does without it.
func (b *Bed) startMunged(ctx context.Context) error {
	err := b.startDaemon(ctx, Munged)
	if err != nil && b.options.Auth == "" {
		b.mu.Lock()
		delete(b.daemons, Munged)
		b.mu.Unlock()
		b.Auth = authNone
		return nil
	}
	b.Auth = authMunge
	return err
}

// waitForNode returns when the node has registered and is idle.
func (b *Bed) waitForNode(ctx context.Context) error {
	for {
		for _, name := range []string{Slurmctld, Slurmd} {
			if err := b.daemon(name).ended(); err != nil {
				return err
			}
		}
		state, reason, err := b.NodeState(ctx)
		switch {
		case err == nil && state == "idle":
			return nil
		case err == nil && hopeless(state) && !strings.Contains(state, "down"):
			return fmt.Errorf("bed: node %s is %s: %s", b.Node, state, reason)
		}
		if sleep(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("bed: node %s is not idle: state %q, reason %q: %w", b.Node, state, reason, errors.Join(err, context.Cause(ctx)))
		}
	}
}

// withLogs adds the ends of the daemons' logs to an error of Start.
func (b *Bed) withLogs(err error) error {
	const lines = 20
	var text strings.Builder
	for _, name := range []string{Munged, Slurmctld, Slurmd} {
		if end := tail(b.Log(name), lines); end != "" {
			fmt.Fprintf(&text, "\n--- %s.log:\n%s", name, end)
		}
	}
	return fmt.Errorf("%w%s", err, text.String())
}

// Stop cancels what still runs, ends the daemons and removes everything that
// the bed or its Slurm has left: processes, cgroup folders, and the private
// folder unless Options.Dir named it. It says what could not be removed. Calls
// after the first do nothing and return what the first did.
func (b *Bed) Stop() error {
	b.stopOnce.Do(func() { b.stopErr = b.stop() })
	return b.stopErr
}

func (b *Bed) stop() error {
	b.cancelJobs()

	b.mu.Lock()
	b.stopping = true
	commands := make([]*Cmd, 0, len(b.commands))
	for c := range b.commands {
		commands = append(commands, c)
	}
	b.mu.Unlock()
	for _, c := range commands {
		c.end()
	}

	var errs []error
	for _, name := range []string{Slurmctld, Slurmd} {
		errs = append(errs, b.stopDaemon(name))
	}
	if b.Cluster != "" {
		errs = append(errs, b.cgroups.thaw(), b.killProcesses())
	}
	errs = append(errs, b.stopDaemon(Munged))
	if b.Cluster != "" {
		errs = append(errs, b.cgroups.remove())
	}
	if b.Dir != "" && !b.keepDir {
		errs = append(errs, os.RemoveAll(b.Dir))
	}
	b.nursery.close()
	b.claims.release()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("bed: stop: %w", err)
	}
	return nil
}

// cancelJobs ends all jobs the way a user would, so that slurmd gets to run
// Epilogs and clean up. Whatever is wrong here is left to the steps after it.
func (b *Bed) cancelJobs() {
	if b.daemon(Slurmctld).ended() != nil || b.daemon(Slurmd).ended() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cancelTimeout)
	defer cancel()
	jobs, err := b.Jobs(ctx)
	if err != nil || len(jobs) == 0 {
		return
	}
	ids := make([]string, len(jobs))
	for i, job := range jobs {
		ids[i] = job.ID
	}
	// A plain scancel gives the tasks KillWait seconds after SIGTERM.
	_, _ = b.Run(ctx, "scancel", append([]string{"--full", "--signal=KILL"}, ids...)...)
	_, _ = b.Run(ctx, "scancel", ids...)
	for len(jobs) > 0 && err == nil && sleep(ctx, 20*time.Millisecond) == nil {
		jobs, err = b.Jobs(ctx)
	}
}

// Pid returns the process id of a daemon, or 0 if it does not run.
func (b *Bed) Pid(daemon string) int {
	d := b.daemon(daemon)
	if d.ended() != nil {
		return 0
	}
	return d.process.pid
}

// Log returns what a daemon has logged so far; slurmstepd logs into slurmd's.
func (b *Bed) Log(daemon string) string {
	if b.Dir == "" {
		return "" // Start failed before there were any
	}
	// What goes wrong before a daemon has read its configuration is on its
	// stderr only; munged in the foreground logs nowhere else.
	for _, suffix := range []string{".log", ".out"} {
		text, err := os.ReadFile(filepath.Join(b.Dir, "log", daemon+suffix))
		if err == nil && len(text) > 0 {
			return string(text)
		}
	}
	return ""
}

// GPU returns the path of the device node of the GPU with this index.
func (b *Bed) GPU(index int) string {
	return filepath.Join(b.Dir, "dev", "nvidia"+strconv.Itoa(index))
}

// shortHostname is the name that slurmctld must be configured with. Slurm's
// daemons and munged resolve it even where the configuration gives addresses.
func shortHostname() (name string, addresses []string, err error) {
	if name, err = os.Hostname(); err != nil {
		return "", nil, fmt.Errorf("bed: %w", err)
	}
	name, _, _ = strings.Cut(name, ".")
	if addresses, err = net.LookupHost(name); err != nil {
		return "", nil, fmt.Errorf("bed: %w: its host name %q does not resolve; add it to the line of 127.0.0.1 in /etc/hosts: %w", ErrUnavailable, name, err)
	}
	return name, addresses, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func tail(text string, lines int) string {
	text = strings.TrimRight(text, "\n")
	at := len(text)
	for range lines {
		if at = strings.LastIndexByte(text[:at], '\n'); at < 0 {
			return text
		}
	}
	return text[at+1:]
}
