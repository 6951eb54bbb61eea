package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Worker has work done that calls the driver.
type Worker interface {
	// Do does a piece of work and fills answer. The context bounds it.
	Do(ctx context.Context, work Work, answer any) error
}

// Work is one piece of work, as the child gets it on standard input.
type Work struct {
	Role   string   `json:"role"`
	Config string   `json:"config"`         // gputune.toml
	Jobs   []string `json:"jobs,omitempty"` // of RoleRestore

	GPUs     []string      `json:"gpus,omitempty"`     // of RoleFollow, PCI addresses
	Interval time.Duration `json:"interval,omitempty"` // of RoleFollow
}

// Children do each piece of work in a process of its own, this program again with
// an argument: a driver that hangs or crashes does not take the agent with it, and
// when the process has ended nothing of the agent's holds a GPU open, which
// would keep a MIG mode from changing and the driver from being unloaded. The
// child dies with the agent.
type Children struct {
	Path     string // this program
	Argument string // what makes it a child
	Log      *slog.Logger
	// stuck is a child that did not even end when it was killed.
	stuck chan struct{}
}

// ErrStuck is a child that hangs in the driver and cannot be killed. There is no
// further one until it ends.
var ErrStuck = errors.New("the process that does it hangs in the driver")

// How long a child may take to end when it was told to, and when it was killed.
const (
	courtesy = 5 * time.Second
	patience = 2 * time.Second
)

// Do implements Worker. It is not for several goroutines at once.
func (c *Children) Do(ctx context.Context, work Work, answer any) error {
	if err := c.free(work.Role); err != nil {
		return err
	}
	order, err := json.Marshal(work)
	if err != nil {
		return err
	}
	var output bytes.Buffer
	command := exec.Command(c.Path, c.Argument)
	command.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	command.Stdin = bytes.NewReader(order)
	command.Stdout = &output
	lines, err := command.StderrPipe()
	if err != nil {
		return err
	}
	started, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		// The child is told to die with the thread that makes it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := command.Start()
		started <- err
		if err != nil {
			return
		}
		c.log(work.Role, lines)
		ended <- command.Wait()
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("%s: %w", work.Role, err)
	}
	select {
	case err = <-ended:
	case <-ctx.Done():
		if err = c.end(command, ended); err == nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("%s: %w", work.Role, err)
	}
	if err != nil {
		return fmt.Errorf("%s: the process that does it: %w", work.Role, err)
	}
	if err := json.Unmarshal(output.Bytes(), answer); err != nil {
		return fmt.Errorf("%s: answer: %w", work.Role, err)
	}
	return nil
}

// free tells whether there can be another child.
func (c *Children) free(role string) error {
	if c.stuck == nil {
		return nil
	}
	select {
	case <-c.stuck:
		c.stuck = nil
		return nil
	default:
		return fmt.Errorf("%s: %w", role, ErrStuck)
	}
}

// end ends a child: it is asked to, then killed. What it was putting back is in the
// ledger.
func (c *Children) end(command *exec.Cmd, ended chan error) error {
	for _, step := range []struct {
		signal unix.Signal
		wait   time.Duration
	}{{unix.SIGTERM, courtesy}, {unix.SIGKILL, patience}} {
		_ = command.Process.Signal(step.signal) // it may have ended
		select {
		case <-ended:
			return nil
		case <-time.After(step.wait):
		}
	}
	c.stuck = make(chan struct{})
	go func(stuck chan struct{}) {
		<-ended
		close(stuck)
	}(c.stuck)
	return ErrStuck
}

func (c *Children) log(role string, lines io.Reader) {
	for scanner := bufio.NewScanner(lines); scanner.Scan(); {
		c.Log.Info(scanner.Text(), "work", role)
	}
	_, _ = io.Copy(io.Discard, lines) // after a line that was too long
}
