//go:build slurm

package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gputune/tests/slurm/bed"
	"gputune/tests/slurm/site"
)

// withDevices is steps for tasks on the node's two CPUs, in a job whose steps are
// started with a CUDA_VISIBLE_DEVICES of the user's own.
func withDevices(t *testing.T, s *site.Site, tasks int, devices string, arguments ...string) (map[string]facts, string) {
	t.Helper()
	job := append([]string{"-Q", "-n2", "--gpus=4", "srun", "-Q", fmt.Sprintf("-n%d", tasks), "-O"}, arguments...)
	command := s.Command("salloc", append(job, "sh", "-c", show)...)
	command.Env = []string{"DEVICES=" + s.Dir + "/dev", "CUDA_VISIBLE_DEVICES=" + devices}
	result, err := command.Run(t.Context())
	if err != nil || result.Code != 0 {
		t.Fatalf("%s: code %d, %v\nstdout: %s\nstderr: %s", devices, result.Code, err, result.Stdout, result.Stderr)
	}
	return parse(t, tasks, result.Stdout), result.Stderr
}

// A program's local rank is a position in CUDA_VISIBLE_DEVICES. Where Slurm leaves
// the variable alone, the user's own order is what tasks are paired by.
func TestTasksArePairedInTheOrderOfTheirDevices(t *testing.T) {
	t.Parallel()
	gres := []string{"Name=gpu File=${DIR}/dev/nvidia[0-3] Flags=no_gpu_env"}
	for name, options := range map[string]bed.Options{
		"open":        {ExtraGres: gres},
		"constrained": {ExtraGres: gres, ConstrainDevices: true},
	} {
		s := start(t, site.Options{Bed: options})
		uuids := func(gpus ...int) string {
			var list []string
			for _, gpu := range gpus {
				list = append(list, s.Machine.GPUs[gpu].UUID)
			}
			return strings.Join(list, ",")
		}
		for _, c := range []struct {
			devices   string
			arguments []string
			want      [][]int // GPUs of each task
			said      string
		}{
			{"3,1,0,2", nil, [][]int{{3}, {1}, {0}, {2}}, ""},
			{"3,1,0,2", []string{"--gpu-bind=none"}, [][]int{{3}, {1}, {0}, {2}}, ""},
			{"3,1,0,2", []string{"--gpu-bind=mask_gpu:0xf"}, [][]int{{3}, {1}, {0}, {2}}, ""},
			{"2,0,1,3", nil, [][]int{{0, 2}, {1, 3}}, ""},
			{uuids(3, 1, 0, 2), nil, [][]int{{3}, {1}, {0}, {2}}, ""},
			{uuids(2, 1), nil, [][]int{{2}, {1}}, ""},
			{"3,0", nil, [][]int{{3}, {0}}, ""},
			{"0,1,2,3", nil, [][]int{{0}, {1}, {2}, {3}}, ""},
			{"3,0,9,1", nil, [][]int{{3}, {0}}, "CUDA_VISIBLE_DEVICES=3,0,9,1 names a GPU that is not known: CUDA stops there"},
			{"3,0," + uuids(2), nil, [][]int{{3}, {0}}, "has numbers and UUIDs: CUDA stops where they change"},
		} {
			arguments := append(c.arguments, "--gpu-numa-bind=verbose,mem=none")
			tasks, stderr := withDevices(t, s, len(c.want), c.devices, arguments...)
			for rank, gpus := range c.want {
				f := tasks[fmt.Sprint(rank)]
				var pci, cpus []string
				for _, gpu := range gpus {
					pci = append(pci, s.Machine.GPUs[gpu].PCI)
					cpus = append(cpus, near(s, &s.Machine.GPUs[gpu]))
				}
				if len(cpus) == 2 && cpus[0] != cpus[1] {
					cpus = []string{"0-1"}
				}
				if f["cvd"] != c.devices || f["gpus"] != strings.Join(pci, ",") || f["cpus"] != cpus[0] || f["glocality"] != "local" {
					t.Errorf("%s: %s %v: task %d: %v, want GPUs %v\n%s", name, c.devices, c.arguments, rank, f, gpus, stderr)
				}
			}
			if !strings.Contains(stderr, c.said) || (c.said == "") != !strings.Contains(stderr, "CUDA") {
				t.Errorf("%s: %s: said %s, want %q", name, c.devices, stderr, c.said)
			}
		}
	}
	// What the cgroup leaves of them is the task's, whatever its list says.
	s := start(t, site.Options{Bed: bed.Options{ExtraGres: gres, ConstrainDevices: true}})
	tasks, stderr := withDevices(t, s, 4, "3,1,0,2", "--gpu-bind=map_gpu:2,0,3,1", "--gpu-numa-bind=strict,verbose,mem=none")
	for rank, gpu := range []int{2, 0, 3, 1} {
		if f := tasks[fmt.Sprint(rank)]; f["gpus"] != s.Machine.GPUs[gpu].PCI || f["cpus"] != near(s, &s.Machine.GPUs[gpu]) {
			t.Errorf("task %d: %v, want GPU %d\n%s", rank, f, gpu, stderr)
		}
	}
	if strings.Count(stderr, "CUDA stops there") != 4 || strings.Contains(stderr, "warning") {
		t.Errorf("not said: %s", stderr)
	}
}

// Everywhere else Slurm writes the variable anew, or takes it away, before a task
// is bound: what the user had set is nowhere to be seen.
func TestSlurmReplacesTheUsersDevices(t *testing.T) {
	for _, s := range []*site.Site{open, constrained} {
		if s == nil {
			continue
		}
		for _, c := range []struct{ argument, cvd string }{
			{"--gpu-bind=mask_gpu:0xf", "0,1,2,3"},
			{"--gpu-bind=none", ""},
			{"--gpu-bind=closest", "0,1,2,3"},
			{"--export=ALL,CUDA_VISIBLE_DEVICES=3,1,0,2", "0,1,2,3"},
		} {
			tasks, stderr := withDevices(t, s, 4, "3,1,0,2", c.argument, "--gpu-numa-bind=verbose,mem=none")
			for rank := range 4 {
				f, gpu := tasks[fmt.Sprint(rank)], &s.Machine.GPUs[rank]
				if f["cvd"] != c.cvd || f["gpus"] != gpu.PCI || f["cpus"] != near(s, gpu) {
					t.Errorf("%s: task %d: %v, want gpu %s\n%s", c.argument, rank, f, gpu.PCI, stderr)
				}
			}
		}
	}
}

// GPUs that differ are counted in an order that is not known here.
func TestOrderOfDifferentGPUsIsSaid(t *testing.T) {
	t.Parallel()
	s := start(t, site.Options{Bed: bed.Options{ConstrainDevices: true}})
	file := filepath.Join(s.Folder, "machine/proc/driver/nvidia/gpus", s.Machine.GPUs[3].PCI, "information")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	other := regexp.MustCompile(`(?m)^Model:.*$`).ReplaceAll(text, []byte("Model: \t\t NVIDIA T4"))
	if err := os.WriteFile(file, other, 0o644); err != nil || string(other) == string(text) {
		t.Fatalf("%v, %s", err, other)
	}
	for _, c := range []struct {
		gpus  string // that the task has
		order string
		noted bool
	}{{"0xf", "FASTEST_FIRST", true}, {"0xf", "PCI_BUS_ID", false}, {"0x7", "FASTEST_FIRST", false}, {"0xc", "FASTEST_FIRST", true}} {
		command := s.Command("srun", "-Q", "-n2", "--gpus=4", "--gpu-bind=mask_gpu:"+c.gpus, "--gpu-numa-bind=strict,verbose,mem=none", "true")
		command.Env = []string{"CUDA_DEVICE_ORDER=" + c.order}
		result, err := command.Run(t.Context())
		if err != nil || result.Code != 0 || strings.Contains(result.Stderr, "set CUDA_DEVICE_ORDER=PCI_BUS_ID") != c.noted {
			t.Errorf("%+v: code %d, %v: %s", c, result.Code, err, result.Stderr)
		}
	}
}
