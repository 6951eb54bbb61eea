package bed

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestTail(t *testing.T) {
	cases := []struct {
		text   string
		lines  int
		wanted string
	}{
		{"", 3, ""},
		{"a", 3, "a"},
		{"a\nb\n", 3, "a\nb"},
		{"a\nb\nc\nd\n\n", 2, "c\nd"},
		{"a\n\nb\n", 2, "\nb"},
	}
	for _, c := range cases {
		if got := tail(c.text, c.lines); got != c.wanted {
			t.Errorf("last %d lines of %q: got %q, want %q", c.lines, c.text, got, c.wanted)
		}
	}
}

func TestParseJobs(t *testing.T) {
	got, err := parseJobs("12|RUNNING|root|None|sh\n13_[1-3]|PENDING|nobody|Resources|a|b\n")
	wanted := []Job{{"12", "RUNNING", "root", "None", "sh"}, {"13_[1-3]", "PENDING", "nobody", "Resources", "a|b"}}
	if err != nil || !slices.Equal(got, wanted) {
		t.Errorf("got %v, %v, want %v", got, err, wanted)
	}
	if got, err := parseJobs(""); len(got) > 0 || err != nil {
		t.Errorf("of nothing: %v, %v", got, err)
	}
	if got, err := parseJobs("slurm_load_jobs error: x\n"); err == nil {
		t.Errorf("an error message was read as %v", got)
	}
}

func TestParseNode(t *testing.T) {
	cases := []struct{ text, state, reason string }{
		{"NodeName=n\n   CPUAlloc=0\n   State=IDLE ThreadsPerCore=1 TmpDisk=0\n   Partitions=main \n", "idle", ""},
		{"NodeName=n\n   State=MIXED+DRAIN ThreadsPerCore=1\n   Reason=Prolog error [root@2026-01-01T00:00:00]\n", "mixed+drain", "Prolog error [root@2026-01-01T00:00:00]"},
		{"Node n not found\n", "", ""},
	}
	for _, c := range cases {
		if state, reason := parseNode(c.text); state != c.state || reason != c.reason {
			t.Errorf("%q: got %q, %q, want %q, %q", c.text, state, reason, c.state, c.reason)
		}
	}
	for state, wanted := range map[string]bool{"idle": false, "mixed": false, "idle+completing": false, "idle+drain": true, "down*": true, "inval": true, "idle*": false} {
		if got := hopeless(state); got != wanted {
			t.Errorf("%s is hopeless: got %t, want %t", state, got, wanted)
		}
	}
}

func TestResultString(t *testing.T) {
	r := Result{Args: []string{"srun", "true"}, Stdout: "out", Stderr: "err", Code: 3, Duration: 1500 * time.Microsecond}
	if got, wanted := r.String(), "srun true: exit status 3 after 2ms\nstdout: out\nstderr: err"; got != wanted || r.OK() {
		t.Errorf("got %q, want %q", got, wanted)
	}
	r = Result{Args: []string{"srun"}, Code: -1, Signal: syscall.SIGKILL}
	if got := r.String(); !strings.Contains(got, "signal SIGKILL") || r.OK() {
		t.Errorf("got %q", got)
	}
}

func TestOutputWait(t *testing.T) {
	o := newOutput()
	waits := make(chan error, 2)
	for _, text := range []string{"ready", "never"} {
		go func() { waits <- o.wait(t.Context(), text) }()
	}
	for _, piece := range []string{"re", "ad", "y\n"} {
		if _, err := (stream{o, &o.stderr}).Write([]byte(piece)); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-waits; err != nil {
		t.Errorf("text in three pieces: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := o.wait(ctx, "never"); !errors.Is(err, context.Canceled) {
		t.Errorf("with a cancelled context: %v", err)
	}
	o.close()
	if err := <-waits; !errors.Is(err, errEnded) {
		t.Errorf("after the end: %v", err)
	}
	if err := o.wait(t.Context(), "ready"); err != nil {
		t.Errorf("printed before the end: %v", err)
	}
}

func TestClaims(t *testing.T) {
	var one, other claims
	name, err := one.freeName()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.take("node/" + name); !errors.Is(err, errClaimed) {
		t.Errorf("a claimed name: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := other.name(ctx, name); !errors.Is(err, errClaimed) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for a claimed name: %v", err)
	}
	time.AfterFunc(50*time.Millisecond, one.release)
	if err := other.name(t.Context(), name); err != nil {
		t.Errorf("a name that gets free: %v", err)
	}
	seen := map[int]bool{}
	for range 20 {
		port, err := other.port()
		if err != nil {
			t.Fatal(err)
		}
		if seen[port] {
			t.Errorf("port %d was given twice", port)
		}
		seen[port] = true
	}
	other.release()
}

func TestEmptyDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	for range 2 { // missing, then empty
		if err := emptyDir(dir); err != nil {
			t.Fatal(err)
		}
	}
	precious := filepath.Join(dir, "precious")
	if err := os.WriteFile(precious, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := emptyDir(dir); err == nil {
		t.Error("a folder with somebody's file was taken")
	}
	// bed.json alone does not make it a bed's.
	for _, text := range []string{"{}", "{", `{"node": "../x", "cluster": "c"}`, `{"node": "n", "cluster": ""}`} {
		if err := os.WriteFile(filepath.Join(dir, recordName), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := emptyDir(dir); err == nil {
			t.Errorf("a folder with %s %q was taken", recordName, text)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, recordName), []byte(`{"node": "bedemptydir", "cluster": "bedemptydir"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := emptyDir(dir); err == nil {
		t.Error("a folder that others can write was taken for a bed's")
	}
	if _, err := os.Stat(precious); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// While its bed lives it is not touched.
	var alive claims
	if err := alive.take("node/bedemptydir"); err != nil {
		t.Fatal(err)
	}
	if err := emptyDir(dir); !errors.Is(err, errClaimed) {
		t.Errorf("the folder of a living bed: %v", err)
	}
	alive.release()
	if err := emptyDir(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(precious); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the dead bed's file is left: %v", err)
	}
}

func TestOpenToAll(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "closed", "bed")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(dir), 0o750); err != nil {
		t.Fatal(err)
	}
	err := openToAll(dir)
	if err == nil || !strings.Contains(err.Error(), filepath.Dir(dir)) || !strings.Contains(err.Error(), "0750") {
		t.Errorf("want an error with the closed folder and its mode, got %v", err)
	}
}
