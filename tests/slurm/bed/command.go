package bed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// After its time is over a command gets this long between SIGTERM, by which
// srun cancels its step, and SIGKILL.
const commandTermTimeout = 3 * time.Second

// Cmd is a command for this bed's Slurm. Its fields are set before Start or Run;
// its methods can then be called from several goroutines at once.
//
// It runs in the folder work of Bed.Dir unless Dir says otherwise, in a process
// group of its own, with the environment of a login and SLURM_CONF: nothing of
// this program's own environment, so that a command does the same wherever the
// bed is started from.
type Cmd struct {
	// Name is looked up in PATH and the sbin folders.
	Name string
	Args []string
	// Env are variables beside the ones above; the last of a name wins.
	Env []string
	Dir string
	// Stdin is /dev/null if nil; not used with Terminal.
	Stdin io.Reader
	// User runs the command as this user, with its groups, HOME and USER; empty
	// means as we are. The mode of Dir must let the user in.
	User string
	// Timeout is Options.Timeout if 0. After it, or when ctx ends, the process
	// group is ended.
	Timeout time.Duration
	// Terminal gives the command a pseudo-terminal of 24 rows and 80 columns as
	// its controlling terminal, stdin, stdout and stderr. What it prints is then
	// all stdout.
	Terminal bool

	bed    *Bed
	cmd    *exec.Cmd
	output *output
	master *os.File
	began  time.Time
	cancel context.CancelFunc

	mu     sync.Mutex
	exited bool // the leader has exited; its pid is no longer for signals

	done   chan struct{}
	result Result
	err    error
}

// Result is how a command has ended.
type Result struct {
	Args           []string // the name first
	Stdout, Stderr string
	Code           int            // exit status, -1 if a signal ended it
	Signal         syscall.Signal // what ended it, 0 if it exited
	Duration       time.Duration  // from before its start to its end
}

// OK reports whether the command exited with 0.
func (r Result) OK() bool { return r.Code == 0 }

// String is for messages: the command, how it ended and what it printed.
func (r Result) String() string {
	end := "exit status " + strconv.Itoa(r.Code)
	if r.Signal != 0 {
		end = "signal " + unix.SignalName(r.Signal)
	}
	return fmt.Sprintf("%s: %s after %s\nstdout: %s\nstderr: %s",
		strings.Join(r.Args, " "), end, r.Duration.Round(time.Millisecond), r.Stdout, r.Stderr)
}

// Command returns a command to run, srun for example; set more of its fields
// as needed.
func (b *Bed) Command(name string, args ...string) *Cmd {
	return &Cmd{Name: name, Args: args, bed: b}
}

// Run runs a command to its end. An error means that it could not be started or
// had to be ended; whatever status it exits with is in the Result.
func (b *Bed) Run(ctx context.Context, name string, args ...string) (Result, error) {
	return b.Command(name, args...).Run(ctx)
}

// Run is Start and Wait.
func (c *Cmd) Run(ctx context.Context) (Result, error) {
	if err := c.Start(ctx); err != nil {
		return Result{}, err
	}
	return c.Wait()
}

// Start starts the command. Its process group is ended when ctx ends.
func (c *Cmd) Start(ctx context.Context) (err error) {
	if c.done != nil {
		return fmt.Errorf("bed: %s was started before", c.Name)
	}
	program, err := findProgram(c.Name)
	if err != nil {
		return fmt.Errorf("bed: %w", err)
	}
	c.cmd = exec.Command(program, c.Args...)
	c.cmd.Dir = c.Dir
	if c.Dir == "" {
		c.cmd.Dir = filepath.Join(c.bed.Dir, "work")
	}
	c.cmd.Env = append(loginEnvironment(), "SLURM_CONF="+c.bed.Conf)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.setUser(); err != nil {
		return err
	}
	c.cmd.Env = append(c.cmd.Env, c.Env...)
	// A process that the command leaves behind must not hold Wait up for ever
	// by keeping stdout open.
	c.cmd.WaitDelay = commandTermTimeout
	c.output = newOutput()

	var slave *os.File
	if c.Terminal {
		if c.master, slave, err = openTerminal(); err != nil {
			return err
		}
		defer slave.Close()
		if err := c.attach(slave); err != nil {
			return errors.Join(err, c.master.Close())
		}
	} else {
		c.cmd.SysProcAttr.Setpgid = true
		c.cmd.Stdin = c.Stdin
		c.cmd.Stdout = stream{c.output, &c.output.stdout}
		c.cmd.Stderr = stream{c.output, &c.output.stderr}
	}
	timeout := c.Timeout
	if timeout == 0 {
		timeout = c.bed.options.Timeout
	}
	ctx, c.cancel = context.WithTimeoutCause(ctx, timeout, fmt.Errorf("it ran for %s: %w", timeout, context.DeadlineExceeded))
	if err := c.launch(); err != nil {
		c.cancel()
		if c.master != nil {
			err = errors.Join(err, c.master.Close())
		}
		return err
	}

	printed := make(chan struct{})
	go func() {
		defer close(printed)
		if c.master != nil {
			// Ends with EIO when the last process has closed the slave.
			_, _ = io.Copy(stream{c.output, &c.output.stdout}, c.master)
		}
	}()
	go c.supervise(ctx, printed)
	return nil
}

// launch starts the process and makes it known to the bed, unless that has been
// stopped.
func (c *Cmd) launch() error {
	c.bed.mu.Lock()
	defer c.bed.mu.Unlock()
	if c.bed.stopping {
		return errStopped
	}
	c.began = time.Now()
	if err := c.bed.nursery.start(c.cmd); err != nil {
		return fmt.Errorf("bed: start %s: %w", c.Name, err)
	}
	c.done = make(chan struct{})
	c.bed.commands[c] = struct{}{}
	return nil
}

func (c *Cmd) attach(slave *os.File) error {
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = slave, slave, slave
	c.cmd.SysProcAttr.Setsid = true
	c.cmd.SysProcAttr.Setctty = true // of file descriptor 0
	if credential := c.cmd.SysProcAttr.Credential; credential != nil {
		if err := slave.Chown(int(credential.Uid), -1); err != nil {
			return fmt.Errorf("bed: %w", err)
		}
	}
	return resize(c.master, terminalRows, terminalColumns)
}

func (c *Cmd) setUser() error {
	if c.User == "" {
		return nil
	}
	account, err := user.Lookup(c.User)
	if err != nil {
		return fmt.Errorf("bed: %w", err)
	}
	names, err := account.GroupIds()
	if err != nil {
		return fmt.Errorf("bed: groups of user %s: %w", c.User, err)
	}
	ids := make([]uint32, 0, len(names)+2)
	for _, name := range append([]string{account.Uid, account.Gid}, names...) {
		id, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			return fmt.Errorf("bed: user %s: id %q: %w", c.User, name, err)
		}
		ids = append(ids, uint32(id))
	}
	c.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: ids[0], Gid: ids[1], Groups: ids[2:]}
	c.cmd.Env = append(c.cmd.Env, "HOME="+account.HomeDir, "USER="+account.Username, "LOGNAME="+account.Username)
	return nil
}

// loginEnvironment is what a user who has logged in has. salloc's interactive
// step, for one, runs $SHELL.
func loginEnvironment() []string {
	return []string{searchPath, "HOME=/root", "USER=root", "LOGNAME=root", "SHELL=/bin/bash", "TERM=xterm", "LANG=C.UTF-8"}
}

// supervise ends the command when its time is over and collects how it ended.
func (c *Cmd) supervise(ctx context.Context, printed <-chan struct{}) {
	defer close(c.done)
	defer c.cancel()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		// Without reaping, so that the pid and the process group stay the
		// command's until exited says that they are not.
		for {
			err := unix.Waitid(unix.P_PID, c.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
			if !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}()
	var overtime error
	select {
	case <-gone:
	case <-ctx.Done():
		overtime = context.Cause(ctx)
		c.signalGroup(unix.SIGTERM)
		select {
		case <-gone:
		case <-time.After(commandTermTimeout):
		}
		c.signalGroup(unix.SIGKILL)
		<-gone
	}
	duration := time.Since(c.began)
	c.mu.Lock()
	c.exited = true
	c.mu.Unlock()
	err := c.cmd.Wait()
	if c.master != nil {
		select {
		case <-printed:
		case <-time.After(c.cmd.WaitDelay):
			err = exec.ErrWaitDelay
		}
		err = errors.Join(err, c.master.Close())
		<-printed
	}
	c.output.close()

	c.bed.mu.Lock()
	delete(c.bed.commands, c)
	c.bed.mu.Unlock()

	c.result = Result{Args: append([]string{c.Name}, c.Args...), Code: c.cmd.ProcessState.ExitCode(), Duration: duration}
	c.result.Stdout, c.result.Stderr = c.output.texts()
	if status, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		c.result.Signal = status.Signal()
	}
	var exit *exec.ExitError
	switch {
	case overtime != nil:
		c.err = fmt.Errorf("bed: %s was ended: %w\n%s", c.Name, overtime, c.result)
	case errors.Is(err, exec.ErrWaitDelay):
		c.err = fmt.Errorf("bed: %s has ended, but something it started holds its output open\n%s", c.Name, c.result)
	case err != nil && !errors.As(err, &exit):
		c.err = fmt.Errorf("bed: %s: %w", c.Name, err)
	}
}

// Wait waits for the end of the command.
func (c *Cmd) Wait() (Result, error) {
	if c.done == nil {
		return Result{}, fmt.Errorf("bed: %s has not been started", c.Name)
	}
	<-c.done
	return c.result, c.err
}

// Pid returns the command's process id.
func (c *Cmd) Pid() int { return c.cmd.Process.Pid }

// Signal sends a signal to the command, not to what it has started. It returns
// os.ErrProcessDone if that has ended.
func (c *Cmd) Signal(sig syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.exited {
		return os.ErrProcessDone
	}
	return unix.Kill(c.cmd.Process.Pid, sig)
}

func (c *Cmd) signalGroup(sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.exited {
		// ESRCH is the only error there can be, and as good.
		_ = unix.Kill(-c.cmd.Process.Pid, sig)
	}
}

// end ends the command and waits for that.
func (c *Cmd) end() {
	c.cancel()
	<-c.done
}

// Output returns what the command has printed so far.
func (c *Cmd) Output() (stdout, stderr string) { return c.output.texts() }

// WaitOutput returns when the command has printed text on stdout or stderr, and
// an error if it ends, or ctx does, without that.
func (c *Cmd) WaitOutput(ctx context.Context, text string) error {
	if err := c.output.wait(ctx, text); err != nil {
		stdout, stderr := c.output.texts()
		return fmt.Errorf("bed: %s has not printed %q: %w\nstdout: %s\nstderr: %s", c.Name, text, err, stdout, stderr)
	}
	return nil
}

// Type types text at the command's terminal: "\r" is the Enter key, "\x03"
// Ctrl-C.
func (c *Cmd) Type(text string) error {
	if c.master == nil {
		return fmt.Errorf("bed: %s has no terminal", c.Name)
	}
	if _, err := c.master.WriteString(text); err != nil {
		return fmt.Errorf("bed: type at %s: %w", c.Name, err)
	}
	return nil
}

// Resize changes the size of the command's terminal.
func (c *Cmd) Resize(rows, columns int) error {
	if c.master == nil {
		return fmt.Errorf("bed: %s has no terminal", c.Name)
	}
	return resize(c.master, rows, columns)
}
