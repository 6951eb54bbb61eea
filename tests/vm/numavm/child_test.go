package numavm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestChildEndsWithItsRunner(t *testing.T) {
	pidFile := filepath.Join(t.TempDir(), "sleep.pid")
	runner, line := startRole(t, "runner", "PID_FILE="+pidFile)
	pid, err := strconv.Atoi(line)
	if err != nil || !running(pid) {
		t.Fatalf("the runner's child is %q, %v", line, err)
	}
	if err := runner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child has ended after its runner was killed", func() bool { return !running(pid) })
}

func TestKillLeftover(t *testing.T) {
	dir := t.TempDir()
	pidFile := filepath.Join(dir, "sleep.pid")
	c, err := startChild(exec.Command("sleep", "1000"), pidFile)
	if err != nil {
		t.Fatal(err)
	}
	defer c.kill()
	b, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	pid, start, _ := strings.Cut(strings.TrimSpace(string(b)), " ")

	// The same pid with another start time is another process.
	ticks, err := strconv.Atoi(start)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "other.pid")
	if err := os.WriteFile(other, fmt.Appendf(nil, "%s %d\n", pid, ticks-1), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := killLeftover(other); err != nil {
		t.Error(err)
	}
	if !c.alive() {
		t.Fatal("a process was killed for the pid of another")
	}

	if err := killLeftover(pidFile); err != nil {
		t.Error(err)
	}
	<-c.done
	if err := killLeftover(pidFile); err != nil {
		t.Errorf("one that is gone: %v", err)
	}

	for _, bad := range []string{"", "12", "x 5", "-1 5", "1 5", "0 1"} {
		if err := os.WriteFile(other, []byte(bad), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := killLeftover(other); err == nil || !strings.Contains(err.Error(), "not a pid and a start time") {
			t.Errorf("pid file %q: %v", bad, err)
		}
	}
}

func TestStartChildFails(t *testing.T) {
	pidFile := filepath.Join(t.TempDir(), "none.pid")
	if _, err := startChild(exec.Command("/no/such/program"), pidFile); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("got %v", err)
	}
	// A child whose pid file cannot be written would not be found later, so it must not stay.
	if c, err := startChild(exec.Command("sleep", "1000"), "/no/such/folder/x.pid"); err == nil {
		c.kill()
		t.Error("no error for a pid file that cannot be written")
	}
}

// TestStartTime reads a command with spaces and parentheses in its name, which stand unquoted before the start time.
func TestStartTime(t *testing.T) {
	dir := t.TempDir()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	odd := filepath.Join(dir, "a) S 1 (b")
	b, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(odd, b, 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := startChild(exec.Command(odd, "1000"), filepath.Join(dir, "odd.pid"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.kill()
	eventually(t, "exec", func() bool {
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", c.process.Pid))
		return err == nil && strings.HasPrefix(string(comm), "a) S")
	})
	got, err := startTime(c.process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	self, err := startTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	child, err1 := strconv.Atoi(got)
	ours, err2 := strconv.Atoi(self)
	if err1 != nil || err2 != nil || child < ours || child > ours+100*60*60 {
		t.Errorf("the child started at %s, this process at %s ticks", got, self)
	}
}
