package follow

import (
	"reflect"
	"testing"

	"gputune/internal/idset"
	"gputune/internal/placement"
	"gputune/internal/verify"
)

// Addresses of GPUs.
const (
	gpuA = "0000:17:00.0"
	gpuB = "0000:97:00.0"
	gpuC = "0000:bd:00.0"
)

func share(pci, cpus, mems string) Share {
	return Share{PCI: pci, CPUs: idset.MustParse(cpus), Mems: idset.MustParse(mems), Locality: placement.Local}
}

func TestWorkers(t *testing.T) {
	steps := []Step{
		{Job: "1", Step: "0", Shares: []Share{share(gpuA, "0-3", "0"), share(gpuB, "4-7", "1")}},
		{Job: "2", Step: "0", Shares: []Share{share(gpuB, "6", "1"), share(gpuC, "", "")}},
	}
	in := map[int]string{11: "1", 12: "1", 21: "2", 31: "3"}
	found, left := workers(steps, []List{
		{PCI: gpuA, MPS: true, PIDs: []int{11, 12, 31, 99}},
		{PCI: gpuB, PIDs: []int{12, 21, 12}},
		{PCI: gpuC, PIDs: []int{21, 11}},
		{PCI: "0000:c0:00.0", MPS: true},
		{PCI: "0000:c1:00.0", Error: "NVML: GPU is lost"},
	}, func(pid int, s *Step) bool { return in[pid] == s.Job }, func(pid int) bool { return in[pid] != "" })
	type is struct {
		job, gpus, cpus, mems string
		locality              placement.Locality
	}
	got := map[int]is{}
	for pid, w := range found {
		gpus := ""
		for _, pci := range w.gpus {
			gpus += pci + " "
		}
		got[pid] = is{w.step.Job, gpus, w.CPUs.String(), w.Mems.String(), w.Locality}
	}
	want := map[int]is{
		11: {"1", gpuA + " ", "0-3", "0", placement.Local},
		12: {"1", gpuA + " " + gpuB + " ", "0-7", "0-1", placement.Local},
		21: {"2", gpuB + " " + gpuC + " ", "", "", placement.Local}, // one of them is left alone
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	wantLeft := []Left{
		{gpuA, 31, "it is in no step with --gpu-numa-bind=follow"},
		{gpuA, 99, "it is in another PID namespace, or has ended"},
		{gpuC, 11, "it is in no step with --gpu-numa-bind=follow"}, // another job's GPU
		{"0000:c0:00.0", 0, "NVML shows an MPS server alone: its clients, if there are any, cannot be told"},
		{"0000:c1:00.0", 0, "NVML: GPU is lost"},
	}
	if !reflect.DeepEqual(left, wantLeft) {
		t.Errorf("%+v, want %+v", left, wantLeft)
	}
}

// A cgroup that is called as the step's, somewhere else or with more behind, is none.
func TestInStepByCgroup(t *testing.T) {
	h := verify.Host{Root: t.TempDir()}
	s := &Step{PID: 1, Cgroups: []string{"/system.slice/slurmstepd.scope/job_5/step_0", "/slurm/uid_0/job_5/step_0"}}
	for text, want := range map[string]bool{
		"0::/system.slice/slurmstepd.scope/job_5/step_0\n":                                   true,
		"0::/system.slice/slurmstepd.scope/job_5/step_0/user/task_0/mine\n":                  true,
		"1:devices:/slurm/uid_0/job_5/step_0/task_1\n0::/user.slice\n":                       true,
		"0::/system.slice/slurmstepd.scope/job_5/step_01\n":                                  false,
		"0::/user.slice/user-7.slice/system.slice/slurmstepd.scope/job_5/step_0/user/task\n": false,
		"0::/system.slice/slurmstepd.scope/job_5\n":                                          false,
		"0::/system.slice/slurmstepd.scope/job_55/step_0/x:/slurm/uid_0/job_5/step_0\n":      false,
		"": false,
	} {
		process(t, h.Root, 7, 1, text)
		if got := inStep(h, nil, 7, s); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// Where there are no cgroups, what descends from the slurmstepd is the step's.
func TestInStepByDescent(t *testing.T) {
	h := verify.Host{Root: t.TempDir()}
	for pid, parent := range map[int]int{1: 0, 40: 1, 41: 40, 42: 41, 43: 1, 44: 45, 45: 44} {
		process(t, h.Root, pid, parent, "")
	}
	table, err := h.Processes()
	if err != nil {
		t.Fatal(err)
	}
	s := &Step{PID: 40}
	for pid, want := range map[int]bool{40: false, 41: true, 42: true, 43: false, 1: false, 44: false, 99: false} {
		if got := inStep(h, table, pid, s); got != want {
			t.Errorf("%d: %v", pid, got)
		}
	}
}
