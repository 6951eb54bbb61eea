// Package agent is the guest's side of the virtual NUMA machine: it runs commands that arrive on a byte stream and sends
// back what they print, while they print it, and how they ended.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"gputune/tests/vm/internal/wire"
)

// Options is what an agent depends on besides its stream.
type Options struct {
	// Greeting is what it answers to the host's Hello.
	Greeting wire.Greeting
	// Cgroup is a cgroup v2 folder, below which each command gets a cgroup of its own, so that a timeout ends all
	// that a command started. Empty: only the command's process group is ended.
	Cgroup string
	// Log takes what the agent has to say about itself.
	Log *slog.Logger
}

// agent serves one stream.
type agent struct {
	opt Options
	out *wire.Writer
	wg  sync.WaitGroup

	mu      sync.Mutex
	running map[uint32]context.CancelFunc
	files   map[uint32]*upload
}

// Serve answers what comes in on conn until it ends. Commands that still run then are killed. The error is nil at the
// stream's orderly end.
func Serve(conn io.ReadWriter, opt Options) error {
	a := &agent{opt: opt, out: wire.NewWriter(conn), running: map[uint32]context.CancelFunc{}, files: map[uint32]*upload{}}
	err := a.serve(conn)
	a.mu.Lock()
	for _, kill := range a.running {
		kill()
	}
	for _, f := range a.files {
		f.abandon()
	}
	a.mu.Unlock()
	a.wg.Wait()
	return err
}

func (a *agent) serve(conn io.Reader) error {
	for {
		f, err := wire.Read(conn)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading from the host: %w", err)
		}
		if err := a.handle(f); err != nil {
			return fmt.Errorf("answering the host: %w", err)
		}
	}
}

// handle acts on one frame. Its error means that the stream is unusable.
func (a *agent) handle(f wire.Frame) error {
	switch f.Type {
	case wire.Hello:
		return a.out.WriteJSON(wire.Hello, f.ID, a.opt.Greeting)
	case wire.Ping:
		return a.out.Write(wire.Pong, f.ID, nil)
	case wire.Exec:
		var c wire.Command
		if err := f.Decode(&c); err != nil {
			return err
		}
		a.start(f.ID, c)
		return nil
	case wire.Kill:
		a.mu.Lock()
		defer a.mu.Unlock()
		if kill, ok := a.running[f.ID]; ok {
			kill()
		}
		return nil
	case wire.File:
		var h wire.FileHeader
		if err := f.Decode(&h); err != nil {
			return err
		}
		return a.beginFile(f.ID, h)
	case wire.Data:
		return a.continueFile(f.ID, f.Payload)
	default:
		return fmt.Errorf("frame of type %d is not for the guest", f.Type)
	}
}

// start runs c in the background; its Exit frame is sent whatever happens.
func (a *agent) start(id uint32, c wire.Command) {
	ctx, kill := context.WithCancel(context.Background())
	a.mu.Lock()
	a.running[id] = kill
	a.mu.Unlock()
	a.wg.Go(func() {
		defer kill()
		status := a.run(ctx, id, c)
		a.mu.Lock()
		delete(a.running, id)
		a.mu.Unlock()
		if err := a.out.WriteJSON(wire.Exit, id, status); err != nil {
			a.opt.Log.Error("cannot tell the host how a command ended", "command", id, "err", err)
		}
	})
}

func (a *agent) beginFile(id uint32, h wire.FileHeader) error {
	u, err := newUpload(h)
	if err != nil {
		return a.out.WriteJSON(wire.Exit, id, wire.Status{Code: 1, Error: err.Error()})
	}
	a.files[id] = u
	return nil
}

// continueFile takes a piece of a file; pieces of one that failed are dropped, the host has been told.
func (a *agent) continueFile(id uint32, piece []byte) error {
	u, ok := a.files[id]
	if !ok {
		return nil
	}
	done, err := u.write(piece)
	switch {
	case err != nil:
		delete(a.files, id)
		return a.out.WriteJSON(wire.Exit, id, wire.Status{Code: 1, Error: err.Error()})
	case done:
		delete(a.files, id)
		return a.out.WriteJSON(wire.Exit, id, wire.Status{})
	}
	return nil
}
