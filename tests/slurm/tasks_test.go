//go:build slurm

package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gputune/tests/slurm/bed"
	"gputune/tests/slurm/site"
)

// locked prints how much memory the process may lock in KiB, soft and hard, of
// itself and of a grandchild.
const locked = `sh -c 'echo "$1 $(ulimit -Sl) $(ulimit -Hl) $(sh -c "sh -c \"ulimit -Sl\"")"' - `

// withLimit runs a command of Slurm's in a shell whose own limit of locked memory
// is 128 KiB.
func withLimit(t *testing.T, s *site.Site, command string) bed.Result {
	t.Helper()
	return must(t, s, "sh", "-c", "ulimit -Sl 128 && "+command)
}

// --gpu-memlock lasts: Slurm, which sets limits after the plugin, would bring back
// those of where the job was submitted.
func TestMemlock(t *testing.T) {
	t.Parallel()
	s := startSettings(t, "")
	hard := strings.TrimSpace(must(t, s.Site, "sh", "-c", "ulimit -Hl").Stdout)
	if without := withLimit(t, s.Site, "srun -Q -n1 "+locked+"srun"); without.Stdout != "srun 128 "+hard+" 128\n" {
		t.Fatalf("this Slurm does not propagate the limit: %v", without)
	}
	want := func(name string) string { return name + " 2048 " + hard + " 2048\n" }

	if got := withLimit(t, s.Site, "srun -Q -n1 --gpu-memlock=2M "+locked+"srun"); got.Stdout != want("srun") || got.Stderr != "" {
		t.Errorf("srun: %v", got)
	}
	command := s.Command("sh", "-c", "ulimit -Sl 128 && srun -Q -n1 -D / --gpu-memlock=2M "+locked+"user")
	command.User, command.Dir = oneUser, "/"
	if got, err := command.Run(t.Context()); err != nil || got.Stdout != want("user") || got.Stderr != "" {
		t.Errorf("as %s: %v, %v", oneUser, got, err)
	}
	// Whoever asks for it to be propagated as well.
	if got := withLimit(t, s.Site, "srun -Q -n2 --propagate=ALL --gpu-memlock=2M "+locked+"srun"); got.Stdout != want("srun")+want("srun") {
		t.Errorf("srun --propagate: %v", got)
	}
	if got := withLimit(t, s.Site, "srun -Q -n1 --gpus=1 --gpu-memlock=2M --gpu-numa-bind "+locked+"bound"); got.Stdout != want("bound") {
		t.Errorf("a step that is bound: %v", got)
	}
	script, output := filepath.Join(s.Folder, "script"), filepath.Join(s.Folder, "output")
	text := "#!/bin/sh\n" + locked + "batch\nulimit -Sl 64\nsrun -Q -n1 " + locked + "step\nsrun -Q -n2 --propagate=NONE " + locked + "two\n"
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	withLimit(t, s.Site, "sbatch -W -Q -n2 --gpu-memlock=2M -o "+output+" "+script)
	if got, err := os.ReadFile(output); err != nil || string(got) != want("batch")+want("step")+want("two")+want("two") {
		t.Errorf("sbatch: %q, %v", got, err)
	}
	if got := withLimit(t, s.Site, "salloc -Q -n1 --gpu-memlock=2M srun "+locked+"salloc"); got.Stdout != want("salloc") {
		t.Errorf("salloc: %v", got)
	}
	if got := withLimit(t, s.Site, "srun -Q -n1 --gpu-memlock=inherit "+locked+"srun"); got.Stdout != "srun 128 "+hard+" 128\n" {
		t.Errorf("inherit: %v", got)
	}
	s.wantClean(t)
}

// --thp=never on a node that the job shares is had by each of its processes.
func TestTHPOfTasks(t *testing.T) {
	t.Parallel()
	s := startSettings(t, "")
	const show = `sh -c 'sed -n "s/^THP_enabled:\t//p" /proc/self/status; sh -c "sed -n \"s/^THP_enabled:\t//p\" /proc/self/status"'`
	if got := must(t, s.Site, "sh", "-c", "srun -Q -n1 "+show); got.Stdout != "1\n1\n" {
		t.Skipf("this kernel says %v", got)
	}
	if got := must(t, s.Site, "sh", "-c", "srun -Q -n2 --thp=never "+show); got.Stdout != "0\n0\n0\n0\n" || got.Stderr != "" {
		t.Errorf("srun: %v", got)
	}
	if got := must(t, s.Site, "sh", "-c", "salloc -Q -n1 --gpus=1 --thp=never srun --gpu-numa-bind "+show); got.Stdout != "0\n0\n" {
		t.Errorf("salloc: %v", got)
	}
	output := filepath.Join(s.Folder, "output")
	id := s.submit(t, show+"; srun -Q -n1 "+show, "--thp=never", "-o", output)
	s.wantClean(t)
	if got, err := os.ReadFile(output); err != nil || string(got) != "0\n0\n0\n0\n" {
		t.Errorf("job %s: %q, %v", id, got, err)
	}
}

// Where Slurm's cgroups are v1 nothing can be limited: it is said, and the job runs.
func TestSwapThatCannotBeLimited(t *testing.T) {
	t.Parallel()
	s := startSettings(t, "[profile.small]\nswap = \"off\"\n")
	put(t, s.Site, "proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n/dev/sda2 partition 8388604 0 -2\n")
	result := must(t, s.Site, "srun", "-Q", "-n1", "--gpus=1", "--node-profile=small", "--gpu-numa-bind=verbose,strict", "echo", "ran")
	for _, want := range []string{
		"warning: --node-profile=small: swap: this node cannot keep a job's memory from being swapped out",
		"; the job's swap is not limited: process ", " is in no job's cgroup v2: no memory.swap.max of its own",
	} {
		if result.Stdout != "ran\n" || strings.Count(result.Stderr, want) != 1 {
			t.Errorf("%v\nwant %q", result, want)
		}
	}
	// A step that is not bound has the core for this alone, and tells its user nothing.
	quiet := must(t, s.Site, "salloc", "-Q", "-n1", "--node-profile=small", "sh", "-c", "srun true 2>/dev/null; srun sh -c 'env | grep ^GPUTUNE_; echo ran'")
	if quiet.Stdout != "ran\n" || quiet.Stderr != "" {
		t.Errorf("%v", quiet)
	}
	if log := s.Log(bed.Slurmd); strings.Contains(log, "fault in gputune") || strings.Count(log, "gputune: the job's swap is not limited: ") != 3 {
		t.Errorf("slurmd's log:\n%s", log)
	}
	s.wantClean(t)
}

// The Prolog sees mem=bind of the job, however it is made, and not that of a step.
func TestDropBeforeBind(t *testing.T) {
	t.Parallel()
	s := startSettings(t, "[drop_caches]\nbefore_bind = \"page\"\n")
	const drop = "proc/sys/vm/drop_caches"
	file := filepath.Join(s.Folder, "machine", drop)
	// dropped runs a job and returns what its Prolog wrote.
	dropped := func(name string, arguments ...string) string {
		t.Helper()
		put(t, s.Site, drop, "-")
		must(t, s.Site, name, append([]string{"-Q", "-n1", "--gpus=1"}, arguments...)...)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	const bind = "--gpu-numa-bind=quiet,mem=bind"
	for _, c := range []struct {
		want      string
		arguments []string
	}{
		{"1", []string{"srun", "--exclusive", bind, "true"}},
		{"1", []string{"salloc", "--exclusive", bind, "true"}},
		{"1", []string{"sbatch", "-W", "-o", "/dev/null", "--exclusive", bind, "--wrap", "srun true"}},
		{"1", []string{"srun", "--exclusive", bind, "--gpu-clocks=1200", "true"}},
		{"-", []string{"srun", bind, "true"}},
		{"-", []string{"srun", "--exclusive", "--gpu-numa-bind=quiet", "true"}},
		{"-", []string{"salloc", "--exclusive", "srun", bind, "true"}},
	} {
		if got := dropped(c.arguments[0], c.arguments[1:]...); got != c.want {
			t.Errorf("%v: wrote %q to drop_caches, want %q\nslurmd: %s", c.arguments, got, c.want, s.Log(bed.Slurmd))
		}
		s.wantClean(t)
	}
}

// Where files hold the memory that mem=bind is to take it is said once, and fails
// no task.
func TestMemoryHeldByFiles(t *testing.T) {
	t.Parallel()
	s := start(t, site.Options{Bed: bed.Options{ConstrainDevices: true, ExtraSlurmConf: []string{"SelectTypeParameters=CR_Core_Memory"}}})
	meminfo := func(free int) {
		put(t, s, "sys/devices/system/node/node0/meminfo",
			fmt.Sprintf("Node 0 MemTotal: 16777216 kB\nNode 0 MemFree: %d kB\nNode 0 Active(file): 2048000 kB\nNode 0 Inactive(file): 1024000 kB", free<<10))
	}
	step := func(option string) bed.Result {
		t.Helper()
		return srun(t, s, "-Q", "-n2", "--gpus=1", "--mem=1000", "--gpu-numa-bind="+option, "echo", "ran")
	}
	meminfo(100)
	line := fmt.Sprintf("gputune: %s task 0: warning: mem=bind: node 0 has 100 MiB free for the 1000 MiB that tasks were given there: 3000 MiB hold files, which the kernel drops first, slowly; --drop-caches does it before a job\n", s.Node)
	for option, want := range map[string]string{
		"mem=bind,enforce=affinity,strict": line, "mem=bind,enforce=affinity,quiet": "", "enforce=affinity": "",
	} {
		if got := step(option); got.Stdout != "ran\nran\n" || got.Stderr != want {
			t.Errorf("%s: %v\nwant %q", option, got, want)
		}
	}
	meminfo(1000)
	if got := step("mem=bind,enforce=affinity"); got.Stderr != "" {
		t.Errorf("enough is free: %v", got)
	}
}

// A core that cannot be loaded costs the limit of swap, and no step.
func TestSwapWithoutTheCore(t *testing.T) {
	t.Parallel()
	s := &settings{Site: start(t, site.Options{
		Jobs: true, Config: "[profile.small]\nswap = \"off\"\n", Arguments: []string{"core=/nonexistent/core.so"},
		Bed: bed.Options{NCPU: 4, TaskPlugin: "task/none", ExtraSlurmConf: []string{"PrologFlags=Alloc"}},
	})}
	s.before = s.state(t)
	result := must(t, s.Site, "srun", "-Q", "-n2", "--node-profile=small", "--gpu-memlock=2M", "sh", "-c", "ulimit -Sl")
	if result.Stdout != "2048\n2048\n" {
		t.Errorf("%v", result)
	}
	const want = "gputune: the job's swap is not limited: the core could not be loaded: /nonexistent/core.so is not there"
	if log := s.Log(bed.Slurmd); strings.Count(log, want) != 1 || strings.Contains(log, "error: gputune") {
		t.Errorf("slurmd's log:\n%s", log)
	}
	s.wantClean(t)
}
