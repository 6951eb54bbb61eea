package sample

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// SocketName is the socket's file in paths.run.
const SocketName = "agent.sock"

// Verb is what somebody wants of who samples.
type Verb string

// What can be wanted.
const (
	Begin Verb = "begin" // the job begins: look at once, nobody waits for it
	Last  Verb = "last"  // the job has ended: look a last time
	Hold  Verb = "hold"  // close the driver until the connection ends
)

// Request is one that has come. Who gets it answers it by Done.
type Request struct {
	Verb Verb
	Job  string // "" of no job

	connection net.Conn
}

// Done answers, so that who waits goes on.
func (r *Request) Done() {
	_ = r.connection.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = r.connection.Write([]byte("done\n")) // or who asked has gone on by himself
}

// End is a Hold that is over.
type End struct{}

// Listener hears what Prologs and Epilogs want.
type Listener struct {
	// Requests and Ends are sent to until Close.
	Requests chan *Request
	Ends     chan End

	listener *net.UnixListener
	stop     context.CancelFunc
	done     context.Context
}

// maxRequest bounds a request, in bytes; maxWait is how long its line may take.
const (
	maxRequest = 64
	maxWait    = time.Second
)

// Listen listens at a socket that only this user can connect to. One that an
// earlier agent has left is replaced: whoever listens has the agent's lock.
func Listen(path string) (*Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	// Connecting takes the right to write, which umask leaves to this user.
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		listener.Close()
		return nil, err
	}
	l := &Listener{Requests: make(chan *Request), Ends: make(chan End), listener: listener}
	l.done, l.stop = context.WithCancel(context.Background())
	go func() {
		for {
			connection, err := listener.AcceptUnix()
			if err != nil {
				return // closed
			}
			go l.serve(connection)
		}
	}()
	return l, nil
}

// Close stops listening. Holds end with it.
func (l *Listener) Close() error {
	l.stop()
	return l.listener.Close()
}

func (l *Listener) serve(connection *net.UnixConn) {
	defer connection.Close()
	if peer, err := peerOf(connection); err != nil || peer != uint32(os.Geteuid()) {
		return
	}
	stop := context.AfterFunc(l.done, func() { connection.Close() })
	defer stop()
	_ = connection.SetReadDeadline(time.Now().Add(maxWait))
	line, err := bufio.NewReaderSize(connection, maxRequest).ReadSlice('\n')
	if err != nil {
		return
	}
	verb, job, _ := strings.Cut(strings.TrimSuffix(string(line), "\n"), " ")
	r := &Request{Verb: Verb(verb), Job: job, connection: connection}
	select {
	case l.Requests <- r:
	case <-l.done.Done():
		return
	}
	// Until the other end is closed.
	_ = connection.SetReadDeadline(time.Time{})
	_, _ = connection.Read(make([]byte, 1))
	if r.Verb == Hold {
		select {
		case l.Ends <- End{}:
		case <-l.done.Done():
		}
	}
}

// peerOf returns the user at the other end.
func peerOf(connection *net.UnixConn) (uid uint32, err error) {
	raw, err := connection.SyscallConn()
	if err != nil {
		return 0, err
	}
	var credentials *unix.Ucred
	var asked error
	if err := raw.Control(func(fd uintptr) {
		credentials, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if asked != nil {
		return 0, asked
	}
	return credentials.Uid, nil
}

// Ask says at a socket what is wanted and, but for Begin, waits for the answer. The
// result ends a Hold. Where nobody listens there is nothing to wait for, and no
// error.
func Ask(path string, verb Verb, job string, within time.Duration) (end func(), err error) {
	nothing := func() {}
	end = nothing
	connection, err := net.DialTimeout("unix", path, within)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return nothing, nil
	}
	if err != nil {
		return nothing, err
	}
	defer func() {
		if err != nil || verb != Hold {
			connection.Close()
		}
	}()
	_ = connection.SetDeadline(time.Now().Add(within))
	if _, err := fmt.Fprintf(connection, "%s %s\n", verb, job); err != nil {
		return nothing, err
	}
	if verb == Begin {
		return nothing, nil
	}
	if _, err := bufio.NewReaderSize(connection, maxRequest).ReadSlice('\n'); err != nil {
		return nothing, fmt.Errorf("the agent does not answer: %w", err)
	}
	return func() { connection.Close() }, nil
}
