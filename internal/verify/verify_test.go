package verify

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"gputune/internal/affinity"
	"gputune/internal/idset"
)

func TestParsePlan(t *testing.T) {
	full := Plan{CPUs: idset.MustParse("0-3"), Mems: idset.MustParse("1"), Policy: "bind", GPUs: "0000:07:00.0"}
	for environ, want := range map[string]Plan{
		"A=1\x00GPUTUNE_GPUS=0000:07:00.0\x00GPUTUNE_CPUS=0-3\x00GPUTUNE_MEMS=1\x00GPUTUNE_MEM_POLICY=bind\x00": full,
		"GPUTUNE_CPUS=0-3\x00GPUTUNE_MEMS=\x00GPUTUNE_MEM_POLICY=none\x00":                                      {CPUs: full.CPUs, Policy: "none"},
		"GPUTUNE_CPUS=0-3\x00GPUTUNE_MEMS=1\x00GPUTUNE_MEM_POLICY=mine\x00":                                     {CPUs: full.CPUs, Policy: "none"},
	} {
		if got, err := parsePlan(environ); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v, want %+v", environ, got, err, want)
		}
	}
	for environ, want := range map[string]string{
		"": ErrNotBound.Error(), "GPUTUNE_CPUS=\x00": ErrNotBound.Error(), "GPUTUNE_CPUS=x\x00": "GPUTUNE_CPUS: ", "GPUTUNE_CPUS=1\x00GPUTUNE_MEMS=99999999\x00": "GPUTUNE_MEMS: ",
	} {
		if got, err := parsePlan(environ); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v, want %q", environ, got, err, want)
		}
	}
}

func TestParseMaps(t *testing.T) {
	maps := parseMaps(`55d0 prefer:1 file=/bin/a mapped=9 N0=9 kernelpagesize_kB=4
7f00 prefer:1 anon=10 dirty=10 N0=4 N1=6 kernelpagesize_kB=4
7f10 default anon=2 dirty=2 N1=2 kernelpagesize_kB=2048
7f20 prefer (many):0-1 stack anon=3 dirty=3 N1=3 kernelpagesize_kB=4
7f30
7f40 default N-1=3 N99999999=1 Nx=1 kernelpagesize_kB=x
`)
	if want := (memoryMaps{policy: "prefer:0-1", pages: map[int]int64{0: 4, 1: 6 + 2*512 + 3}}); !reflect.DeepEqual(maps, want) {
		t.Errorf("%+v, want %+v", maps, want)
	}
}

func TestSamePolicy(t *testing.T) {
	plan := Plan{Policy: "bind", Mems: idset.MustParse("0-1")}
	for found, want := range map[string]bool{
		"bind:0-1": true, "bind=static:0": true, "bind:2": false, "bind": false, "prefer:0": false, "default": false, "bind:": false,
	} {
		if got := samePolicy(plan, found); got != want {
			t.Errorf("%s: %v", found, got)
		}
	}
}

func TestParseStat(t *testing.T) {
	tail := " 7 1 1 0 -1 4194560 1 1 0 0 0 0 0 0 20 0 1 0 12345 0"
	for text, want := range map[string]Process{
		"5 (a) b (c) S" + tail: {PID: 5, Program: "a) b (c", parent: 7, start: "12345"},
		"5 (a) Z" + tail:       {}, "": {}, "5 (a": {}, ") (": {}, "5 (a) S 7": {}, "5 (a) S x" + tail: {},
	} {
		if got, ok := parseStat(5, text); got != want || ok != (want != Process{}) {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

// bound starts a shell with a plan and a child, and returns it when both are there.
func bound(t *testing.T, cpus string, plan ...string) (pid int) {
	t.Helper()
	command := exec.Command("taskset", "-c", cpus, "sh", "-c", "sleep 600 & echo; wait")
	command.Env = append([]string{"PATH=/usr/bin:/bin", "GPUTUNE_CPUS=" + cpus}, plan...)
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = exec.Command("pkill", "-KILL", "-P", fmt.Sprint(command.Process.Pid)).Run()
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	if _, err := output.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return command.Process.Pid
}

// A real process tree on this machine: off its plan it is found, and put back.
func TestCPUs(t *testing.T) {
	mine, err := affinity.Get(0)
	if err != nil {
		t.Fatal(err)
	}
	if mine.Len() < 2 {
		t.Skip("one CPU: there is no other one to go to")
	}
	h := This()
	pid := bound(t, fmt.Sprint(mine.Min()))
	task, err := h.Of(pid)
	if err != nil {
		t.Fatal(err)
	}
	if len(task.Processes) != 2 || task.Processes[0].PID != pid {
		t.Fatalf("processes %+v", task.Processes)
	}
	r, err := h.Check(task)
	if err != nil || len(r.Findings) > 0 || r.Threads != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	child := task.Processes[1]
	if err := affinity.Set(child.PID, mine); err != nil {
		t.Fatal(err)
	}
	if r, err = h.Check(task); err != nil || len(r.Findings) != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	f := r.Findings[0]
	if f.Kind != CPUs || f.PID != child.PID || f.Found != mine.String() || f.Want != fmt.Sprint(mine.Min()) || f.Program != "sleep" {
		t.Errorf("%+v", f)
	}
	report, err := h.CheckAll([]Task{task})
	var text bytes.Buffer
	if err != nil || !report.Off() || report.Write(&text) != nil || !strings.Contains(text.String(), "NOT as planned\n  process ") {
		t.Errorf("%v, %s", err, &text)
	}
	other := f
	other.start = "1" // its pid is another's now
	if err := h.Repair(task.Plan, other); err != nil {
		t.Error(err)
	}
	if now, err := affinity.Get(child.PID); err != nil || !now.Equal(mine) {
		t.Errorf("another process with this pid was changed: %s, %v", now, err)
	}
	if err := h.Repair(task.Plan, f); err != nil {
		t.Fatal(err)
	}
	if r, err = h.Check(task); err != nil || len(r.Findings) > 0 {
		t.Errorf("after the repair: %+v, %v", r, err)
	}
}

func TestMemoryPolicyOfThisMachine(t *testing.T) {
	if _, err := os.Stat("/proc/self/numa_maps"); err != nil {
		t.Skip(err)
	}
	h := This()
	task, err := h.Of(bound(t, "0", "GPUTUNE_MEMS=0", "GPUTUNE_MEM_POLICY=prefer"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := h.CheckMemory(task.Plan, task.Processes[0])
	if err != nil || len(r.Findings) != 1 || r.Findings[0].Kind != Policy || r.Findings[0].Found != "default" || r.Pages == 0 || r.Away != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if err := h.Repair(task.Plan, r.Findings[0]); !errors.Is(err, ErrNotMended) {
		t.Errorf("%v", err)
	}
	// From a node to itself: the call and its masks are right.
	if left, err := migrate(task.Processes[0].PID, idset.Of(0), idset.Of(0)); err != nil || left != 0 {
		t.Errorf("migrate: %d, %v", left, err)
	}
	if got := h.allowed(task.Processes[0].PID); !got.Has(0) {
		t.Errorf("allowed nodes %s", got)
	}
}

// made has a made-up /proc with a step of three processes.
func made(t *testing.T) (Host, *[]string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can make processes of root's")
	}
	root := t.TempDir()
	environ := "GPUTUNE_CPUS=0-1\x00GPUTUNE_MEMS=1\x00GPUTUNE_MEM_POLICY=bind\x00GPUTUNE_GPUS=0000:07:00.0\x00"
	for _, p := range []struct {
		pid, parent int
		program     string
		files       map[string]string
	}{
		{1, 0, "init", nil},
		{10, 1, "slurmstepd", map[string]string{"cmdline": "slurmstepd: [42.0]\x00"}},
		{11, 10, "train", map[string]string{"environ": environ, "status": "Mems_allowed_list:\t1-2\n", "numa_maps": "7f bind:1 anon=1 N1=1 kernelpagesize_kB=4\n7e bind:1 stack\n"}},
		{12, 11, "worker", map[string]string{
			"status": "Mems_allowed_list:\t1-2\n", "numa_maps": "7f default anon=1 N0=20 N1=80 N2=1 kernelpagesize_kB=2048\n7e bind:1 stack\n",
		}},
		{13, 10, "unbound", map[string]string{"environ": "A=1\x00"}},
		{20, 1, "slurmstepd", map[string]string{"cmdline": "slurmstepd: [43.extern]\x00"}},
	} {
		folder := filepath.Join(root, "proc", fmt.Sprint(p.pid), "task", fmt.Sprint(p.pid))
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		if p.files == nil {
			p.files = map[string]string{}
		}
		p.files["stat"] = fmt.Sprintf("%d (%s) S %d 1 1 0 -1 1 1 1 0 0 0 0 0 0 20 0 1 0 777 0", p.pid, p.program, p.parent)
		for name, text := range p.files {
			if err := os.WriteFile(filepath.Join(root, "proc", fmt.Sprint(p.pid), name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	var done []string
	return Host{
		Root:     root,
		Affinity: func(int) (idset.Set, error) { return idset.MustParse("0-1"), nil },
		SetAffinity: func(id int, cpus idset.Set) error {
			done = append(done, fmt.Sprintf("affinity %d %s", id, cpus))
			return nil
		},
		Migrate: func(pid int, from, to idset.Set) (int, error) {
			done = append(done, fmt.Sprintf("migrate %d %s %s", pid, from, to))
			return 0, nil
		},
	}, &done
}

func TestTasks(t *testing.T) {
	h, done := made(t)
	tasks, err := h.Tasks()
	if err != nil || len(tasks) != 1 || tasks[0].Job != "42" || tasks[0].Step != "0" || len(tasks[0].Processes) != 2 {
		t.Fatalf("%+v, %v", tasks, err)
	}
	r, err := h.Check(tasks[0])
	if err != nil || len(r.Findings) != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	f := r.Findings[0]
	if f.Kind != Pages || f.PID != 12 || f.Found != "42 MiB of 202 on nodes 0,2" {
		t.Errorf("%+v", f)
	}
	if err := h.Repair(tasks[0].Plan, f); err != nil || fmt.Sprint(*done) != "[migrate 12 0,2 1]" {
		t.Errorf("%v, %v", err, *done)
	}
	far := tasks[0].Plan
	far.Mems = idset.Of(3)
	if err := h.Repair(far, f); err == nil || !strings.Contains(err.Error(), "none of the planned nodes 3 is in its cpuset") {
		t.Errorf("%v", err)
	}
	for which, want := range map[string]string{"42": "42", "11": "", "": "42"} {
		if tasks, err := h.Select(which, false); err != nil || len(tasks) != 1 || tasks[0].Job != want {
			t.Errorf("%q: %+v, %v", which, tasks, err)
		}
	}
	for which, want := range map[string]error{"13": ErrNotBound, "999": fs.ErrNotExist} {
		if _, err := h.Select(which, false); !errors.Is(err, want) {
			t.Errorf("%q: %v", which, err)
		}
	}
	if _, err := h.Select("-1", false); err == nil {
		t.Error("-1 is accepted")
	}
}

// BenchmarkTasks is what a look costs that finds no task.
func BenchmarkTasks(b *testing.B) {
	h := This()
	begin := time.Now()
	for b.Loop() {
		if _, err := h.Tasks(); err != nil {
			b.Fatal(err)
		}
	}
	all, err := h.processes()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(time.Since(begin).Microseconds())/float64(b.N)/float64(len(all)), "µs/process")
}
