package numavm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"gputune/tests/vm/internal/wire"
)

// ErrTimeout is in the error of a command that ran past its timeout.
var ErrTimeout = errors.New("command ran past its timeout")

// Command is a program to run in the guest.
type Command struct {
	// Argv is the program and its arguments; the program is looked up in the guest's PATH, in which are the guest scripts
	// of the working tree (slurm-up).
	Argv []string
	// Env is added to Options.Env and the usual variables, K=V each.
	Env []string
	// Dir is the working folder, /root if empty.
	Dir string
	// Timeout is after how long the command and everything it started is killed; 0 is Options.CommandTimeout.
	Timeout time.Duration
	// Stdout gets the output while it comes; nil: nobody. A writer that blocks holds up the whole machine.
	Stdout io.Writer
	// Stderr gets what is written there; nil: it goes where stdout goes, in the order of writing.
	Stderr io.Writer
}

// Result is how a command ended.
type Result struct {
	// Output is what it wrote to stdout and stderr. With a Stderr of its own their order is that of arrival.
	Output string
	// Code is its exit status, 128 + n after signal n.
	Code int
	// Took is its time, in this machine's clock.
	Took time.Duration
}

// Run runs a bash script. See Exec.
func (vm *VM) Run(ctx context.Context, script string) (Result, error) {
	return vm.Exec(ctx, Command{Argv: []string{"bash", "-c", script}})
}

// Exec runs a command to its end and returns what it wrote and its exit status. Processes that it leaves in the background
// live on. The error is an ErrTimeout if it ran too long (it has been killed then, the machine can be used on), ctx's when
// that ended, and a *MachineError when the machine panicked, hung or ended; what was written up to then is in the Result.
// Any number of goroutines may run commands at the same time.
func (vm *VM) Exec(ctx context.Context, c Command) (Result, error) {
	s, err := vm.session()
	if err != nil {
		return Result{}, err
	}
	if c.Timeout == 0 {
		c.Timeout = vm.opt.CommandTimeout
	}
	if c.Dir == "" {
		c.Dir = "/root"
	}
	start := time.Now()
	var out output
	id, call := s.begin(func(t wire.Type, b []byte) {
		w := c.Stdout
		if t == wire.Stderr {
			w = c.Stderr
		}
		out.add(b, w)
	})
	defer s.forget(id)
	err = s.out.WriteJSON(wire.Exec, id, wire.Command{
		Argv: c.Argv, Env: vm.environment(c.Env), Dir: c.Dir, Merge: c.Stderr == nil, TimeoutMillis: c.Timeout.Milliseconds(),
	})
	if err != nil {
		return Result{}, s.failed(err)
	}
	status, err := s.await(ctx, id, call, c.Timeout)
	text, werr := out.end()
	res := Result{Output: text, Code: status.Code, Took: time.Since(start)}
	switch {
	case err != nil:
		return res, err
	case status.TimedOut:
		return res, fmt.Errorf("%w of %s: %.200q", ErrTimeout, c.Timeout, c.Argv)
	case status.Error != "":
		return res, fmt.Errorf("running %.200q in the guest: %s", c.Argv, status.Error)
	case werr != nil:
		return res, fmt.Errorf("passing on the output of %.200q: %w", c.Argv, werr)
	}
	return res, nil
}

// await waits for the status of a call that the guest ends itself after timeout. One that does not is a machine that hangs.
func (s *session) await(ctx context.Context, id uint32, c *call, timeout time.Duration) (wire.Status, error) {
	overdue := time.NewTimer(timeout + s.patience.kill)
	defer overdue.Stop()
	cancelled := ctx.Done()
	for {
		select {
		case st := <-c.done:
			return st, ctx.Err()
		case <-s.dead:
			select { // it may have ended just before the machine
			case st := <-c.done:
				return st, nil
			default:
				return wire.Status{Code: -1}, errors.Join(s.err, ctx.Err())
			}
		case <-cancelled:
			cancelled = nil
			overdue.Reset(s.patience.kill)
			if err := s.out.Write(wire.Kill, id, nil); err != nil {
				return wire.Status{Code: -1}, errors.Join(ctx.Err(), s.failed(err))
			}
		case <-overdue.C:
			s.end(fmt.Sprintf("the guest did not end a command %s after it was due", s.patience.kill))
		}
	}
}

// Put writes a file in the guest, with the permission bits of mode, making its folder where needed. The file appears under
// its name when it is complete.
func (vm *VM) Put(ctx context.Context, path string, mode uint32, content io.Reader) error {
	s, err := vm.session()
	if err != nil {
		return err
	}
	id, call := s.begin(func(wire.Type, []byte) {})
	defer s.forget(id)
	if err := s.out.WriteJSON(wire.File, id, wire.FileHeader{Path: path, Mode: mode}); err != nil {
		return s.failed(err)
	}
	buf := make([]byte, wire.MaxPayload)
	for {
		n, rerr := content.Read(buf)
		if n > 0 {
			if err := s.out.Write(wire.Data, id, buf[:n]); err != nil {
				return s.failed(err)
			}
		}
		if errors.Is(rerr, io.EOF) {
			break
		}
		if rerr != nil {
			// The guest waits for the rest of it until the machine ends; nothing has its name.
			return fmt.Errorf("reading what goes to %s: %w", path, rerr)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if err := s.out.Write(wire.Data, id, nil); err != nil {
		return s.failed(err)
	}
	status, err := s.await(ctx, id, call, vm.opt.CommandTimeout)
	if err != nil {
		return err
	}
	if status.Error != "" {
		return fmt.Errorf("writing %s in the guest: %s", path, status.Error)
	}
	return nil
}
