// Package program is what gputune-prolog and gputune-epilog have in common.
//
// The work is done by a child, which is this program again, because the driver
// can hang: a process in the middle of a call to a GPU that has gone may not
// even die when it is killed, and whoever waits for it waits for ever. The
// parent reads what the child says, is done when its time is over, and leaves
// nobody behind that holds slurmd's pipe. The child dies with the parent.
package program

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gputune/conf"
	"gputune/internal/job"
	"gputune/internal/nvml"
)

// Program is one of the two.
type Program struct {
	Name    string // for the lines that it writes
	Version string
	// Deadline is how long it may take.
	Deadline func(conf.Config) time.Duration
	// Quick tells whether the work touches nothing that can hang, so that it
	// needs no child.
	Quick func(*job.Host) bool
	// Work does the work. A panic in it is like the death of the child.
	Work func(context.Context, *job.Host) error
	// Undo is run in a child of its own after one that died; nil is nothing.
	Undo func(context.Context, *job.Host) error
	// Broken is the exit status if the parent itself has a fault.
	Broken int
	// Lost is called in the parent if the work has not been done: why says
	// what happened. It must not touch what can hang. Its error is the program's.
	Lost func(h *job.Host, why error) error
}

// Exit statuses.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// The roles of the process that does the work; the parent has none.
const (
	roleWork = "work"
	roleUndo = "undo"
)

// Main runs the program and returns its exit status.
func (p Program) Main(arguments []string) (status int) {
	// The child is told to die with the thread that makes it.
	runtime.LockOSThread()
	// A slurmd that has gone must not end the work in the middle.
	signal.Ignore(unix.SIGPIPE)
	unix.Umask(0o022)

	flags := flag.NewFlagSet(p.Name, flag.ContinueOnError)
	config := flags.String("config", "", "gputune.toml to read (default "+conf.File+")")
	version := flags.Bool("version", false, "print the version")
	role := flags.String("role", "", "which part of the work to do; the program runs itself with it")
	switch err := flags.Parse(arguments); {
	case errors.Is(err, flag.ErrHelp):
		return exitDone
	case err != nil || flags.NArg() > 0:
		return exitUsage
	case *version:
		fmt.Println(p.Name, p.Version)
		return exitDone
	}
	// Slurm gives no PATH. Nothing is looked up in it here; what the C library
	// may start for a lookup of a user gets the plain one.
	if err := os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"); err != nil {
		return exitFailed
	}
	h := host(&named{name: p.Name, to: os.Stderr})
	h.Site, h.SiteError = conf.Load(*config)
	limit := p.Deadline(h.Site)
	broken := p.Broken
	if *role != "" {
		broken = exitUsage // none that a child that has done its work returns
	}
	defer func() {
		if fault := recover(); fault != nil {
			fmt.Fprintf(h.Output, "fault in gputune: %v: %s\n", fault, bytes.ReplaceAll(debug.Stack(), []byte("\n"), []byte(" ")))
			status = broken
		}
	}()
	var err error
	switch {
	case *role == roleWork:
		err = p.work(h, limit, p.Work)
	case *role == roleUndo:
		err = p.work(h, limit, p.Undo)
	case p.Quick(h):
		err = p.work(h, limit, p.Work)
	default:
		err = p.supervise(h, *config, limit)
	}
	if err != nil {
		fmt.Fprintln(h.Output, err)
		return exitFailed
	}
	return exitDone
}

func host(output io.Writer) *job.Host {
	return &job.Host{
		Root:    "/",
		Environ: os.Environ(),
		NVML:    nvml.New().Open,
		Groups:  groups,
		Now:     time.Now,
		Output:  output,
	}
}

// work runs a part of the work in this process. It ends itself somewhat before
// the parent would do it, as long as nothing hangs.
func (p Program) work(h *job.Host, limit time.Duration, part func(context.Context, *job.Host) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit-limit/8)
	defer cancel()
	return part(ctx, h)
}

// errFailed is a child that did its work and reported a failure.
var errFailed = errors.New("see above")

// supervise has the work done by a child.
func (p Program) supervise(h *job.Host, config string, limit time.Duration) error {
	end := time.Now().Add(limit)
	err := p.child(config, roleWork, end)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errFailed):
		return err
	case p.Undo != nil && !errors.Is(err, context.DeadlineExceeded):
		if undo := p.child(config, roleUndo, end); undo != nil {
			err = fmt.Errorf("%w; putting back what it did: %w", err, undo)
		}
	}
	return p.Lost(h, err)
}

// child runs this program in a role until it ends or its time is over.
func (p Program) child(config, role string, end time.Time) error {
	command := exec.Command("/proc/self/exe", "--role="+role, "--config="+config)
	command.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	output, err := command.StderrPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	// Lines of a child that hangs are passed on until it is given up.
	passed := &gate{to: os.Stderr}
	ended := make(chan error, 1)
	go func() {
		_, _ = io.Copy(passed, output) // the pipe's end
		ended <- command.Wait()
	}()
	over := time.NewTimer(time.Until(end))
	defer over.Stop()
	select {
	case err = <-ended:
	case <-over.C:
		passed.close()
		_ = command.Process.Kill() // it may not die of it, and nobody waits for that
		return fmt.Errorf("not done in time: %w", context.DeadlineExceeded)
	}
	var status *exec.ExitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &status) && status.ExitCode() == exitFailed:
		return errFailed
	default:
		return fmt.Errorf("the process that did the work: %w", err)
	}
}

// gate passes on what is written to it until it is closed.
type gate struct {
	mu     sync.Mutex
	to     io.Writer
	closed bool
}

// Write implements io.Writer. A reader that has gone is no reason to stop.
func (g *gate) Write(text []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		_, _ = g.to.Write(text)
	}
	return len(text), nil
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// named puts the program's name before each line.
type named struct {
	name string
	to   io.Writer
}

// Write implements io.Writer. What it gets is whole lines.
func (n *named) Write(text []byte) (int, error) {
	for line := range bytes.Lines(text) {
		if _, err := fmt.Fprintf(n.to, "%s: %s", n.name, line); err != nil {
			return 0, err
		}
	}
	return len(text), nil
}

// groups returns the names of a user's groups, from the node's user database.
func groups(uid uint32) ([]string, error) {
	who, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return nil, err
	}
	ids, err := who.GroupIds()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, id := range ids {
		if group, err := user.LookupGroupId(id); err == nil { // one without a name matches none
			names = append(names, group.Name)
		}
	}
	return names, nil
}
