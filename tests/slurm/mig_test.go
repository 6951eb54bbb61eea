//go:build slurm

package slurm

import (
	"slices"
	"strings"
	"testing"

	"gputune/internal/idset"
	"gputune/internal/topology"
	"gputune/tests/slurm/bed"
	"gputune/tests/slurm/site"
)

// TestMIG: the job's GPUs are split before its steps begin, each task is dealt
// MIG devices of its own, bound or not, and the GPUs are whole again after it.
func TestMIG(t *testing.T) {
	t.Parallel()
	s := startSettings(t, "")
	for _, test := range []struct {
		arguments []string
		tasks     int
		devices   int // different ones that tasks have first
		all       int // of all tasks
		says      string
	}{
		{[]string{"-n3", "--gpus=1", "--gpu-mig=1g.18gb:3"}, 3, 3, 3, ""},
		{[]string{"-n3", "--gpus=1", "--gpu-mig=1g.18gb:3", "--gpu-numa-bind=verbose"}, 3, 3, 3, ", local"},
		{[]string{"-n2", "--gpus=2", "--gpu-mig=3g.71gb:2"}, 2, 2, 4, "GPU-to-GPU peer access is off"},
		{[]string{"-n4", "-O", "--gpus=1", "--gpu-mig=4g.71gb+3g.71gb", "--gpu-numa-bind=verbose"}, 4, 2, 4, "2 tasks share it"},
		{[]string{"-n1", "--gpus=1", "--gpu-mig=1g.18gb+me+1g.18gb:6"}, 1, 1, 7, ""},
	} {
		name := strings.Join(test.arguments, " ")
		result := must(t, s.Site, "srun", append(test.arguments, "printenv", "CUDA_VISIBLE_DEVICES")...)
		var first, all []string
		for line := range strings.Lines(result.Stdout) {
			uuids := strings.Split(strings.TrimSpace(line), ",")
			first = append(first, uuids[0])
			all = append(all, uuids...)
		}
		tasks, total := len(first), len(all)
		slices.Sort(first)
		for _, uuid := range all {
			if !strings.HasPrefix(uuid, "MIG-") {
				t.Errorf("%s: %q", name, result.Stdout)
			}
		}
		if different := len(slices.Compact(first)); tasks != test.tasks || different != test.devices || total != test.all {
			t.Errorf("%s: %d tasks, %d devices first, %d in all: %q", name, tasks, different, total, result.Stdout)
		}
		if !strings.Contains(result.Stderr, test.says) || test.says == "" && result.Stderr != "" {
			t.Errorf("%s: stderr %q, want %q", name, result.Stderr, test.says)
		}
		s.wantClean(t)
	}

	// An inner step is dealt anew, and one that asks for nothing is dealt, too.
	result := must(t, s.Site, "salloc", "-Q", "-n2", "--gpus=1", "--gpu-mig=1g.18gb:2", "srun", "--cpu-bind=none", "-n1", "printenv", "CUDA_VISIBLE_DEVICES")
	if got := strings.Count(result.Stdout, "MIG-"); got != 2 {
		t.Errorf("%q", result.Stdout)
	}
	s.wantClean(t)

	for value, want := range map[string]string{
		"4g.71gb:2": "has room for 1; nearest: 4g.71gb",
		"1g.5gb":    "the GPU has 1g.18gb:7",
	} {
		result := ran(t, s, "srun", "-n1", "--gpus=1", "--gpu-mig="+value, "true")
		if result.Code == 0 || !strings.Contains(result.Stderr, want) {
			t.Errorf("%s: %v", value, result)
		}
		s.wantClean(t)
	}
	result = ran(t, s, "srun", "-n1", "--gpus=1", "--gpu-mig=all", "true")
	if result.Code == 0 || !strings.Contains(result.Stderr, `--gpu-mig: "all": want PROFILE[:N]`) {
		t.Errorf("at submission: %v", result)
	}
}

// Seven tasks have a seventh of a GPU each, and all of them the CPUs and the
// memory near that GPU. Mixed layouts, too.
func TestMIGOfSeven(t *testing.T) {
	t.Parallel()
	s := startSettings(t, "")
	for layout, devices := range map[string]int{"1g.18gb:7": 7, "3g.71gb+2g.35gb:2": 3} {
		result := must(t, s.Site, "srun", "-n7", "-O", "--gpus=1", "--gpu-mig="+layout, "--gpu-numa-bind=quiet", "sh", "-c",
			`echo "$CUDA_VISIBLE_DEVICES $GPUTUNE_GPUS $GPUTUNE_CPUS $GPUTUNE_MEMS $GPUTUNE_LOCALITY"`)
		seen := map[string]bool{}
		tasks := 0
		for line := range strings.Lines(result.Stdout) {
			words := strings.Fields(line)
			if len(words) != 5 {
				t.Fatalf("%s: %q, %q", layout, line, result.Stderr)
			}
			tasks++
			seen[words[0]] = true
			i := slices.IndexFunc(s.Machine.GPUs, func(gpu topology.GPU) bool { return gpu.PCI == words[1] })
			if i < 0 {
				t.Fatalf("%s: no GPU %s", layout, words[1])
			}
			gpu := s.Machine.GPUs[i]
			cpus, err := idset.Parse(words[2])
			if err != nil || cpus.Empty() || !cpus.SubsetOf(gpu.CPUs) || words[3] != gpu.Nodes.String() || words[4] != "local" {
				t.Errorf("%s: a task has %v (%v); its GPU is near CPUs %s, node %s", layout, words, err, gpu.CPUs, gpu.Nodes)
			}
		}
		if tasks != 7 || len(seen) != devices {
			t.Errorf("%s: %d tasks with %d devices, want 7 with %d: %q", layout, tasks, len(seen), devices, result.Stdout)
		}
		s.wantClean(t)
	}
}

// Where Slurm keeps tasks to their GPUs, each is dealt devices of its own GPU,
// although all of them have the same CUDA_VISIBLE_DEVICES of Slurm's.
func TestMIGConstrained(t *testing.T) {
	t.Parallel()
	s := &settings{Site: start(t, site.Options{Jobs: true, Bed: bed.Options{
		NCPU: 4, TaskPlugin: "task/cgroup", ConstrainDevices: true, ExtraSlurmConf: []string{"PrologFlags=Alloc"},
	}})}
	s.before = s.state(t)
	result := must(t, s.Site, "srun", "-n2", "--gpus-per-task=1", "--gpu-mig=3g.71gb:2", "--gpu-numa-bind=verbose", "sh", "-c",
		`echo "$GPUTUNE_GPUS $CUDA_VISIBLE_DEVICES"`)
	devices := map[string]string{} // by GPU
	for line := range strings.Lines(result.Stdout) {
		gpu, uuids, _ := strings.Cut(strings.TrimSpace(line), " ")
		devices[gpu] = uuids
	}
	if len(devices) != 2 {
		t.Fatalf("%q, %q", result.Stdout, result.Stderr)
	}
	state, err := s.NVML.State()
	if err != nil {
		t.Fatal(err)
	}
	if len(state) != 4 {
		t.Fatalf("%v", state)
	}
	seen := map[string]bool{}
	for gpu, uuids := range devices {
		// The fake names devices by GPU and place.
		first, second, two := strings.Cut(uuids, ",")
		if !two || first[:12] != second[:12] || seen[first[:12]] {
			t.Errorf("%s has %s: %q", gpu, uuids, result.Stdout)
		}
		seen[first[:12]] = true
	}
	s.wantClean(t)
}

// ran runs a command that may fail.
func ran(t *testing.T, s *settings, name string, arguments ...string) bed.Result {
	t.Helper()
	result, err := s.Run(t.Context(), name, arguments...)
	if err != nil {
		t.Fatal(err)
	}
	return result
}
