package bed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// daemon is one of Slurm's daemons that this bed has started.
type daemon struct {
	name    string
	process process
	exited  chan struct{}
	status  string // how it ended; to be read after exited is closed
}

// ended returns an error if the daemon does not run.
func (d *daemon) ended() error {
	if d == nil {
		return errors.New("bed: it has not been started")
	}
	select {
	case <-d.exited:
		return fmt.Errorf("bed: %s has ended: %s", d.name, d.status)
	default:
		return nil
	}
}

func (b *Bed) daemon(name string) *daemon {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.daemons[name]
}

func (b *Bed) daemonPIDs() map[int]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	pids := make(map[int]bool, len(b.daemons))
	for _, d := range b.daemons {
		if d.ended() == nil {
			pids[d.process.pid] = true
		}
	}
	return pids
}

// arguments are a daemon's in the foreground.
func (b *Bed) arguments(name string) ([]string, error) {
	in := func(dir, file string) string { return filepath.Join(b.Dir, dir, file) }
	switch name {
	case Munged:
		return []string{
			"--foreground", "--num-threads=2",
			"--key-file=" + in("munge", "munge.key"), "--seed-file=" + in("munge", "munge.seed"),
			"--socket=" + in("run", "munge.sock"), "--pid-file=" + in("run", "munged.pid"), "--log-file=" + in("log", "munged.log"),
		}, nil
	case Slurmctld:
		return []string{"-D", "-f", b.Conf}, nil
	case Slurmd:
		return []string{"-D", "-N", b.Node, "-f", b.Conf}, nil
	}
	return nil, fmt.Errorf("bed: daemon %q: want %s, %s or %s", name, Munged, Slurmctld, Slurmd)
}

// startDaemon starts a daemon and returns when it answers.
func (b *Bed) startDaemon(ctx context.Context, name string) error {
	arguments, err := b.arguments(name)
	if err != nil {
		return err
	}
	program, err := findProgram(name)
	if err != nil {
		return fmt.Errorf("bed: %w: %w", ErrUnavailable, err)
	}
	out, err := os.OpenFile(filepath.Join(b.Dir, "log", name+".out"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("bed: %w", err)
	}
	defer out.Close()

	cmd := exec.Command(program, arguments...)
	cmd.Dir = filepath.Join(b.Dir, "log")
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = b.daemonEnvironment()
	// A process group of its own keeps the terminal's Ctrl-C from the daemons
	// while whoever uses the bed still wants to stop it in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}

	var d *daemon
	if name == Slurmd && b.options.Daemonize {
		cmd.Args = append([]string{program}, arguments[1:]...) // without -D
		cmd.SysProcAttr.Pdeathsig = 0
		d, err = b.startDaemonized(ctx, cmd)
	} else {
		d, err = b.startChild(name, cmd)
	}
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.daemons[name] = d
	b.mu.Unlock()
	return b.waitForAnswer(ctx, d)
}

const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func (b *Bed) daemonEnvironment() []string {
	env := []string{
		searchPath, "HOME=/root", "LANG=C.UTF-8",
		"SLURM_CONF=" + b.Conf, markVariable + "=" + b.Cluster,
	}
	for _, variable := range b.options.DaemonEnv {
		env = append(env, b.expand(variable))
	}
	return env
}

func (b *Bed) startChild(name string, cmd *exec.Cmd) (*daemon, error) {
	if err := b.nursery.start(cmd); err != nil {
		return nil, fmt.Errorf("bed: start %s: %w", name, err)
	}
	d := &daemon{name: name, process: process{pid: cmd.Process.Pid}, exited: make(chan struct{})}
	// Not reaped yet, the child has its pid for certain.
	switch found, err := b.proc.read(cmd.Process.Pid); {
	case err == nil:
		d.process = found
	case !errors.Is(err, errEnded):
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	go func() {
		_ = cmd.Wait() // the status says it
		d.status = cmd.ProcessState.String()
		close(d.exited)
	}()
	return d, nil
}

// startDaemonized starts a slurmd that leaves the foreground by itself, and
// finds it through the pid file that it writes.
func (b *Bed) startDaemonized(ctx context.Context, cmd *exec.Cmd) (*daemon, error) {
	pidFile := filepath.Join(b.Dir, "run", "slurmd.pid")
	if err := os.Remove(pidFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("bed: %w", err)
	}
	if err := b.nursery.start(cmd); err != nil {
		return nil, fmt.Errorf("bed: start slurmd: %w", err)
	}
	front := make(chan error, 1)
	go func() { front <- cmd.Wait() }()
	select {
	case err := <-front:
		if err != nil {
			return nil, fmt.Errorf("bed: start slurmd: %w", err)
		}
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("bed: slurmd has not left the foreground: %w", context.Cause(ctx)), cmd.Process.Kill())
	}
	for {
		found, err := b.readPIDFile(pidFile)
		if err == nil {
			d := &daemon{name: Slurmd, process: found, exited: make(chan struct{})}
			go b.watch(d)
			return d, nil
		}
		if sleep(ctx, 5*time.Millisecond) != nil {
			return nil, fmt.Errorf("bed: slurmd left the foreground and is not to be found: %w: %w", err, context.Cause(ctx))
		}
	}
}

func (b *Bed) readPIDFile(path string) (process, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return process{}, fmt.Errorf("bed: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return process{}, fmt.Errorf("bed: %s: %w", path, err)
	}
	found, err := b.proc.read(pid)
	if err != nil {
		return process{}, fmt.Errorf("bed: process %d of %s: %w", pid, path, err)
	}
	if !b.marked(found) {
		return process{}, fmt.Errorf("bed: %s names process %d, which is %s", path, pid, b.proc.commandLine(found))
	}
	return found, nil
}

// watch notices the end of a daemon that is not our child. pidfd_open(2): its
// poll does not depend on how soon the parent reaps.
func (b *Bed) watch(d *daemon) {
	defer close(d.exited)
	d.status = "it was not our child, so that its status is unknown"
	fd, err := unix.PidfdOpen(d.process.pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if now, err := b.proc.read(d.process.pid); err != nil || now.start != d.process.start {
		return
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if n > 0 || (err != nil && !errors.Is(err, unix.EINTR)) {
			return
		}
	}
}

// waitForAnswer returns when a daemon listens. Connecting would tell as well, but
// leave lines of an error in the daemons' logs.
func (b *Bed) waitForAnswer(ctx context.Context, d *daemon) error {
	for {
		if err := d.ended(); err != nil {
			return err
		}
		var listening bool
		var err error
		switch d.name {
		case Munged:
			listening, err = b.proc.listensUnix(filepath.Join(b.Dir, "run", "munge.sock"))
		case Slurmctld:
			listening, err = b.proc.listensTCP(b.ports[0])
		case Slurmd:
			listening, err = b.proc.listensTCP(b.ports[1])
		}
		if err != nil || listening {
			return err
		}
		if sleep(ctx, 5*time.Millisecond) != nil {
			return fmt.Errorf("bed: %s does not listen: %w", d.name, context.Cause(ctx))
		}
	}
}

// stopDaemon ends a daemon if it runs.
func (b *Bed) stopDaemon(name string) error {
	d := b.daemon(name)
	if d.ended() != nil {
		return nil
	}
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := b.proc.signal(d.process, sig); err != nil {
			return err
		}
		select {
		case <-d.exited:
			return nil
		case <-time.After(termTimeout):
		}
	}
	return fmt.Errorf("bed: %s, process %d, has not ended after SIGKILL", name, d.process.pid)
}

// Restart stops a daemon, if it still runs, and starts it again. Jobs go on
// meanwhile. It returns when the daemon answers and the node responds.
func (b *Bed) Restart(ctx context.Context, daemon string) error {
	if _, err := b.arguments(daemon); err != nil {
		return err
	}
	if daemon == Munged && b.Auth == authNone {
		return errors.New("bed: restart munged: this bed runs without it")
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := b.stopDaemon(daemon); err != nil {
		return err
	}
	if err := b.startDaemon(ctx, daemon); err != nil {
		return b.withLogs(err)
	}
	for {
		state, reason, err := b.NodeState(ctx)
		if err == nil && !strings.Contains(state, "unknown") && !strings.Contains(state, "down") && !strings.Contains(state, "*") {
			return nil
		}
		if sleep(ctx, 20*time.Millisecond) != nil {
			return b.withLogs(fmt.Errorf("bed: restart %s: node %s: state %q, reason %q: %w", daemon, b.Node, state, reason, errors.Join(err, context.Cause(ctx))))
		}
	}
}
