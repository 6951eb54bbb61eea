package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

// drainLimit bounds what is forwarded after a command has ended, in bytes. A pipe holds 64 KiB by default and 1 MiB at
// most (/proc/sys/fs/pipe-max-size), so the command's own output always fits; a background process that floods the
// pipe does not hold up the end.
const drainLimit = 1 << 20

// forwarder passes on what is written to a pipe. Background processes that a command leaves behind keep the pipe open, so
// its end does not mean the command's, nor the other way round.
type forwarder struct {
	in      *os.File // the command's end
	out     *os.File
	send    func([]byte) error
	drained chan struct{}
}

func newForwarder(send func([]byte) error) (*forwarder, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe for a command's output: %w", err)
	}
	return &forwarder{in: w, out: r, send: send, drained: make(chan struct{})}, nil
}

// abandon releases a forwarder that was never started.
func (f *forwarder) abandon() {
	_ = f.in.Close()
	_ = f.out.Close()
}

// start begins to forward, once the command has its own copy of the pipe's end.
func (f *forwarder) start() {
	_ = f.in.Close()
	go func() {
		f.forward()
		close(f.drained)
		// A background process that still writes gets no SIGPIPE; what it writes is nobody's.
		_, _ = io.Copy(io.Discard, f.out)
		_ = f.out.Close()
	}()
}

// drain returns when all that was written up to now has been forwarded.
func (f *forwarder) drain() {
	_ = f.out.SetReadDeadline(time.Now())
	<-f.drained
}

// forward sends until the pipe ends, or drain was called and the pipe is empty.
func (f *forwarder) forward() {
	buf := make([]byte, 32<<10)
	for {
		n, err := f.out.Read(buf)
		if n > 0 && f.send(buf[:n]) != nil {
			return
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			_ = f.out.SetReadDeadline(time.Time{})
			f.forwardRest(buf)
			return
		}
		if err != nil {
			return
		}
	}
}

// forwardRest sends what is in the pipe now without waiting for more.
func (f *forwarder) forwardRest(buf []byte) {
	conn, err := f.out.SyscallConn()
	if err != nil {
		return
	}
	for total := 0; total < drainLimit; {
		n := 0
		err := conn.Read(func(fd uintptr) bool {
			n, _ = syscall.Read(int(fd), buf) // EAGAIN, with n = -1, is an empty pipe
			return true
		})
		if err != nil || n <= 0 || f.send(buf[:n]) != nil {
			return
		}
		total += n
	}
}
