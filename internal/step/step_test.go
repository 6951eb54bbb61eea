package step

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gputune/internal/affinity"
	"gputune/internal/idset"
	"gputune/tests/machines"
)

// laidOut lays out a node: the description as its machine, Slurm's configuration
// beside it.
func laidOut(t *testing.T, cgroupConf string) Request {
	t.Helper()
	dir, remove, err := machines.Scratch()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := remove(); err != nil {
			t.Error(err)
		}
	})
	description, err := machines.Get("demo-dual")
	if err != nil {
		t.Fatal(err)
	}
	if err := description.Render(filepath.Join(dir, "machine")); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"gputune.toml": fmt.Sprintf("[paths]\nmachine = %q\nsnapshot = %q\n", filepath.Join(dir, "machine"), filepath.Join(dir, "none.json")),
		"slurm.conf":   "TaskPlugin=task/affinity,task/cgroup\nNodeName=node1 Gres=gpu:4\n",
		"gres.conf":    "NodeName=node1 Name=gpu File=/nowhere/nvidia[0-3]\n",
		"cgroup.conf":  cgroupConf,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Request{
		Root: "/", Config: filepath.Join(dir, "gputune.toml"), Given: true,
		Process: map[string]string{"SLURMD_NODENAME": "node1", "SLURM_CONF": filepath.Join(dir, "slurm.conf")},
	}
}

func open(t *testing.T, request Request) *Step {
	t.Helper()
	s, err := Open(request)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestOpen(t *testing.T) {
	request := laidOut(t, "ConstrainDevices=yes\n")
	request.Option = "mem=bind,strict"
	request.Environment = map[string]string{
		"SLURM_CPU_BIND": "quiet,map_cpu:0", "SLURM_CPU_BIND_TYPE": "map_cpu:", "SLURM_CPU_BIND_LIST": "0",
	}
	s := open(t, request)
	if len(s.Log) > 0 {
		t.Errorf("log: %v", s.Log)
	}
	if !s.Option.Strict || s.KeepCPUs != "--cpu-bind=map_cpu:0" || s.KeepMems != "" {
		t.Errorf("option %+v, kept %q %q", s.Option, s.KeepCPUs, s.KeepMems)
	}
	if fmt.Sprint(s.Order) != "[0 1 2 3]" || s.Devices[3] != "/nowhere/nvidia3" {
		t.Errorf("order %v, devices %v", s.Order, s.Devices)
	}
	if s.constrained != (constraints{devices: true}) {
		t.Errorf("constrained: %+v", s.constrained)
	}
}

func TestOpenRefuses(t *testing.T) {
	request := laidOut(t, "")
	request.Option = "cpus=sideways"
	_, err := Open(request)
	var unaccepted *OptionError
	if !errors.As(err, &unaccepted) || !strings.Contains(err.Error(), "want cpus=node|") {
		t.Errorf("got %v", err)
	}
	request.Option = ""
	if err := os.WriteFile(request.Config, []byte("[paths]\nmachine = \"/nonexistent\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(request); err == nil || errors.As(err, &unaccepted) {
		t.Errorf("a machine that is not there: %v", err)
	}
}

// Configuration that cannot be read is said and lived without.
func TestOpenWithoutConfiguration(t *testing.T) {
	request := laidOut(t, "")
	folder := filepath.Dir(request.Process["SLURM_CONF"])
	for _, name := range []string{"slurm.conf", "gres.conf", "cgroup.conf"} {
		if err := os.Remove(filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, request)
	if len(s.Order) != 4 || len(s.Log) == 0 || s.constrained != (constraints{}) {
		t.Errorf("order %v, log %v, constrained %+v", s.Order, s.Log, s.constrained)
	}
	if err := os.WriteFile(request.Config, []byte("[paths\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	// The defaults look at this very machine.
	if s, err := Open(request); err != nil || !strings.Contains(strings.Join(s.Log, "\n"), "gputune.toml: line 2: ") {
		t.Errorf("a bad configuration file: %v, %+v", err, s)
	}
}

func TestSee(t *testing.T) {
	managed := idset.Range(0, 3)
	for name, c := range map[string]struct {
		access        string
		probed        error
		constrained   bool
		sees          string
		byEnvironment bool
		warned        bool
	}{
		"some":                      {"2", nil, false, "2", false, false},
		"some, and Slurm says so":   {"1-2", nil, true, "1-2", false, false},
		"all, constrained":          {"0-3", nil, true, "0-3", false, false},
		"all, not constrained":      {"0-3", nil, false, "0-3", true, false},
		"none":                      {"", nil, true, "", false, false},
		"none, and Slurm is silent": {"", nil, false, "", false, false},
		"one that Slurm has not":    {"0-4", nil, false, "0-3", true, false},
		"probe failed, constrained": {"", errors.New("frozen"), true, "", false, true}, // its environment would lie
		"probe failed, else":        {"", errors.New("frozen"), false, "0-3", true, false},
	} {
		s := &Step{constrained: constraints{devices: c.constrained}}
		var outcome Outcome
		s.see(&Task{Access: idset.MustParse(c.access), Probed: c.probed}, managed, &outcome)
		if outcome.Sees.String() != c.sees || outcome.ByEnvironment != c.byEnvironment || (len(outcome.Warnings) > 0) != c.warned {
			t.Errorf("%s: %+v", name, outcome)
		}
	}
}

func TestStepGPUs(t *testing.T) {
	own := []Outcome{{Sees: idset.Of(1)}, {Sees: idset.Of(3)}}
	unknown := []Outcome{{Sees: idset.Range(0, 3), ByEnvironment: true}}
	for name, c := range map[string]struct {
		tasks       []Outcome
		environment map[string]string
		want        string
	}{
		"what the tasks may open":  {own, map[string]string{"SLURM_STEP_GPUS": "0"}, "1,3"},
		"the step's":               {unknown, map[string]string{"SLURM_STEP_GPUS": "0,2", "SLURM_JOB_GPUS": "0-3"}, "1,3"}, // Slurm's order is another
		"the job's":                {unknown, map[string]string{"SLURM_JOB_GPUS": "1"}, "2"},
		"none said":                {unknown, nil, "0-3"},
		"nonsense":                 {unknown, map[string]string{"SLURM_STEP_GPUS": "x", "SLURM_JOB_GPUS": "9"}, "0-3"},
		"nonsense, then the job's": {unknown, map[string]string{"SLURM_STEP_GPUS": "x", "SLURM_JOB_GPUS": "3"}, "0"},
	} {
		s := &Step{Order: []int{3, 2, 1, 0}, environment: c.environment}
		if got := s.stepGPUs(idset.Range(0, 3), c.tasks); got.String() != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// sleepers are processes that stand for tasks.
func sleepers(t *testing.T, n int) []Task {
	t.Helper()
	tasks := make([]Task, n)
	for i := range tasks {
		command := exec.Command("sleep", "60")
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = command.Process.Kill()
			_ = command.Wait()
		})
		tasks[i] = Task{LocalID: i, PID: command.Process.Pid}
	}
	return tasks
}

func TestBind(t *testing.T) {
	allowed, err := affinity.Get(0)
	if err != nil {
		t.Fatal(err)
	}
	if !idset.Range(0, 1).SubsetOf(allowed) {
		t.Skipf("this process may run on cpus %s: CPUs 0 and 1 are needed", allowed)
	}
	request := laidOut(t, "ConstrainDevices=yes\n")
	s := open(t, request)
	tasks := sleepers(t, 2)
	if err := s.Locate(tasks); err != nil {
		t.Fatal(err)
	}
	for i, gpu := range []int{2, 0} {
		tasks[i].Access, tasks[i].Probed = idset.Of(gpu), nil
	}
	result, err := s.Bind(tasks)
	if err != nil {
		t.Fatal(err)
	}
	if result.GPUs.String() != "0,2" || len(result.Shares) != 2 {
		t.Errorf("GPUs %s, %d shares", result.GPUs, len(result.Shares))
	}
	for i, want := range []string{"1", "0"} {
		got, err := affinity.Get(tasks[i].PID)
		if err != nil || got.String() != want || result.Tasks[i].Binding.CPUs.String() != want {
			t.Errorf("task %d: cpus %s, %v, planned %s, want %s", i, got, err, result.Tasks[i].Binding.CPUs, want)
		}
		// These processes are in no cgroup of Slurm's.
		if notes := strings.Join(result.Tasks[i].Notes, "\n"); !strings.Contains(notes, "affinity alone: ") {
			t.Errorf("task %d: notes %q", i, notes)
		}
	}
}

func TestBindLeavesAloneWhatTheEnvironmentDecides(t *testing.T) {
	s := open(t, laidOut(t, "ConstrainDevices=no\n"))
	tasks := sleepers(t, 1)
	before, err := affinity.Get(tasks[0].PID)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Locate(tasks); err != nil {
		t.Fatal(err)
	}
	tasks[0].Access, tasks[0].Probed = idset.Range(0, 3), nil
	result, err := s.Bind(tasks)
	if err != nil {
		t.Fatal(err)
	}
	after, err := affinity.Get(tasks[0].PID)
	if err != nil || !after.Equal(before) || !result.Tasks[0].ByEnvironment || len(result.Shares) != 4 {
		t.Errorf("cpus %s before and %s after, %v; %+v", before, after, err, result)
	}
}

func TestBindWithoutGPU(t *testing.T) {
	for _, given := range []bool{true, false} {
		request := laidOut(t, "ConstrainDevices=yes\n")
		request.Given = given
		s := open(t, request)
		tasks := sleepers(t, 1)
		if err := s.Locate(tasks); err != nil {
			t.Fatal(err)
		}
		tasks[0].Access, tasks[0].Probed = idset.Set{}, nil
		result, err := s.Bind(tasks)
		if err != nil {
			t.Fatal(err)
		}
		if warned := len(result.Tasks[0].Warnings) > 0; warned != given {
			t.Errorf("given %v: warnings %v", given, result.Tasks[0].Warnings)
		}
	}
}

func TestBindWhenTheProbeFailed(t *testing.T) {
	s := open(t, laidOut(t, "ConstrainDevices=yes\n"))
	tasks := sleepers(t, 2)
	if err := s.Locate(tasks); err != nil {
		t.Fatal(err)
	}
	before, err := affinity.Get(tasks[0].PID)
	if err != nil {
		t.Fatal(err)
	}
	tasks[0].Probed = errors.New("no answer")
	tasks[1].Access, tasks[1].Probed = idset.Of(0), nil
	result, err := s.Bind(tasks)
	if err != nil {
		t.Fatal(err)
	}
	after, err := affinity.Get(tasks[0].PID)
	warnings := result.Tasks[0].Warnings
	if err != nil || !after.Equal(before) || len(warnings) != 1 || !strings.Contains(warnings[0], "no answer") || result.Tasks[0].ByEnvironment {
		t.Errorf("cpus %s, then %s, %v; %+v", before, after, err, result.Tasks[0])
	}
	if result.Tasks[1].Binding.CPUs.String() != "0" {
		t.Errorf("the other task: %+v", result.Tasks[1])
	}
}

func TestLose(t *testing.T) {
	s := open(t, laidOut(t, "ConstrainDevices=no\n"))
	s.Lose(1, errors.New("gone"))
	if fmt.Sprint(s.Order) != "[0 -1 2 3]" || s.Devices[1] != "" || !strings.Contains(strings.Join(s.Log, ""), s.Machine.GPUs[1].PCI+": gone") {
		t.Errorf("order %v, devices %v, log %v", s.Order, s.Devices, s.Log)
	}
	// A task that may open the others may open all that there are.
	tasks := sleepers(t, 1)
	if err := s.Locate(tasks); err != nil {
		t.Fatal(err)
	}
	tasks[0].Access, tasks[0].Probed = idset.Of(0, 2, 3), nil
	result, err := s.Bind(tasks)
	if err != nil || !result.Tasks[0].ByEnvironment || result.GPUs.String() != "0,2-3" {
		t.Errorf("%+v, %v", result, err)
	}
}

func TestBindATaskThatHasGone(t *testing.T) {
	s := open(t, laidOut(t, "ConstrainDevices=yes\n"))
	command := exec.Command("true")
	if err := command.Run(); err != nil {
		t.Fatal(err)
	}
	tasks := []Task{{PID: command.Process.Pid}}
	if err := s.Locate(tasks); err != nil {
		t.Fatal(err)
	}
	if tasks[0].Probed == nil {
		t.Error("its cgroup was found")
	}
	if _, err := s.Bind(tasks); err == nil || !strings.Contains(err.Error(), fmt.Sprint(tasks[0].PID)) {
		t.Errorf("got %v, want an error with the pid", err)
	}
}
