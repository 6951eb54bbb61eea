package mps

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Variables of TestRealDaemon.
const (
	realProgram = "GPUTUNE_MPS_PROGRAM" // the path of NVIDIA's nvidia-cuda-mps-control
	realGPUs    = "GPUTUNE_MPS_GPUS"    // UUIDs with commas between them
	realUser    = "GPUTUNE_MPS_UID"     // 65534 if not set; its group has the same number
	realClient  = "GPUTUNE_MPS_CLIENT"  // a shell command with CUDA programs in it, run as the user; may be missing
)

// TestRealDaemon starts and stops NVIDIA's own daemon on GPUs of this machine. It
// changes no setting of theirs. It needs no Go: "go test -c" makes a program of
// it that can be taken to a machine with GPUs.
func TestRealDaemon(t *testing.T) {
	program := os.Getenv(realProgram)
	if program == "" {
		t.Skip("no " + realProgram)
	}
	uid, err := strconv.ParseUint(cmp.Or(os.Getenv(realUser), "65534"), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	run, err := os.MkdirTemp("/run", "mps")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(run) })
	if err := os.Chmod(run, 0o755); err != nil {
		t.Fatal(err)
	}
	h := Host{Run: run, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	s := Spec{
		Job: strconv.Itoa(os.Getpid()), UID: uint32(uid), GID: uint32(uid), GPUs: strings.Split(os.Getenv(realGPUs), ","),
		Percent: 50, Memory: 4096, Program: program,
	}
	ctx := context.Background()
	started := time.Now()
	if err := h.Start(ctx, s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Stop(ctx, s.GPUs[0]) }) // where the test fails in between
	t.Logf("it answered after %v", time.Since(started))
	for name, kind := range map[string]int{"stream": unix.SOCK_STREAM, "seqpacket": unix.SOCK_SEQPACKET} {
		t.Logf("a connection of type %s to %s: %v", name, h.Socket(s), connect(t, h.Socket(s), kind))
	}
	if stream, packet := connect(t, h.Socket(s), unix.SOCK_STREAM), connect(t, h.Socket(s), unix.SOCK_SEQPACKET); stream != nil && packet != nil {
		t.Error("the plugin would take the daemon for dead")
	}
	if command := os.Getenv(realClient); command != "" {
		client := exec.Command("/bin/sh", "-c", command)
		client.Env, client.SysProcAttr = os.Environ(), asUser(s)
		client.Env = append(client.Env, "CUDA_VISIBLE_DEVICES="+s.GPUs[0])
		for _, v := range h.Variables(s) {
			client.Env = append(client.Env, v[0]+"="+v[1])
		}
		out, err := client.CombinedOutput()
		t.Logf("client: %s (%v)", out, err)
	}
	status, err := h.Look(ctx, s.GPUs[0])
	if err != nil || status == nil || status.Silent != nil || len(status.Processes) == 0 {
		t.Errorf("%+v, %v", status, err)
	} else {
		t.Logf("processes: %v", status.Processes)
	}
	text, err := os.ReadFile(filepath.Join(h.jobFolder(s.Job), logName, outputName))
	t.Logf("its log, %v:\n%s", err, text)
	stopped := time.Now()
	if err := h.Stop(ctx, s.GPUs[0]); err != nil {
		t.Fatal(err)
	}
	t.Logf("it was gone after %v", time.Since(stopped))
	for _, p := range status.Processes {
		if now, err := h.process(p.PID); err == nil && now.Start == p.Start && !now.ended() {
			t.Errorf("%v is left", p)
		}
	}
	if _, err := os.Lstat(h.jobFolder(s.Job)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its folder is left: %v", err)
	}
}

// connect tells whether a socket takes a connection, as the plugin asks.
func connect(t *testing.T, path string, kind int) error {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	return unix.Connect(fd, &unix.SockaddrUnix{Name: path})
}
