// Package program is what gputune-prolog and gputune-epilog have in common.
//
// The work is done by a child, which is this program again, because the driver
// can hang: a process in the middle of a call to a GPU that has gone may not
// even die when it is killed, and whoever waits for it waits for ever. The
// parent passes on what the child says, is done soon after its time is over, and
// leaves nobody behind that holds slurmd's pipe. The child dies with the parent.
package program

import (
	"bytes"
	"cmp"
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
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gputune/conf"
	"gputune/internal/job"
	"gputune/internal/journal"
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
	// Again says that work whose child died is done a second time.
	Again bool
	// Undo is run in a child of its own after one that died or was killed because
	// its time was over; nil is nothing.
	Undo func(context.Context, *job.Host) error
	// Broken is the exit status if the parent itself has a fault or is called
	// with arguments that it does not know.
	Broken int
	// Lost is called in the parent if the work has not been done: why says
	// what happened. It must not touch what can hang. Its error is the program's.
	Lost func(h *job.Host, why error) error
}

// Exit statuses.
const (
	exitDone   = 0
	exitFailed = 1
	exitBroken = 2 // of a child that has not done its work
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
	within := flags.Duration("limit", 0, "how long the part may take (default: the deadline of the configuration)")
	switch err := flags.Parse(arguments); {
	case errors.Is(err, flag.ErrHelp):
		return exitDone
	case err != nil:
		return p.Broken
	case flags.NArg() > 0:
		fmt.Fprintf(os.Stderr, "%s: argument %q: none are taken, but for options\n", p.Name, flags.Arg(0))
		return p.Broken
	case *version:
		fmt.Println(p.Name, p.Version)
		return exitDone
	}
	// Slurm gives no PATH. Nothing is looked up in it here; what the C library
	// may start for a lookup of a user gets the plain one.
	if err := os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"); err != nil {
		return p.Broken
	}
	output := &named{name: p.Name, to: os.Stderr}
	h := Host(output)
	h.Load(*config)
	if output.journal = newJournal(string(h.Site.Paths.Journal), p.Name, os.Getenv("SLURM_JOB_ID")); output.journal != nil {
		defer output.journal.Close()
	}
	limit := cmp.Or(*within, p.Deadline(h.Site))
	broken := p.Broken
	if *role != "" {
		broken = exitBroken
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
	case *role == roleUndo && p.Undo != nil:
		err = p.work(h, limit, p.Undo)
	case p.Quick(h):
		err = p.work(h, limit, p.Work)
	default:
		if conf.Absent(*config) {
			fmt.Fprintf(h.Output, "%s is not there: the defaults are used\n", conf.File)
		}
		begin := time.Now()
		err = p.supervise(h, *config, limit)
		if noted := h.Finish(strings.TrimPrefix(p.Name, "gputune-"), time.Since(begin), err != nil); noted != nil {
			fmt.Fprintf(h.Output, "not noted for the agent's metrics: %v\n", noted)
		}
	}
	var said job.SaidError
	if err != nil && !errors.As(err, &said) {
		fmt.Fprintln(h.Output, err)
	}
	if err != nil {
		return exitFailed
	}
	return exitDone
}

// Host returns this node with the default configuration, for a program that
// slurmd or a person has started.
func Host(output io.Writer) *job.Host {
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

// errFailed is a child that did its work and wrote why it failed.
var errFailed = job.SaidError{Err: errors.New("see the lines before")}

// supervise has the work done by a child. A quarter of the time is kept for
// putting back what a child did that has to be killed.
func (p Program) supervise(h *job.Host, config string, limit time.Duration) error {
	begin := time.Now()
	workEnd := begin.Add(limit)
	if p.Undo != nil {
		workEnd = begin.Add(limit - limit/4)
	}
	err := p.child(h, config, roleWork, workEnd)
	if p.Again && errors.Is(err, errDied) {
		fmt.Fprintf(h.Output, "%v: trying again\n", err)
		err = p.child(h, config, roleWork, workEnd)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errFailed):
		return err
	case p.Undo != nil && !errors.Is(err, errStuck):
		if undo := p.child(h, config, roleUndo, begin.Add(limit)); undo != nil {
			err = fmt.Errorf("%w; putting back what it did: %w", err, undo)
		}
	}
	return p.Lost(h, err)
}

// errDied is a child that ended in the middle of its work.
var errDied = errors.New("the process that did the work")

// errStuck is a child that did not even end when it was killed.
var errStuck = errors.New("it hangs in the driver")

// patience is how long a child that was killed may take to end.
const patience = time.Second

// child runs this program in a role until it ends or its time is over.
func (p Program) child(h *job.Host, config, role string, end time.Time) error {
	left := time.Until(end).Round(time.Millisecond)
	command := exec.Command("/proc/self/exe", "--role="+role, "--config="+config, "--limit="+left.String())
	command.Args[0] = p.Name // what ps and the ledger's locks say
	command.Env = h.Relevant()
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
	over := time.NewTimer(left)
	defer over.Stop()
	select {
	case err = <-ended:
	case <-over.C:
		_ = command.Process.Kill()
		select {
		case <-ended:
			return errors.New("not done in time")
		case <-time.After(patience):
			passed.close()
			return fmt.Errorf("not done in time: %w", errStuck)
		}
	}
	var status *exec.ExitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &status) && status.ExitCode() == exitFailed:
		return errFailed
	default:
		return fmt.Errorf("%w: %w", errDied, err)
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
	name    string
	to      io.Writer
	journal *journal.Writer // nil: none
}

// Write implements io.Writer. What it gets is whole lines.
func (n *named) Write(text []byte) (int, error) {
	for line := range bytes.Lines(text) {
		if n.journal != nil {
			// Where the journal does not take it, a line is lost rather than a job delayed.
			_ = n.journal.Send(journal.Entry{Message: strings.TrimSuffix(string(line), "\n"), Priority: journal.Info})
		}
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
