//go:build slurm

package slurm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gputune/internal/affinity"
	"gputune/internal/follow"
	"gputune/internal/idset"
	"gputune/internal/verify"
	"gputune/tests/slurm/bed"
	"gputune/tests/slurm/site"
)

// asWorker makes this test program a worker that is followed: several threads, and a
// child. Its value is the file that its pid goes to.
const asWorker = "GPUTUNE_TEST_WORKER"

func worker(file string) int {
	for range 4 {
		go func() {
			runtime.LockOSThread()
			select {}
		}()
	}
	child := exec.Command("sleep", "300")
	if err := child.Start(); err != nil {
		fmt.Println(err)
		return 1
	}
	if err := os.WriteFile(file+".new", fmt.Appendln(nil, os.Getpid()), 0o644); err != nil {
		fmt.Println(err)
		return 1
	}
	if err := os.Rename(file+".new", file); err != nil {
		fmt.Println(err)
		return 1
	}
	_ = child.Wait()
	return 0
}

// followSite is a site whose agent follows.
func followSite(t *testing.T, options bed.Options) *settings {
	t.Helper()
	options.ExtraSlurmConf = append(options.ExtraSlurmConf, "PrologFlags=Alloc")
	s := &settings{Site: start(t, site.Options{Jobs: true, Bed: options})}
	s.configureAgent(t, "")
	return s
}

// on returns the CPUs of each thread of a process and of what is below it, as one list
// if all have the same.
func on(t *testing.T, pid int) string {
	t.Helper()
	h := verify.This()
	table, err := h.Processes()
	if err != nil {
		t.Fatal(err)
	}
	found := ""
	threads := 0
	for _, p := range table.Below(pid, func(int) bool { return false }) {
		for _, id := range h.Threads(p.PID) {
			cpus, err := affinity.Get(id)
			if err != nil {
				continue // it has ended
			}
			threads++
			if text := cpus.String(); found == "" || found == text {
				found = text
			} else {
				found = "different ones"
			}
		}
	}
	if threads < 6 { // four of its own, the first, its child's
		return fmt.Sprintf("%s with %d threads", found, threads)
	}
	return found
}

// One task starts two workers, which nobody binds: each ends on the CPUs of the GPU
// that the driver sees it use, its threads and its child with it, and goes on with
// it to another one. A process outside of the step is left alone.
func TestFollow(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]bed.Options{"cgroups": {ConstrainDevices: true}, "no cgroups": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testFollow(t, followSite(t, options))
		})
	}
}

func testFollow(t *testing.T, s *settings) {
	mine, err := affinity.Get(0)
	if err != nil {
		t.Fatal(err)
	}
	if !idset.Range(0, 1).SubsetOf(mine) {
		t.Skipf("this process may run on cpus %s: CPUs 0 and 1 are needed", mine)
	}
	agent, output := s.agent(t)
	defer func() {
		_ = agent.Process.Kill()
		_ = agent.Wait()
		if t.Failed() {
			t.Logf("the agent said:\n%s", output)
		}
	}()
	s.wait(t, "the agent", time.Minute, func() bool { return follow.Agent("/", s.RunFolder) == nil })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	said := filepath.Join(s.Folder, "said")
	script := fmt.Sprintf("srun -n1 --gpus=4 --gpu-numa-bind=follow,verbose sh -c '%s=%s/worker.0 %s & %s=%s/worker.1 %s & wait' 2>%s",
		asWorker, s.Folder, self, asWorker, s.Folder, self, said)
	id := s.submit(t, script, "--gpus=4", "-c2")
	pids := make([]int, 2)
	for i := range pids {
		s.wait(t, "the workers", time.Minute, func() bool {
			text, err := os.ReadFile(fmt.Sprintf("%s/worker.%d", s.Folder, i))
			if err != nil {
				return false
			}
			pids[i], err = strconv.Atoi(strings.TrimSpace(string(text)))
			return err == nil
		})
	}
	gpu := func(i int) string { return s.Machine.GPUs[i].UUID }
	want := func(what string, processes map[string][]int, cpus ...string) {
		t.Helper()
		if err := s.NVML.SetProcesses(processes); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		s.wait(t, what, time.Minute, func() bool { return on(t, pids[0]) == cpus[0] && on(t, pids[1]) == cpus[1] })
		t.Logf("%s: after %.1f s", what, time.Since(begin).Seconds())
	}
	outsider := exec.Command("sleep", "300")
	if err := outsider.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = outsider.Process.Kill()
		_ = outsider.Wait()
	}()
	want("nobody on a GPU", nil, "0-1", "0-1")
	want("a worker on each node", map[string][]int{gpu(0): {pids[0]}, gpu(2): {pids[1], outsider.Process.Pid}}, "0", "1")
	want("each on the other", map[string][]int{gpu(3): {pids[0]}, gpu(1): {pids[1]}}, "1", "0")
	want("one on both", map[string][]int{gpu(3): {pids[0]}, gpu(1): {pids[1], pids[0]}}, "0-1", "0")
	if cpus, err := affinity.Get(outsider.Process.Pid); err != nil || !cpus.Equal(mine) {
		t.Errorf("a process that is not the step's is on cpus %s, %v", cpus, err)
	}
	files, err := os.ReadDir(follow.Folder(s.RunFolder))
	if err != nil || len(files) != 1 || !strings.HasPrefix(files[0].Name(), id+".0.") {
		t.Errorf("steps written down: %v, %v", files, err)
	}
	must(t, s.Site, "scancel", id)
	s.wait(t, "the job's end", time.Minute, func() bool { return s.over(t, id) })
	s.wait(t, "the step to be forgotten", time.Minute, func() bool {
		files, err := os.ReadDir(follow.Folder(s.RunFolder))
		return err == nil && len(files) == 0
	})
	s.wait(t, "the child to end that asks the driver", time.Minute, func() bool {
		table, err := verify.This().Processes()
		return err == nil && len(table.Below(agent.Process.Pid, func(int) bool { return false })) == 1
	})
	if err := agent.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := agent.Wait(); err != nil {
		t.Errorf("%v", err)
	}
	for _, want := range []string{
		fmt.Sprintf("left alone: gpu %s: process %d: it is in no step with --gpu-numa-bind=follow", s.Machine.GPUs[2].PCI, outsider.Process.Pid),
		fmt.Sprintf(`msg="a worker is bound to its GPU" job=%s step=0 pid=%d program=slurm.test gpu=%s cpus=0 `, id, pids[0], s.Machine.GPUs[0].PCI),
		fmt.Sprintf("gpu=%s,%s cpus=0-1 ", s.Machine.GPUs[1].PCI, s.Machine.GPUs[3].PCI),
	} {
		if strings.Count(output.String(), want) != 1 {
			t.Errorf("%d times %q in\n%s", strings.Count(output.String(), want), want, output)
		}
	}
	if text, err := os.ReadFile(said); err != nil || strings.Contains(string(text), "warning: follow") || !strings.Contains(string(text), "cpus 0-1, ") {
		t.Errorf("the task was told %v\n%s", err, text)
	}
}

// Where nobody follows, the step says so once, and runs; under strict it does not.
func TestNobodyFollows(t *testing.T) {
	t.Parallel()
	s := followSite(t, bed.Options{})
	steps := func(want, items string, code int) {
		t.Helper()
		result, err := s.Run(t.Context(), "srun", "-Q", "-n2", "--gpus=4", "--gpu-numa-bind="+items, "true")
		if err != nil || result.Code != code || strings.Count(result.Stderr, want) < 1 || code == 0 && strings.Count(result.Stderr, "\n") != 1 {
			t.Errorf("%s: %v, %+v, want %q and status %d", items, err, result, want, code)
		}
	}
	steps("task 0: warning: follow: gputuned does not run on this node: workers may use all of their task's CPUs", "follow,mem=none", 0)
	steps("error: follow: gputuned does not run on this node", "follow,mem=none,strict", 1)
	// slurmstepd ends a moment after srun.
	s.wait(t, "the steps' files to go", time.Minute, func() bool {
		files, err := os.ReadDir(follow.Folder(s.RunFolder))
		return err == nil && len(files) == 0
	})
}
