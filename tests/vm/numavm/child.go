package numavm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// child is a process that does not outlive this one: the kernel kills it when this process ends (PR_SET_PDEATHSIG), and
// should that have failed, its pid file lets a later run end it.
type child struct {
	process *os.Process
	// done is closed when the process has ended; err is then how.
	done chan struct{}
	err  error
}

// startChild starts cmd and writes its pid and start time to pidFile. cmd's SysProcAttr must be nil.
func startChild(cmd *exec.Cmd, pidFile string) (*child, error) {
	c := &child{done: make(chan struct{})}
	started := make(chan error)
	// The signal is sent when the thread that forked ends, not the process (prctl(2)), so the thread is kept for it.
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		c.err = cmd.Wait()
		close(c.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	c.process = cmd.Process
	if err := writePidFile(pidFile, cmd.Process.Pid); err != nil {
		c.kill()
		return nil, err
	}
	return c, nil
}

// kill ends the process and returns when it has ended.
func (c *child) kill() {
	_ = c.process.Kill()
	<-c.done
}

// alive says whether the process still runs.
func (c *child) alive() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

func writePidFile(path string, pid int) error {
	start, err := startTime(pid)
	if err != nil {
		return err
	}
	// Whole or not at all: this process may be killed at any moment.
	if err := os.WriteFile(path+".new", fmt.Appendf(nil, "%d %s\n", pid, start), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// startTime is when a process started, in clock ticks since boot: field 22 of /proc/<pid>/stat (proc_pid_stat(5)). With the
// pid it names a process for good, where a pid alone may be given again.
func startTime(pid int) (string, error) {
	fields, err := statFields(pid)
	if err != nil {
		return "", err
	}
	return fields[22-3], nil
}

// statFields are the fields of /proc/<pid>/stat from the third on, which is the first after the command, up to the start time
// at least.
func statFields(pid int) ([]string, error) {
	path := filepath.Join("/proc", strconv.Itoa(pid), "stat")
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	// Field 2 is the command in parentheses, and may hold spaces and parentheses itself.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) <= 22-3 {
		return nil, fmt.Errorf("%s %q: too few fields", path, b)
	}
	return fields, nil
}

// killLeftover kills the process that a pid file names, if it is still that process.
func killLeftover(pidFile string) error {
	b, err := os.ReadFile(pidFile)
	if err != nil {
		return err
	}
	pidText, start, ok := strings.Cut(strings.TrimSpace(string(b)), " ")
	pid, err := strconv.Atoi(pidText)
	if err != nil || !ok || pid <= 1 {
		return fmt.Errorf("%s: %q is not a pid and a start time", pidFile, b)
	}
	now, err := startTime(pid)
	if errors.Is(err, os.ErrNotExist) || (err == nil && now != start) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill %d from %s: %w", pid, pidFile, err)
	}
	return nil
}
