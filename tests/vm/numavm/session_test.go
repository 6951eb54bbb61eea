package numavm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gputune/tests/vm/internal/wire"
)

// fakeVM is a machine whose QEMU is this test's binary in a role.
func fakeVM(t *testing.T, role string, p patience) (*VM, error) {
	t.Helper()
	ctx := testContext(t)
	dir, err := newRunDir(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	vm := &VM{dir: dir, opt: Options{CommandTimeout: time.Minute}}
	t.Cleanup(func() {
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
	})
	// A QEMU that is given its role in the environment, which sessions pass on.
	t.Setenv(roleVariable, role)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s, err := startSession(dir, qemu{argv: []string{self}}, nil, launch{console: dir.file("console.log")}, p)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir.file("console.log"), []byte("Booting\r\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	vm.cur = s
	greetCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err = s.greet(greetCtx)
	return vm, err
}

func guest(t *testing.T) *VM {
	t.Helper()
	vm, err := fakeVM(t, "guest", usualPatience)
	if err != nil {
		t.Fatal(err)
	}
	return vm
}

func TestExec(t *testing.T) {
	vm := guest(t)
	ctx := testContext(t)
	var stdout, stderr strings.Builder
	res, err := vm.Exec(ctx, Command{
		Argv: []string{"sh", "-c", "echo $A $HOME; echo e >&2; pwd; exit 4"},
		Env:  []string{"A=b", "HOME=/tmp"}, Dir: "/usr", Stdout: &stdout, Stderr: &stderr,
	})
	if err != nil || res.Code != 4 || stdout.String() != "b /tmp\n/usr\n" || stderr.String() != "e\n" || len(res.Output) != len("b /tmp\n/usr\ne\n") {
		t.Errorf("%+v, %v; stdout %q, stderr %q", res, err, stdout.String(), stderr.String())
	}
	if _, err := vm.Exec(ctx, Command{Argv: []string{"no-such-program"}, Dir: "/"}); err == nil || !strings.Contains(err.Error(), "not found in PATH=/host/tree/") {
		t.Errorf("a program that is not there: %v", err)
	}
	if _, err := vm.Exec(ctx, Command{Argv: []string{"true"}, Dir: "/", Stdout: failingWriter{}, Env: []string{"X=1"}}); err != nil {
		t.Errorf("a writer that is never written to: %v", err)
	}
	if _, err := vm.Exec(ctx, Command{Argv: []string{"echo"}, Dir: "/", Stdout: failingWriter{}}); !errors.Is(err, errFull) {
		t.Errorf("a writer that fails: %v, want its error", err)
	}
}

var errFull = errors.New("full")

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errFull }

func TestCommandsSideBySide(t *testing.T) {
	vm := guest(t)
	ctx := testContext(t)
	var wg sync.WaitGroup
	start := time.Now()
	for i := range 20 {
		wg.Go(func() {
			word := strings.Repeat(string(rune('a'+i)), 1000)
			res, err := vm.Exec(ctx, Command{Argv: []string{"sh", "-c", "sleep 1; for i in 1 2 3 4 5; do echo " + word + "; done"}, Dir: "/"})
			if err != nil || res.Output != strings.Repeat(word+"\n", 5) {
				t.Errorf("%d: %.50q, %v", i, res.Output, err)
			}
		})
	}
	wg.Wait()
	if took := time.Since(start); took > 15*time.Second {
		t.Errorf("20 commands of 1 s each took %s: not side by side", took)
	}
}

func TestExecTimeout(t *testing.T) {
	vm := guest(t)
	ctx := testContext(t)
	res, err := vm.Exec(ctx, Command{Argv: []string{"sh", "-c", "echo before; sleep 1000"}, Dir: "/", Timeout: 200 * time.Millisecond})
	if !errors.Is(err, ErrTimeout) || res.Output != "before\n" || res.Code != 137 {
		t.Errorf("%+v, %v", res, err)
	}
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if _, err := vm.Exec(short, Command{Argv: []string{"sleep", "1000"}, Dir: "/"}); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrTimeout) {
		t.Errorf("context's end: %v", err)
	}
	if res, err := vm.Exec(ctx, Command{Argv: []string{"echo", "alive"}, Dir: "/"}); err != nil || res.Output != "alive\n" {
		t.Errorf("afterwards: %+v, %v", res, err)
	}
}

func TestPut(t *testing.T) {
	vm := guest(t)
	ctx := testContext(t)
	path := filepath.Join(t.TempDir(), "sub", "big")
	content := strings.Repeat("0123456789", wire.MaxPayload/4)
	if err := vm.Put(ctx, path, 0o751, strings.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil || string(b) != content {
		t.Errorf("%d bytes, %v; want %d", len(b), err, len(content))
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o751 {
		t.Errorf("%v, %v", st, err)
	}
	if err := vm.Put(ctx, "relative", 0o644, strings.NewReader("x")); err == nil || !strings.Contains(err.Error(), "not an absolute path") {
		t.Errorf("relative path: %v", err)
	}
}

// TestGuestEnds: what runs when a machine ends, for whatever reason, returns at once with the reason and the console.
func TestGuestEnds(t *testing.T) {
	for _, c := range []struct {
		name, end, want string
	}{
		{"powered off", "kill -TERM $PPID", "the guest powered off or restarted"},
		{"panic", "printf '[ 9.1] Kernel panic - not syncing: sysrq triggered crash\\r\\n' >> $CONSOLE; kill -TERM $PPID", "the guest's kernel panicked: sysrq triggered crash"},
		{"crash of QEMU", "kill -KILL $PPID", "QEMU ended: signal: killed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			vm := guest(t)
			start := time.Now()
			res, err := vm.Exec(testContext(t), Command{
				Argv: []string{"sh", "-c", "echo last words; sleep 0.5; " + c.end + "; sleep 5"}, Dir: "/", Env: []string{"CONSOLE=" + vm.cur.console},
			})
			var ended *MachineError
			if !errors.As(err, &ended) {
				t.Fatalf("%+v, %v; want a MachineError", res, err)
			}
			if !strings.HasPrefix(ended.Reason, c.want) || !strings.HasPrefix(ended.Console, "Booting") || res.Output != "last words\n" {
				t.Errorf("reason %q, console %q, output %q; want %q", ended.Reason, ended.Console, res.Output, c.want)
			}
			if took := time.Since(start); took > 4*time.Second {
				t.Errorf("noticed after %s", took)
			}
			if _, err := vm.Exec(testContext(t), Command{Argv: []string{"true"}}); !errors.As(err, &ended) {
				t.Errorf("the next command: %v, want a MachineError", err)
			}
		})
	}
}

func TestSilentGuest(t *testing.T) {
	p := patience{ping: 20 * time.Millisecond, silence: 400 * time.Millisecond, kill: time.Minute}
	_, err := fakeVM(t, "silent-guest", p)
	var ended *MachineError
	if !errors.As(err, &ended) || !strings.Contains(ended.Reason, "silent for 400ms") {
		t.Errorf("got %v", err)
	}
}

// TestPingsToTheEnd: that a ping cannot be sent is not why a machine ended.
func TestPingsToTheEnd(t *testing.T) {
	_, err := fakeVM(t, "ending-guest", patience{ping: 20 * time.Millisecond, silence: 10 * time.Second, kill: time.Minute})
	var ended *MachineError
	if !errors.As(err, &ended) || ended.Reason != "the guest powered off or restarted" {
		t.Errorf("got %v", err)
	}
}

// TestPongsAreNotSilence: a guest that has nothing to say but answers pings lives on.
func TestPongsAreNotSilence(t *testing.T) {
	vm, err := fakeVM(t, "guest", patience{ping: 50 * time.Millisecond, silence: 2 * time.Second, kill: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	res, err := vm.Exec(testContext(t), Command{Argv: []string{"sleep", "4"}, Dir: "/"})
	if err != nil || res.Code != 0 {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestNoGuest(t *testing.T) {
	_, err := fakeVM(t, "no-guest", usualPatience)
	var ended *MachineError
	if !errors.As(err, &ended) || !strings.Contains(ended.Reason, "exit status 1: no such machine") {
		t.Errorf("got %v, want QEMU's own words", err)
	}
}

func TestClose(t *testing.T) {
	vm := guest(t)
	pid := vm.cur.qemu.process.Pid
	path := vm.dir.path
	done := make(chan error)
	go func() {
		_, err := vm.Exec(testContext(t), Command{Argv: []string{"sleep", "20"}, Dir: "/"})
		done <- err
	}()
	eventually(t, "the command is under way", func() bool {
		vm.cur.mu.Lock()
		defer vm.cur.mu.Unlock()
		return len(vm.cur.pending) == 1
	})
	for range 2 {
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
	}
	var ended *MachineError
	if err := <-done; !errors.As(err, &ended) || ended.Reason != "it was closed" {
		t.Errorf("a command under way: %v", err)
	}
	if _, err := vm.Exec(testContext(t), Command{Argv: []string{"true"}}); !errors.Is(err, errClosed) {
		t.Errorf("a command afterwards: %v", err)
	}
	if _, err := os.Stat(path); running(pid) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("process runs: %t; folder: %v", running(pid), err)
	}
}
