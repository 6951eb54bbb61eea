package agent

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gputune/tests/vm/internal/wire"
)

// host is the other end of an agent's stream.
type host struct {
	t    *testing.T
	conn net.Conn
	w    *wire.Writer
	done chan error
}

func newHost(t *testing.T) *host {
	t.Helper()
	ours, theirs := net.Pipe()
	h := &host{t: t, conn: ours, w: wire.NewWriter(ours), done: make(chan error, 1)}
	go func() {
		h.done <- Serve(theirs, Options{
			Greeting: wire.Greeting{Uptime: 12.5, Kernel: "6.1"},
			Log:      slog.New(slog.DiscardHandler),
		})
	}()
	t.Cleanup(func() {
		_ = ours.Close()
		select {
		case <-h.done:
		case <-time.After(10 * time.Second):
			t.Error("the agent did not end with its stream")
		}
	})
	return h
}

func (h *host) send(typ wire.Type, id uint32, v any) {
	h.t.Helper()
	if err := h.w.WriteJSON(typ, id, v); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) read() wire.Frame {
	h.t.Helper()
	if err := h.conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		h.t.Fatal(err)
	}
	f, err := wire.Read(h.conn)
	if err != nil {
		h.t.Fatal(err)
	}
	return f
}

// finish reads up to id's Exit and returns what was printed before.
func (h *host) finish(id uint32) (stdout, stderr string, s wire.Status) {
	h.t.Helper()
	for {
		f := h.read()
		if f.ID != id {
			h.t.Fatalf("frame of type %d for command %d, want %d", f.Type, f.ID, id)
		}
		switch f.Type {
		case wire.Stdout:
			stdout += string(f.Payload)
		case wire.Stderr:
			stderr += string(f.Payload)
		case wire.Exit:
			if err := f.Decode(&s); err != nil {
				h.t.Fatal(err)
			}
			return stdout, stderr, s
		default:
			h.t.Fatalf("frame of type %d", f.Type)
		}
	}
}

func shell(script string) wire.Command {
	return wire.Command{Argv: []string{"sh", "-c", script}, Env: []string{"PATH=" + os.Getenv("PATH")}, Dir: "/"}
}

func TestCommands(t *testing.T) {
	long := strings.Repeat("0123456789abcdef\n", 64<<10)
	for _, c := range []struct {
		name           string
		command        wire.Command
		stdout, stderr string
		status         wire.Status
		wantErr        string
	}{
		{name: "output and code", command: shell("echo out; echo err >&2; exit 3"), stdout: "out\n", stderr: "err\n", status: wire.Status{Code: 3}},
		{
			name: "merged", stdout: "a\nb\nc\n",
			command: wire.Command{Argv: []string{"/bin/sh", "-c", "echo a; echo b >&2; echo c"}, Dir: "/", Merge: true},
		},
		{name: "signal", command: shell("kill -9 $$"), status: wire.Status{Code: 137}},
		{name: "binary output", command: shell(`printf 'a\000b\377'`), stdout: "a\x00b\xff"},
		{name: "much output", command: shell("i=0; while [ $i -lt 65536 ]; do echo 0123456789abcdef; i=$((i+1)); done"), stdout: long},
		{name: "empty stdin", command: shell("cat; echo end"), stdout: "end\n"},
		{name: "environment is all the host's", command: wire.Command{Argv: []string{"/usr/bin/env"}, Env: []string{"A=b c"}, Dir: "/"}, stdout: "A=b c\n"},
		{name: "folder", command: wire.Command{Argv: []string{"/bin/pwd"}, Dir: "/usr"}, stdout: "/usr\n"},
		{
			name: "timeout", command: wire.Command{Argv: []string{"/bin/sh", "-c", "echo a; sleep 60"}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/", TimeoutMillis: 300},
			stdout: "a\n", status: wire.Status{Code: 137, TimedOut: true},
		},
		{
			name: "not found", command: wire.Command{Argv: []string{"no-such-command"}, Env: []string{"PATH=/usr/bin"}, Dir: "/"},
			status: wire.Status{Code: 127}, wantErr: "no-such-command: not found in PATH=/usr/bin",
		},
		{name: "not executable", command: wire.Command{Argv: []string{"/etc/passwd"}, Dir: "/"}, status: wire.Status{Code: 127}, wantErr: "permission denied"},
		{name: "no command", status: wire.Status{Code: 127}, wantErr: "no command given"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t)
			h.send(wire.Exec, 5, c.command)
			stdout, stderr, status := h.finish(5)
			if stdout != c.stdout || stderr != c.stderr {
				t.Errorf("stdout %.80q (%d bytes), stderr %q; want %.80q (%d bytes), %q", stdout, len(stdout), stderr, c.stdout, len(c.stdout), c.stderr)
			}
			if (status.Error == "") != (c.wantErr == "") || !strings.Contains(status.Error, c.wantErr) {
				t.Errorf("error %q, want %q", status.Error, c.wantErr)
			}
			status.Error = ""
			if status != c.status {
				t.Errorf("status %+v, want %+v", status, c.status)
			}
		})
	}
}

// TestBackgroundProcess: what a command leaves running holds its output open; the command's end is reported all the same,
// with all it wrote, and the process lives on and may write.
func TestBackgroundProcess(t *testing.T) {
	h := newHost(t)
	mark := filepath.Join(t.TempDir(), "mark")
	h.send(wire.Exec, 1, shell(fmt.Sprintf("(sleep 1; echo late; echo alive > %s) & head -c 60000 /dev/zero; echo end", mark)))
	stdout, _, status := h.finish(1)
	if len(stdout) != 60004 || status.Code != 0 {
		t.Errorf("%d bytes, %+v; want 60004 and code 0", len(stdout), status)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(mark); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the background process did not outlive a write to the command's output")
		}
	}
	h.send(wire.Exec, 2, shell("echo second"))
	if stdout, _, _ := h.finish(2); stdout != "second\n" {
		t.Errorf("next command printed %q", stdout)
	}
}

func TestOutputComesWhileTheCommandRuns(t *testing.T) {
	h := newHost(t)
	h.send(wire.Exec, 1, shell("echo first; sleep 60"))
	if f := h.read(); f.Type != wire.Stdout || string(f.Payload) != "first\n" {
		t.Fatalf("type %d %q", f.Type, f.Payload)
	}
	// and a second one runs beside it
	h.send(wire.Exec, 2, shell("echo second"))
	if stdout, _, _ := h.finish(2); stdout != "second\n" {
		t.Errorf("second printed %q", stdout)
	}
	if err := h.w.Write(wire.Kill, 1, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, status := h.finish(1); status != (wire.Status{Code: 137}) {
		t.Errorf("killed: %+v, want code 137", status)
	}
}

func TestHelloAndPing(t *testing.T) {
	h := newHost(t)
	if err := h.w.Write(wire.Hello, 0, nil); err != nil {
		t.Fatal(err)
	}
	var g wire.Greeting
	if f := h.read(); f.Type != wire.Hello || f.Decode(&g) != nil || g != (wire.Greeting{Uptime: 12.5, Kernel: "6.1"}) {
		t.Errorf("type %d, %+v", f.Type, g)
	}
	if err := h.w.Write(wire.Ping, 77, nil); err != nil {
		t.Fatal(err)
	}
	if f := h.read(); f.Type != wire.Pong || f.ID != 77 {
		t.Errorf("type %d id %d, want a pong for 77", f.Type, f.ID)
	}
}

func TestFile(t *testing.T) {
	h := newHost(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "sub", "tool")
	h.send(wire.File, 3, wire.FileHeader{Path: path, Mode: 0o750})
	for _, piece := range []string{"#!/bin/sh\n", "echo tool\n", ""} {
		if err := h.w.Write(wire.Data, 3, []byte(piece)); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, s := h.finish(3); s != (wire.Status{}) {
		t.Fatalf("status %+v", s)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o750 {
		t.Fatalf("mode %v, %v; want 0750", st, err)
	}
	h.send(wire.Exec, 4, wire.Command{Argv: []string{path}, Dir: "/"})
	if stdout, _, s := h.finish(4); stdout != "tool\n" || s.Code != 0 {
		t.Errorf("%q, %+v", stdout, s)
	}

	// One that cannot be written is refused with its reason, and its pieces are not taken for anything else.
	h.send(wire.File, 5, wire.FileHeader{Path: path + "/below-a-file", Mode: 0o644})
	if _, _, s := h.finish(5); s.Code == 0 || !strings.Contains(s.Error, "not a directory") {
		t.Errorf("status %+v, want ENOTDIR", s)
	}
	if err := h.w.Write(wire.Data, 5, []byte("x")); err != nil {
		t.Fatal(err)
	}
	h.send(wire.File, 6, wire.FileHeader{Path: "relative"})
	if _, _, s := h.finish(6); !strings.Contains(s.Error, "not an absolute path") {
		t.Errorf("status %+v", s)
	}
}

func TestUnfinishedFileLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	h := newHost(t)
	h.send(wire.File, 1, wire.FileHeader{Path: filepath.Join(dir, "f"), Mode: 0o644})
	if err := h.w.Write(wire.Data, 1, []byte("half")); err != nil {
		t.Fatal(err)
	}
	_ = h.conn.Close()
	if err := <-h.done; err != nil {
		t.Errorf("the stream's end: %v", err)
	}
	h.done <- nil // for the cleanup
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestStreamOutOfStepEndsTheAgent(t *testing.T) {
	h := newHost(t)
	if _, err := io.WriteString(h.conn, "no frame!"); err != nil { // as long as a frame's header
		t.Fatal(err)
	}
	err := <-h.done
	h.done <- nil
	if err == nil || !strings.Contains(err.Error(), "out of step") {
		t.Errorf("got %v", err)
	}
}
