package mps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// session keeps a daemon in a session of its own and, on cgroup v2, in a cgroup
// of its own, where its processes are known by being in it.
type session struct {
	host  Host
	spec  Spec
	token string // of the record

	over chan error // gets why the daemon has ended
	why  error
}

// start implements keeper.
func (s *session) start(_ context.Context, c command) error {
	cgroup, err := s.makeCgroup()
	if err != nil {
		return err
	}
	started, err := s.launch(c, cgroup)
	if cgroup != nil {
		cgroup.Close()
		if err != nil { // a kernel before 5.7, or a sandbox
			if started, err = s.launch(c, nil); err == nil {
				err = s.removeCgroup(context.Background())
			}
		}
	}
	if err != nil {
		return err
	}
	// Slurmd may be safe from the kernel's search for memory; the user's daemon
	// must not be.
	_ = os.WriteFile(filepath.Join(s.host.proc(), strconv.Itoa(started.Process.Pid), "oom_score_adj"), []byte("0"), 0)
	s.over = make(chan error, 1)
	go func() {
		// Waits for the daemon's end, so that it does not stay as a zombie where
		// this program outlives it.
		if err := started.Wait(); err != nil {
			s.over <- fmt.Errorf("it ended before it answered: %w", err)
			return
		}
		s.over <- errors.New("it ended before it answered")
	}()
	return nil
}

func (s *session) launch(c command, cgroup *os.File) (*exec.Cmd, error) {
	if err := keepFiles(); err != nil {
		return nil, err
	}
	daemon := exec.Command(c.path, "-f")
	daemon.Env, daemon.Dir = c.environment, "/"
	daemon.Stdout, daemon.Stderr = c.output, c.output
	daemon.SysProcAttr = asUser(s.spec)
	if cgroup != nil {
		daemon.SysProcAttr.UseCgroupFD, daemon.SysProcAttr.CgroupFD = true, int(cgroup.Fd())
	}
	return daemon, daemon.Start()
}

// ended implements keeper.
func (s *session) ended(context.Context) error {
	select {
	case s.why = <-s.over:
	default:
	}
	return s.why
}

// members implements keeper.
func (s *session) members(context.Context) ([]int, error) {
	folder := s.cgroupFolder()
	if folder == "" {
		return nil, nil
	}
	return readPIDs(filepath.Join(folder, "cgroup.procs"))
}

// stop implements keeper.
func (s *session) stop(ctx context.Context, owned ownedFunc) error {
	alive, err := owned(ctx)
	if err != nil {
		return err
	}
	for _, p := range alive {
		if err := s.host.signal(p, unix.SIGTERM); err != nil {
			return err
		}
	}
	wait, cancel := context.WithTimeout(ctx, s.host.limits().Term)
	defer cancel()
	for len(alive) > 0 && sleep(wait) == nil {
		if alive, err = owned(ctx); err != nil {
			return err
		}
	}
	if len(alive) > 0 {
		s.host.log().Warn("processes of an MPS daemon do not end: killed", "job", s.spec.Job, "first", alive[0].String())
		if folder := s.cgroupFolder(); folder != "" {
			// At once for all, those too that they start meanwhile; from Linux 5.14 on.
			_ = os.WriteFile(filepath.Join(folder, "cgroup.kill"), []byte("1"), 0)
		}
		if err := s.host.kill(ctx, owned); err != nil {
			return err
		}
	}
	return s.removeCgroup(ctx)
}

// cgroup implements keeper.
func (s *session) cgroup(context.Context) *os.File {
	return openFolder(s.cgroupFolder())
}

// close implements keeper.
func (s *session) close() {}

// cgroupParent is the cgroup above those of daemons, right below the root: it is
// in no job's and in no service's.
const cgroupParent = "gputune-mps"

// cgroupFolder returns where the daemon's cgroup is if there is one, "" without
// cgroup v2.
func (s *session) cgroupFolder() string {
	mount := s.host.cgroupMount()
	if mount == "" {
		return ""
	}
	// The token, since a machine can have several nodes of as many clusters.
	return filepath.Join(mount, cgroupParent, "job-"+s.spec.Job+"-"+s.token)
}

// makeCgroup makes the daemon's cgroup, nil where there can be none.
func (s *session) makeCgroup() (*os.File, error) {
	folder := s.cgroupFolder()
	if folder == "" {
		return nil, nil //nolint:nilnil // a node without is none that has an error
	}
	const tries = 10 // another job's end can remove the folder above it
	for try := 1; ; try++ {
		err := os.Mkdir(filepath.Dir(folder), 0o755)
		if err == nil || errors.Is(err, fs.ErrExist) {
			err = os.Mkdir(folder, 0o755)
		}
		switch {
		case err == nil || errors.Is(err, fs.ErrExist):
			return openFolder(folder), nil
		case errors.Is(err, unix.EROFS) || errors.Is(err, fs.ErrPermission):
			return nil, nil //nolint:nilnil // in a container
		case !errors.Is(err, fs.ErrNotExist) || try == tries:
			return nil, err
		}
	}
}

// removeCgroup removes the daemon's cgroup, which has no process any more. The
// kernel may need a moment to see that.
func (s *session) removeCgroup(ctx context.Context) error {
	folder := s.cgroupFolder()
	if folder == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.host.limits().Kill)
	defer cancel()
	for {
		err := os.Remove(folder)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(filepath.Dir(folder)) // unless another job has one
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || sleep(ctx) != nil {
			return err
		}
	}
}
