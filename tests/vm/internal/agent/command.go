package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"gputune/tests/vm/internal/wire"
)

// run executes c, sends its output as it comes and returns how it ended. Cancelling ctx kills it.
func (a *agent) run(ctx context.Context, id uint32, c wire.Command) wire.Status {
	notStarted := func(err error) wire.Status { return wire.Status{Code: 127, Error: err.Error()} }
	if len(c.Argv) == 0 {
		return notStarted(errors.New("no command given"))
	}
	path, err := lookPath(c.Argv[0], c.Env, c.Dir)
	if err != nil {
		return notStarted(err)
	}
	group, err := a.newGroup(id)
	if err != nil {
		return notStarted(err)
	}
	defer group.close()
	stdout, err := newForwarder(func(b []byte) error { return a.out.Write(wire.Stdout, id, b) })
	if err != nil {
		return notStarted(err)
	}
	streams := []*forwarder{stdout}
	if !c.Merge {
		stderr, err := newForwarder(func(b []byte) error { return a.out.Write(wire.Stderr, id, b) })
		if err != nil {
			stdout.abandon()
			return notStarted(err)
		}
		streams = append(streams, stderr)
	}
	cmd := &exec.Cmd{
		Path: path, Args: c.Argv, Env: c.Env, Dir: c.Dir,
		Stdout: stdout.in, Stderr: streams[len(streams)-1].in,
		SysProcAttr: group.attributes(),
	}
	if err := cmd.Start(); err != nil {
		for _, s := range streams {
			s.abandon()
		}
		return notStarted(err)
	}
	for _, s := range streams {
		s.start()
	}

	if c.TimeoutMillis > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(c.TimeoutMillis)*time.Millisecond)
		defer cancel()
	}
	stopKiller := context.AfterFunc(ctx, func() {
		if err := group.kill(cmd.Process.Pid); err != nil {
			a.opt.Log.Error("cannot kill a command", "command", id, "pid", cmd.Process.Pid, "err", err)
		}
	})
	err = cmd.Wait()
	killed := !stopKiller()
	for _, s := range streams {
		s.drain()
	}
	status := wire.Status{Code: exitCode(cmd.ProcessState), TimedOut: killed && errors.Is(ctx.Err(), context.DeadlineExceeded)}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		status.Error = err.Error()
	}
	return status
}

// exitCode is the exit status as a shell gives it in $?.
func exitCode(s *os.ProcessState) int {
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return s.ExitCode()
}

// lookPath finds name in the PATH of env, which is the command's and not the agent's; a name with a slash is taken from dir.
func lookPath(name string, env []string, dir string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return name, nil
	}
	search := ""
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			search = v
		}
	}
	for _, d := range filepath.SplitList(search) {
		p := filepath.Join(d, name)
		if st, err := os.Stat(p); err == nil && !st.IsDir() && st.Mode().Perm()&0o111 != 0 {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s: not found in PATH=%s", name, search)
}

// group is all that one command started: a cgroup where the agent has one, or else a process group, which a process
// leaves with setsid.
type group struct {
	path string
	dir  *os.File
}

func (a *agent) newGroup(id uint32) (*group, error) {
	if a.opt.Cgroup == "" {
		return &group{}, nil
	}
	path := filepath.Join(a.opt.Cgroup, fmt.Sprintf("command-%d", id))
	if err := os.Mkdir(path, 0o755); err != nil {
		return nil, err
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return &group{path: path, dir: dir}, nil
}

func (g *group) attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true}
	if g.dir != nil {
		attr.UseCgroupFD, attr.CgroupFD = true, int(g.dir.Fd())
	}
	return attr
}

// kill ends the group whose first process is pid and has not been waited for.
func (g *group) kill(pid int) error {
	err := syscall.Kill(-pid, syscall.SIGKILL)
	if g.path != "" {
		err = os.WriteFile(filepath.Join(g.path, "cgroup.kill"), []byte("1"), 0)
	}
	return err
}

// close removes the cgroup unless something that the command left behind still runs in it, as a daemon would.
func (g *group) close() {
	if g.dir != nil {
		_ = g.dir.Close()
		_ = os.Remove(g.path)
	}
}
