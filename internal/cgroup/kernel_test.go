package cgroup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gputune/internal/idset"
)

// The real kernel, where this process is root and cgroup v2 has the cpuset
// controller: the folders that Slurm makes, and a process in a task's.
func TestKernel(t *testing.T) {
	leaf, pid := realTask(t)
	paths, err := Of("/", pid)
	if err != nil {
		t.Fatal(err)
	}
	if paths.V2.Dir != leaf {
		t.Fatalf("process %d is in %s, want %s", pid, paths.V2.Dir, leaf)
	}
	all, err := paths.Effective()
	if err != nil {
		t.Fatal(err)
	}
	// The step has all CPUs but one.
	beside := idset.Of(all.CPUs.Min())
	if all.CPUs = all.CPUs.AndNot(beside); all.CPUs.Empty() {
		all.CPUs, beside = beside, idset.Set{}
	}
	if err := (kernel{}).write(filepath.Join(filepath.Dir(leaf), cpusFile), all.CPUs.String()); err != nil {
		t.Fatal(err)
	}
	one := Cpuset{CPUs: idset.Of(all.CPUs.Max()), Mems: idset.Of(all.Mems.Max())}
	confined, err := paths.Set(pid, one)
	if err != nil {
		t.Fatal(err)
	}
	if got := allowed(t, pid); got.String() != one.String() {
		t.Errorf("process may use %s, want %s", got, one)
	}
	// Refused by the kernel, and taken but not used.
	for _, outside := range []Cpuset{{CPUs: idset.Of(idset.Limit - 1)}, {Mems: idset.Of(all.Mems.Max() + 1)}, {CPUs: beside}} {
		if outside.CPUs.Empty() && outside.Mems.Empty() {
			continue // a machine of one CPU
		}
		_, err := paths.Set(pid, outside)
		var bad *NotTakenError
		if err == nil || errors.As(err, &bad) != outside.CPUs.Equal(beside) {
			t.Errorf("%s is outside: error %v", outside, err)
		}
		if got := allowed(t, pid); got.String() != one.String() {
			t.Errorf("after %s, which is outside: process may use %s, want %s", outside, got, one)
		}
	}
	if err := confined.Restore(); err != nil {
		t.Fatal(err)
	}
	if got := allowed(t, pid); got.String() != all.String() {
		t.Errorf("restored: process may use %s, want %s", got, all)
	}
	if pids, err := Threads(paths.V2); err != nil || len(pids) != 1 || pids[0] != pid {
		t.Errorf("Threads = %v, %v", pids, err)
	}
}

// allowed reads what the kernel lets the process use.
func allowed(t *testing.T, pid int) Cpuset {
	t.Helper()
	mems, err := MemsAllowed("/", pid)
	if err != nil {
		t.Fatal(err)
	}
	paths, err := Of("/", pid)
	if err != nil {
		t.Fatal(err)
	}
	cpus, err := paths.CPUs()
	if err != nil {
		t.Fatal(err)
	}
	return Cpuset{CPUs: cpus, Mems: mems}
}

// realTask makes …/slurmstepd.scope/job_0/step_0/user/task_0 in a cgroup v2
// hierarchy with the cpuset controller and starts a process in it. It skips the
// test where there is none.
func realTask(t *testing.T) (leaf string, pid int) {
	t.Helper()
	self, err := Of("/", os.Getpid())
	if err != nil || self.V2.None() || !self.Cpuset.None() || os.Getuid() != 0 {
		t.Skipf("no cgroup v2 to write to: %v", err)
	}
	top := strings.TrimSuffix(self.V2.Dir, self.V2.Path)
	controllers, err := os.ReadFile(filepath.Join(top, "cgroup.controllers"))
	if err != nil || !strings.Contains(string(controllers), "cpuset") {
		t.Skipf("no cpuset controller in %s: %v", top, err)
	}
	dir := top
	for _, part := range []string{"gputune-test", scope, "job_0", "step_0", "user", "task_0"} {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+cpuset"), 0); err != nil {
			t.Skip(err)
		}
		dir = filepath.Join(dir, part)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skip(err)
		}
		t.Cleanup(remove(t, dir))
	}
	command := exec.Command("sleep", "300")
	if err := command.Start(); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	if err := (kernel{}).write(filepath.Join(dir, procsFile), strconv.Itoa(command.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	return dir, command.Process.Pid
}

// remove returns a cleanup that removes a cgroup, which is busy until the kernel
// has let go of the process that was killed.
func remove(t *testing.T, dir string) func() {
	return func() {
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			err := os.Remove(dir)
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("cgroup is left behind: %v", err)
				return
			}
		}
	}
}
