package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Watcher has a child work on for as long as it is wanted.
type Watcher interface {
	// Watch starts a child and hands over each line that it writes, until the
	// context ends, which ends the child; that is no error. Orders go to its
	// standard input as JSON. A child that writes nothing for silence, ends by itself
	// or writes a line that line refuses, is an error.
	Watch(ctx context.Context, work Work, orders <-chan any, silence time.Duration, line func([]byte) error) error
}

// maxLine bounds a line of a child's, in bytes.
const maxLine = 4 << 20

var (
	errSilent = errors.New("the process that does it says nothing more")
	errEnded  = errors.New("the process that does it has ended")
)

// Watch implements Watcher. It is not for several goroutines at once, nor for one at
// the same time as Do.
func (c *Children) Watch(ctx context.Context, work Work, orders <-chan any, silence time.Duration, line func([]byte) error) error {
	if err := c.free(work.Role); err != nil {
		return err
	}
	command := exec.Command(c.Path, c.Argument)
	command.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	input, err := command.StdinPipe()
	if err != nil {
		return err
	}
	output, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	logged, err := command.StderrPipe()
	if err != nil {
		return err
	}
	started, ended, lines := make(chan error, 1), make(chan error, 1), make(chan []byte)
	quiet := make(chan struct{}) // nobody reads lines any more
	go func() {
		// The child is told to die with the thread that makes it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := command.Start()
		started <- err
		if err != nil {
			return
		}
		read := make(chan struct{})
		go func() {
			defer close(read)
			scanner := bufio.NewScanner(output)
			scanner.Buffer(nil, maxLine)
			for scanner.Scan() {
				select {
				case lines <- append([]byte{}, scanner.Bytes()...):
				case <-quiet:
				}
			}
		}()
		c.log(work.Role, logged)
		<-read
		ended <- command.Wait()
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("%s: %w", work.Role, err)
	}
	defer close(quiet)
	encoder := json.NewEncoder(input)
	if err := encoder.Encode(work); err != nil {
		return fmt.Errorf("%s: %w", work.Role, errors.Join(err, c.end(command, ended)))
	}
	timer := time.NewTimer(silence)
	defer timer.Stop()
	for {
		var why error
		select {
		case <-ctx.Done():
			return c.finish(command, input.Close, ended, work.Role)
		case err := <-ended:
			return fmt.Errorf("%s: %w", work.Role, errors.Join(errEnded, err))
		case <-timer.C:
			why = errSilent
		case text := <-lines:
			timer.Reset(silence)
			why = line(text)
		case order := <-orders:
			why = encoder.Encode(order)
		}
		if why != nil {
			return fmt.Errorf("%s: %w", work.Role, errors.Join(why, c.end(command, ended)))
		}
	}
}

// finish lets a child end by itself, at the end of its input, else ends it.
func (c *Children) finish(command *exec.Cmd, closeInput func() error, ended chan error, role string) error {
	_ = closeInput() // it may have ended
	timer := time.NewTimer(courtesy)
	defer timer.Stop()
	select {
	case <-ended:
		return nil
	case <-timer.C:
	}
	if err := c.end(command, ended); err != nil {
		return fmt.Errorf("%s: %w", role, err)
	}
	return nil
}
