package numavm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gputune/tests/vm/internal/wire"
)

// patience says when a guest counts as hanging. Under a loaded host an emulated guest may well not get a turn for many seconds.
type patience struct {
	ping    time.Duration // how often it is asked
	silence time.Duration // how long it may send nothing and take nothing
	kill    time.Duration // how long it may take to report a command that it was to kill
}

var usualPatience = patience{ping: 15 * time.Second, silence: 5 * time.Minute, kill: time.Minute}

// session is one boot of a machine: from starting QEMU to its end.
type session struct {
	qemu     *child
	shares   *child // nil without shares
	patience patience
	conn     net.Conn
	out      *wire.Writer
	console  string // file
	qemuLog  string // file
	greeted  chan wire.Greeting

	// readingSince is when the reader began to wait for the guest, in Unix nanoseconds; 0 while it works on a frame.
	readingSince atomic.Int64

	mu      sync.Mutex
	nextID  uint32
	pending map[uint32]*call
	reason  string // given when this side ended the machine

	// dead is closed when the machine has ended; err is then a *MachineError.
	dead chan struct{}
	err  error
}

// call is a command or file whose Exit frame is awaited.
type call struct {
	output func(t wire.Type, b []byte)
	done   chan wire.Status // buffered
}

// startSession starts virtiofsd and QEMU. l's socket and file descriptor are filled in here. The guest has not booted yet.
func startSession(r *runDir, q qemu, shares []Share, l launch, p patience) (_ *session, err error) {
	qemuLog := r.file("qemu.log")
	l.shareSock = r.file("virtiofsd.sock")
	for _, old := range []string{l.shareSock, l.console} { // of an earlier boot
		if err := os.Remove(old); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	s := &session{
		patience: p, console: l.console, qemuLog: qemuLog, pending: map[uint32]*call{},
		greeted: make(chan wire.Greeting, 1), dead: make(chan struct{}),
	}
	if len(shares) > 0 {
		if s.shares, err = startShares(r, shares, l.shareSock, r.file("virtiofsd.log")); err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				s.shares.kill()
			}
		}()
	}
	// The stream is a socket pair, one end of which QEMU inherits: it ends when either process does, and there is no
	// name that somebody else could connect to.
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "agent"), os.NewFile(uintptr(fds[1]), "agent of QEMU")
	s.conn, err = net.FileConn(ours)
	_ = ours.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socketpair: %w", err), theirs.Close())
	}
	s.out = wire.NewWriter(s.conn)

	log, err := os.Create(qemuLog)
	if err != nil {
		return nil, errors.Join(err, theirs.Close(), s.conn.Close())
	}
	l.agentFD = 3 // the first of ExtraFiles
	cmd := exec.Command(q.argv[0], append(append([]string(nil), q.argv[1:]...), l.args()...)...)
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stdout, cmd.Stderr = log, log
	s.qemu, err = startChild(cmd, r.file("qemu"+pidSuffix))
	_ = theirs.Close()
	_ = log.Close()
	if err != nil {
		return nil, errors.Join(err, s.conn.Close())
	}
	readerDone := make(chan struct{})
	go func() {
		defer close(readerDone)
		if err := s.readAll(); err != nil {
			s.end(err.Error())
		}
	}()
	go s.watch(readerDone)
	return s, nil
}

// readAll hands out frames until QEMU's end of the stream closes. Its error means that the stream is unusable.
func (s *session) readAll() error {
	for {
		s.readingSince.Store(time.Now().UnixNano())
		f, err := wire.Read(s.conn)
		s.readingSince.Store(0)
		if err != nil {
			if s.qemuEnds() {
				return nil
			}
			return fmt.Errorf("reading from the guest: %w", err)
		}
		switch f.Type {
		case wire.Hello:
			var g wire.Greeting
			if err := f.Decode(&g); err != nil {
				return err
			}
			select {
			case s.greeted <- g:
			default:
				return errors.New("the guest's agent greets twice")
			}
		case wire.Stdout, wire.Stderr:
			if c := s.call(f.ID); c != nil {
				c.output(f.Type, f.Payload)
			}
		case wire.Exit:
			var st wire.Status
			if err := f.Decode(&st); err != nil {
				return err
			}
			if c := s.call(f.ID); c != nil {
				s.forget(f.ID)
				c.done <- st
			}
		case wire.Pong:
		default:
			return fmt.Errorf("frame of type %d is not for the host", f.Type)
		}
	}
}

// qemuEnds says whether QEMU has ended or does so within a second: its end of the stream closes a little earlier.
func (s *session) qemuEnds() bool {
	select {
	case <-s.qemu.done:
		return true
	case <-time.After(time.Second):
		return false
	}
}

// watch pings, and marks the session dead when QEMU has ended and all it sent is read.
func (s *session) watch(readerDone <-chan struct{}) {
	tick := time.NewTicker(s.patience.ping)
	defer tick.Stop()
	for s.qemu.alive() {
		select {
		case <-s.qemu.done:
		case <-tick.C:
			if since := s.readingSince.Load(); since != 0 && time.Since(time.Unix(0, since)) > s.patience.silence {
				s.end(fmt.Sprintf("the guest has been silent for %s", s.patience.silence))
				continue
			}
			// A guest that does not read lets the socket fill up; then this must not wait for ever.
			_ = s.conn.SetWriteDeadline(time.Now().Add(s.patience.silence))
			if err := s.out.Write(wire.Ping, 0, nil); err != nil && !s.qemuEnds() {
				s.end("the guest does not take what it is sent: " + err.Error())
			}
		}
	}
	select {
	case <-readerDone:
	case <-time.After(10 * time.Second): // somebody else holds QEMU's end of the stream
	}
	_ = s.conn.Close()
	<-readerDone
	if s.shares != nil {
		s.shares.kill()
	}
	s.mu.Lock()
	reason := s.reason
	s.mu.Unlock()
	console := fileTail(s.console)
	if reason == "" {
		reason = endReason(console, s.qemu.err, fileTail(s.qemuLog))
	}
	s.err = &MachineError{Reason: reason, Console: console}
	close(s.dead)
}

// end kills the machine; the first reason given is the one that callers see.
func (s *session) end(reason string) {
	s.mu.Lock()
	if s.reason == "" {
		s.reason = reason
	}
	s.mu.Unlock()
	_ = s.qemu.process.Kill() // it may have ended already
}

func (s *session) call(id uint32) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pending[id]
}

func (s *session) forget(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pending, id)
}

// begin registers a call under a new id.
func (s *session) begin(output func(wire.Type, []byte)) (uint32, *call) {
	c := &call{output: output, done: make(chan wire.Status, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nextID++
	s.pending[s.nextID] = c
	return s.nextID, c
}

// failed is the error of a call whose frame could not be sent: that of the machine if it is ending.
func (s *session) failed(err error) error {
	if s.qemuEnds() {
		<-s.dead
		return s.err
	}
	return err
}

// greet waits for the guest's agent.
func (s *session) greet(ctx context.Context) (wire.Greeting, error) {
	if err := s.out.Write(wire.Hello, 0, nil); err != nil {
		return wire.Greeting{}, s.failed(err)
	}
	select {
	case g := <-s.greeted:
		return g, nil
	case <-s.dead:
		return wire.Greeting{}, s.err
	case <-ctx.Done():
		s.end(fmt.Sprintf("no answer from the guest's agent: %v", ctx.Err()))
		<-s.dead
		return wire.Greeting{}, errors.Join(ctx.Err(), s.err)
	}
}
