package sample

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Child is the process that samples. It is there from the first Ask until End, and
// dies with this process. It is not for several goroutines at once.
type Child struct {
	Path     string // this program
	Argument string // what makes it a child
	Order    []byte // what it reads first
	Log      *slog.Logger

	running *process
	stuck   <-chan struct{} // closed when one that could not be killed has ended
}

// process is one life of the child.
type process struct {
	command   *exec.Cmd
	questions io.WriteCloser
	answers   chan answered
	ended     chan struct{}
}

type answered struct {
	Answer
	err error
}

// ErrStuck is a child that hangs in the driver and cannot be killed. There is no
// further one until it ends.
var ErrStuck = errors.New("the process that samples hangs in the driver")

// How long a child may take to end when there are no more questions, and when it
// was killed.
const (
	courtesy = 2 * time.Second
	patience = time.Second
)

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 4 << 20

// Ask asks a question. A child that does not answer in time is ended; the next
// call starts another.
func (c *Child) Ask(q Question, within time.Duration) (Answer, error) {
	if c.running == nil {
		if err := c.start(); err != nil {
			return Answer{}, err
		}
	}
	line, err := json.Marshal(q)
	if err != nil {
		return Answer{}, err
	}
	// The pipe has room for a question, since the child has read those before.
	if _, err := c.running.questions.Write(append(line, '\n')); err != nil {
		c.end(0)
		return Answer{}, fmt.Errorf("the process that samples has ended: %w", err)
	}
	over := time.NewTimer(within)
	defer over.Stop()
	select {
	case a := <-c.running.answers:
		if a.err != nil {
			c.end(courtesy)
			return Answer{}, fmt.Errorf("the process that samples: %w", a.err)
		}
		return a.Answer, nil
	case <-over.C:
		c.end(0)
		return Answer{}, fmt.Errorf("the driver did not answer within %v", within)
	}
}

// Running tells whether there is a child, and so whether the driver is open.
func (c *Child) Running() bool { return c.running != nil }

// End ends the child. When it returns the driver is closed, unless the child hangs.
func (c *Child) End() { c.end(courtesy) }

func (c *Child) end(wait time.Duration) {
	p := c.running
	if p == nil {
		return
	}
	c.running = nil
	_ = p.questions.Close()
	for _, limit := range []time.Duration{wait, patience} {
		select {
		case <-p.ended:
			return
		case <-time.After(limit):
			_ = p.command.Process.Kill()
		}
	}
	c.stuck = p.ended
}

func (c *Child) start() error {
	if c.stuck != nil {
		select {
		case <-c.stuck:
			c.stuck = nil
		default:
			return ErrStuck
		}
	}
	command := exec.Command(c.Path, c.Argument)
	command.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	questions, err := command.StdinPipe()
	if err != nil {
		return err
	}
	answers, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	lines, err := command.StderrPipe()
	if err != nil {
		return err
	}
	p := &process{command: command, questions: questions, answers: make(chan answered, 1), ended: make(chan struct{})}
	started := make(chan error, 1)
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
			p.read(answers)
		}()
		for scanner := bufio.NewScanner(lines); scanner.Scan(); {
			c.Log.Info(scanner.Text(), "work", "sample")
		}
		_, _ = io.Copy(io.Discard, lines) // after a line that was too long
		<-read
		_ = command.Wait() // how it ended, whoever asked has seen
		close(p.ended)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("sample: %w", err)
	}
	if _, err := questions.Write(append(c.Order, '\n')); err != nil && !errors.Is(err, os.ErrClosed) && !errors.Is(err, unix.EPIPE) {
		return err
	}
	c.running = p
	return nil
}

// read passes answers on until there are no more.
func (p *process) read(answers io.Reader) {
	lines := bufio.NewScanner(answers)
	lines.Buffer(nil, maxAnswer)
	for lines.Scan() {
		var a answered
		a.err = json.Unmarshal(lines.Bytes(), &a.Answer)
		p.answers <- a
		if a.err != nil {
			break
		}
	}
	_, _ = io.Copy(io.Discard, answers)
	select {
	case p.answers <- answered{err: io.ErrUnexpectedEOF}:
	default:
	}
}
