//go:build slurm

package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gputune/tests/slurm/bed"
	"gputune/tests/slurm/site"
)

// Each task must be on the CPU of the node of the GPU that the kernel lets it
// open, whatever its environment says.
func TestConstrainedTasksFollowTheirGPU(t *testing.T) {
	s := need(t, constrained)
	for name, arguments := range map[string][]string{
		"one GPU each":         {"--gpus-per-task=1"},
		"crossed over":         {"--gpu-bind=map_gpu:3,1,2,0"},
		"all on one":           {"--gpu-bind=map_gpu:3"},
		"environment is silly": {"--gpu-bind=mask_gpu:0x8,0x1,0x4,0x2"},
	} {
		t.Run(name, func(t *testing.T) {
			tasks, stderr := fourTasks(t, s, append(arguments, "--gpu-numa-bind=verbose")...)
			for id, f := range tasks {
				if len(f["open"]) != 1 {
					t.Fatalf("task %s may open %q, want one device", id, f["open"])
				}
				gpu := gpuOf(t, s, f["open"])
				if f["cpus"] != near(s, gpu) || f["gcpus"] != near(s, gpu) || f["gpus"] != gpu.PCI || f["glocality"] != "local" {
					t.Errorf("task %s has GPU %s of node %s: %v\n%s", id, f["open"], gpu.Nodes, f, stderr)
				}
				if f["cvd"] != "0" {
					t.Errorf("task %s: CUDA_VISIBLE_DEVICES=%s: this test expects a renumbered one", id, f["cvd"])
				}
			}
		})
	}
}

func TestWithoutTheOptionNothingChanges(t *testing.T) {
	for _, s := range []*site.Site{open, constrained} {
		if s == nil {
			continue
		}
		tasks, stderr := steps(t, s, 2, "--gpus=2", "--gpu-bind=map_gpu:1,0")
		off, offErr := steps(t, s, 2, "--gpus=2", "--gpu-bind=map_gpu:1,0", "--gpu-numa-bind=off")
		if stderr != "" || offErr != "" {
			t.Errorf("said %q and %q", stderr, offErr)
		}
		for id, f := range tasks {
			if f["gpus"] != "" || f["gcpus"] != "" || off[id]["gcpus"] != "" {
				t.Errorf("task %s: %v, %v", id, f, off[id])
			}
			if f["cpus"] != off[id]["cpus"] || f["policy"] != off[id]["policy"] {
				t.Errorf("task %s: absent %v, off %v", id, f, off[id])
			}
		}
	}
}

// Without constrained devices the task's own CUDA_VISIBLE_DEVICES tells.
func TestUnconstrainedTasksFollowTheirEnvironment(t *testing.T) {
	s := need(t, open)
	tasks, stderr := fourTasks(t, s, "--gpu-bind=map_gpu:3,1,2,0", "--gpu-numa-bind=verbose")
	for id, f := range tasks {
		want := []string{"3", "1", "2", "0"}[id[0]-'0']
		if f["cvd"] != want {
			t.Fatalf("task %s: CUDA_VISIBLE_DEVICES=%s, expected %s of this Slurm", id, f["cvd"], want)
		}
		if gpu := gpuOf(t, s, want); f["cpus"] != near(s, gpu) || f["gpus"] != gpu.PCI || f["glocality"] != "local" {
			t.Errorf("task %s has GPU %s of node %s: %v\n%s", id, want, gpu.Nodes, f, stderr)
		}
	}
}

// As many tasks as GPUs, all seeing all: task i uses GPU i, as frameworks do.
func TestTasksThatSeeAllGPUsArePaired(t *testing.T) {
	for _, s := range []*site.Site{open, constrained} {
		if s == nil {
			continue
		}
		tasks, stderr := fourTasks(t, s, "--gpu-bind=none", "--gpu-numa-bind=verbose")
		for id, f := range tasks {
			gpu := &s.Machine.GPUs[id[0]-'0']
			if f["open"] != "0123" || f["gpus"] != gpu.PCI || f["cpus"] != near(s, gpu) {
				t.Errorf("task %s: %v, want gpu %s\n%s", id, f, gpu.PCI, stderr)
			}
		}
		tasks, _ = steps(t, s, 2, "--gpus=4", "--gpu-bind=none", "--gpu-numa-bind=gpus=all")
		for id, f := range tasks {
			if strings.Count(f["gpus"], ",") != 3 || f["cpus"] != "0-1" {
				t.Errorf("gpus=all: task %s: %v", id, f)
			}
		}
	}
}

func TestVerboseLine(t *testing.T) {
	s := need(t, constrained)
	// With cgroup v1, the default enforce=cgroup adds why it cannot be had.
	if _, stderr := steps(t, s, 1, "--gpus=1", "--gpu-numa-bind=verbose"); strings.Count(stderr, ", local; affinity alone: ") != 1 {
		t.Errorf("enforce=cgroup: %s", stderr)
	}
	_, stderr := steps(t, s, 2, "--gpus=2", "--gpu-bind=map_gpu:1,0", "--gpu-numa-bind=verbose,enforce=affinity")
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	for task, gpu := range []int{1, 0} {
		g := &s.Machine.GPUs[gpu]
		// Memory follows the kernel's one node here; what the node is and what it is for is in the line.
		want := regexp.MustCompile(fmt.Sprintf(`^gputune: %s task %d: gpu %s \(node %s\), cpus %s, mems [0-9-]+ prefer, local$`,
			regexp.QuoteMeta(s.Node), task, g.PCI, g.Nodes, near(s, g)))
		found := 0
		for _, line := range lines {
			if want.MatchString(line) {
				found++
			}
		}
		if found != 1 {
			t.Errorf("%d lines match %s in\n%s", found, want, stderr)
		}
	}
	if _, stderr := steps(t, s, 2, "--gpus=2", "--gpu-numa-bind=quiet"); stderr != "" {
		t.Errorf("quiet said %q", stderr)
	}
}

func TestOptionIsInheritedAndCanBeSwitchedOff(t *testing.T) {
	s := need(t, constrained)
	script := filepath.Join(s.Dir, "work", "inherit.sh")
	text := "#!/bin/sh\n" +
		"srun -Q -n1 sh -c 'echo inherited $GPUTUNE_CPUS'\n" +
		"srun -Q -n1 --gpu-numa-bind=off sh -c 'echo off $GPUTUNE_CPUS'\n" +
		"echo batch $GPUTUNE_CPUS\n"
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	output := filepath.Join(s.Dir, "work", "inherit.out")
	must(t, s, "sbatch", "-W", "-n1", "--gpus=1", "--gpu-numa-bind", "-o", output, script)
	got, err := os.ReadFile(output)
	if err != nil {
		t.Fatal(err)
	}
	cpu := near(s, &s.Machine.GPUs[0])
	if want := "inherited " + cpu + "\noff\nbatch " + cpu + "\n"; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestOptionInTheScript(t *testing.T) {
	s := need(t, constrained)
	script := filepath.Join(s.Dir, "work", "directive.sh")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n#SBATCH --gpu-numa-bind=mem=none\necho $GPUTUNE_LOCALITY $GPUTUNE_MEM_POLICY\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	output := filepath.Join(s.Dir, "work", "directive.out")
	must(t, s, "sbatch", "-W", "-n1", "--gpus=1", "-o", output, script)
	if got, err := os.ReadFile(output); err != nil || string(got) != "local none\n" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestBadValueIsRefusedBeforeAJobExists(t *testing.T) {
	s := need(t, open)
	lastJob := func() string {
		return must(t, s, "scontrol", "show", "config").Stdout[strings.Index(must(t, s, "scontrol", "show", "config").Stdout, "NEXT_JOB_ID"):][:40]
	}
	before := lastJob()
	script := filepath.Join(s.Dir, "work", "bad.sh")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n#SBATCH --gpu-numa-bind=cpus=sideways\ntrue\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][]string{
		{"srun", "-n1", "--gpu-numa-bind=cpus=sideways", "true"},
		{"sbatch", "--gpu-numa-bind=cpus=sideways", "--wrap=true"},
		{"sbatch", script},
		{"salloc", "--gpu-numa-bind=cpus=sideways", "true"},
	} {
		result, err := s.Run(t.Context(), c[0], c[1:]...)
		if err != nil {
			t.Fatal(err)
		}
		want := `item "cpus=sideways": want cpus=node|exclusive|core-complex|socket|none`
		if result.Code == 0 || !strings.Contains(result.Stderr, want) {
			t.Errorf("%v: code %d, stderr %q, want %q in it", c, result.Code, result.Stderr, want)
		}
	}
	if after := lastJob(); after != before {
		t.Errorf("a job was made: %s, then %s", before, after)
	}
}

func TestUsersOwnBindingWins(t *testing.T) {
	s := need(t, constrained)
	for _, cpu := range []string{"0", "1"} {
		tasks, stderr := steps(t, s, 1, "-c2", "--gpus=1", "--cpu-bind=map_cpu:"+cpu, "--gpu-numa-bind=verbose,strict")
		if tasks["0"]["cpus"] != cpu || tasks["0"]["gcpus"] != cpu {
			t.Errorf("map_cpu:%s: %v", cpu, tasks["0"])
		}
		if !strings.Contains(stderr, "cpus "+cpu+" (kept: --cpu-bind=map_cpu") {
			t.Errorf("not said: %q", stderr)
		}
		locality := "remote"
		if cpu == near(s, gpuOf(t, s, tasks["0"]["open"])) {
			locality = "local"
		}
		if tasks["0"]["glocality"] != locality {
			t.Errorf("map_cpu:%s: locality %s, want %s", cpu, tasks["0"]["glocality"], locality)
		}
	}
	_, stderr := steps(t, s, 1, "--gpus=1", "--mem-bind=local", "--gpu-numa-bind=verbose")
	if !strings.Contains(stderr, "none (kept: --mem-bind=local)") {
		t.Errorf("--mem-bind not said to be kept: %q", stderr)
	}
	_, stderr = steps(t, s, 1, "--gpus=1", "--cpu-bind=verbose", "--gpu-numa-bind=verbose")
	if strings.Contains(stderr, "kept") {
		t.Errorf("--cpu-bind=verbose binds nothing, yet: %q", stderr)
	}
}

// A job of one CPU has GPUs of both nodes: some or all are far from it.
func TestStrict(t *testing.T) {
	s := need(t, constrained)
	// -O: two tasks on the one CPU. Which CPU that is, Slurm decides.
	cpu := must(t, s, "salloc", "-Q", "-n1", "--gpus=4", "srun", "-Q", "-n1", "sed", "-n", "s/^Cpus_allowed_list:\t//p", "/proc/self/status").Stdout
	var far []string
	for i := range s.Machine.GPUs {
		if near(s, &s.Machine.GPUs[i]) != strings.TrimSpace(cpu) {
			far = append(far, fmt.Sprint(s.Machine.GPUs[i].Minor))
		}
	}
	if len(far) != 2 {
		t.Fatalf("on CPU %s, GPUs %v are far: want two", cpu, far)
	}
	for name, c := range map[string]struct {
		bind     []string
		locality string
	}{
		"all GPUs are far": {[]string{"--gpu-bind=map_gpu:" + strings.Join(far, ",")}, "remote"},
		"half of them are": {[]string{"--gpu-bind=none"}, "mixed"},
	} {
		t.Run(name, func(t *testing.T) {
			step := append([]string{"-Q", "-n1", "--gpus=4", "srun", "-Q", "-n2", "-O"}, c.bind...)
			items := "gpus=all,"
			tasks, stderr := stepsOf(t, s, 2, s.Command("salloc", append(step, "--gpu-numa-bind="+items+"verbose", "sh", "-c", show)...))
			for id, f := range tasks {
				if f["glocality"] != c.locality || f["cpus"] != strings.TrimSpace(cpu) {
					t.Errorf("task %s: %v, want %s\n%s", id, f, c.locality, stderr)
				}
			}
			if !strings.Contains(stderr, "none of the 1 CPUs of node") || strings.Count(stderr, " prefer, "+c.locality) != 2 {
				t.Errorf("not said: %s", stderr)
			}
			result, err := s.Run(t.Context(), "salloc", append(step, "--gpu-numa-bind="+items+"strict", "sh", "-c", "echo ran")...)
			if err != nil {
				t.Fatal(err)
			}
			if result.Code != 1 || result.Stdout != "" || strings.Count(result.Stderr, ": error: gpu 0000:") < 2 {
				t.Errorf("code %d, stdout %q, stderr %q", result.Code, result.Stdout, result.Stderr)
			}
		})
	}
	if state, reason, err := s.NodeState(t.Context()); err != nil || strings.Contains(state, "drain") || strings.Contains(state, "down") {
		t.Errorf("node is %s (%s), %v", state, reason, err)
	}
}

func TestStepWithoutGPU(t *testing.T) {
	for _, s := range []*site.Site{open, constrained} {
		if s == nil {
			continue
		}
		tasks, stderr := steps(t, s, 2, "--gpu-numa-bind")
		if !strings.Contains(stderr, "no GPU is visible to it") {
			t.Errorf("not said: %q", stderr)
		}
		for id, f := range tasks {
			if f["gpus"] != "" {
				t.Errorf("task %s: %v", id, f)
			}
		}
		result, err := s.Run(t.Context(), "srun", "-n1", "--gpu-numa-bind=strict", "true")
		if err != nil || result.Code != 1 {
			t.Errorf("strict: code %d, %v", result.Code, err)
		}
	}
}

func TestSiteDefault(t *testing.T) {
	t.Parallel()
	s := start(t, site.Options{
		Arguments: []string{"default=on,verbose", "defualt=off"},
		Config:    "[numa_bind]\nitems = \"mem=none\"\n",
	})
	tasks, stderr := steps(t, s, 2, "--gpus=2", "--gpu-bind=map_gpu:1,0")
	for id, f := range tasks {
		if f["glocality"] != "local" || f["gpolicy"] != "none" {
			t.Errorf("task %s: %v", id, f)
		}
	}
	if want := `argument "defualt=off" is not known: want default=ITEMS, config=FILE, core=FILE, program=FILE or run=DIR`; !strings.Contains(stderr, want) ||
		!strings.Contains(s.Log("slurmd"), want) {
		t.Errorf("the unknown argument is not said on the terminal (%q) and in slurmd's log", stderr)
	}
	// Steps without GPUs are left in peace by a site's default.
	tasks, stderr = steps(t, s, 1)
	if tasks["0"]["glocality"] != "" || strings.Contains(stderr, "no GPU") {
		t.Errorf("%v, %q", tasks, stderr)
	}
	tasks, _ = steps(t, s, 1, "--gpus=1", "--gpu-numa-bind=off")
	if tasks["0"]["glocality"] != "" {
		t.Errorf("off: %v", tasks)
	}
}

func TestProgramMissing(t *testing.T) {
	t.Parallel()
	s := start(t, site.Options{Arguments: []string{"program=/nonexistent/gputune"}})
	result, err := s.Run(t.Context(), "srun", "-n1", "--gpus=1", "--gpu-numa-bind=cpus=sideways", "echo", "ran")
	if err != nil {
		t.Fatal(err)
	}
	if result.Code != 1 || strings.Contains(result.Stdout, "ran") || !strings.Contains(result.Stderr, `item "cpus=sideways"`) {
		t.Errorf("code %d, stdout %q, stderr %q", result.Code, result.Stdout, result.Stderr)
	}
	tasks, _ := steps(t, s, 1, "--gpus=1", "--gpu-numa-bind")
	if tasks["0"]["glocality"] != "local" {
		t.Errorf("%v", tasks)
	}
	if err := s.WaitIdle(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestCoreMissing(t *testing.T) {
	t.Parallel()
	s := start(t, site.Options{Arguments: []string{"core=/nonexistent/libgputune.so"}})
	tasks, stderr := steps(t, s, 2, "--gpus=2", "--gpu-numa-bind")
	const why = "the core could not be loaded: /nonexistent/libgputune.so"
	if len(tasks) != 2 || !strings.Contains(stderr, why) {
		t.Errorf("%v, %q", tasks, stderr)
	}
	if log := s.Log(bed.Slurmd); strings.Count(log, why) != 1 {
		t.Errorf("slurmd's log does not say it once: %s", log)
	}
}

// A core that is no whole library, or a pipe, must not take slurmstepd along.
func TestCoreThatIsNone(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	tree, err := site.Tree()
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(tree, "build/lib/libgputune.so"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"short": whole[:4096], "half": whole[:len(whole)/2], "text": []byte("no library")} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(folder, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"short", "half", "text", "pipe"} {
		t.Run(name, func(t *testing.T) {
			s := start(t, site.Options{Arguments: []string{"core=" + filepath.Join(folder, name)}})
			tasks, stderr := steps(t, s, 2, "--gpus=2", "--gpu-numa-bind")
			if len(tasks) != 2 || !strings.Contains(stderr, "not there or not a whole library") {
				t.Errorf("%v, %q", tasks, stderr)
			}
			result, err := s.Run(t.Context(), "srun", "-n1", "--gpus=1", "--gpu-numa-bind=strict", "true")
			if err != nil || result.Code != 1 {
				t.Errorf("strict: code %d, %v", result.Code, err)
			}
		})
	}
}

// A doubled line in plugstack.conf runs every hook twice.
func TestPluginListedTwice(t *testing.T) {
	options := site.Options{}
	s := need(t, open)
	options.Bed.PlugstackLines = []string{"optional " + s.Shim + " core=" + s.Core + " config=" + filepath.Join(s.Folder, "gputune.toml")}
	twice := start(t, options)
	tasks, stderr := stepsOf(t, twice, 2, twice.Command("salloc", "-Q", "-n1", "--gpus=4", "srun", "-Q", "-n2", "-O", "--gpu-bind=map_gpu:3,2",
		"--gpu-numa-bind=verbose", "sh", "-c", show))
	for id, f := range tasks {
		if f["cpus"] != tasks["0"]["cpus"] || len(f["cpus"]) != 1 || strings.Count(stderr, " task "+id+": gpu ") != 1 {
			t.Errorf("task %s: %v\n%s", id, f, stderr)
		}
	}
}

func TestUnprivilegedUser(t *testing.T) {
	s := need(t, constrained)
	command := s.Command("srun", "-n2", "--gpus=2", "--gpu-bind=map_gpu:1,0", "--gpu-numa-bind=strict", "sh", "-c", "id -u; "+show)
	command.User = "nobody"
	command.Env = []string{"DEVICES=" + s.Dir + "/dev"}
	result, err := command.Run(t.Context())
	if err != nil || result.Code != 0 {
		t.Fatalf("code %d, %v\n%s", result.Code, err, result.Stderr)
	}
	if strings.Count(result.Stdout, "65534\n") != 2 {
		t.Fatalf("not run as nobody: %s", result.Stdout)
	}
	for id, f := range parse(t, 2, strings.ReplaceAll(result.Stdout, "65534\n", "")) {
		if f["cpus"] != near(s, gpuOf(t, s, f["open"])) {
			t.Errorf("task %s: %v", id, f)
		}
	}
}

// A site's default leaves a step without GPUs in peace, also in a job that has
// some, and strictly so.
func TestSiteDefaultInAJobWithGPUs(t *testing.T) {
	t.Parallel()
	s := start(t, site.Options{Arguments: []string{"default=on,strict,mem=none"}, Bed: bed.Options{ConstrainDevices: true}})
	result := must(t, s, "salloc", "-Q", "-n2", "--gpus=2", "sh", "-c",
		"srun -Q -n1 --gres=none sh -c 'echo none $GPUTUNE_GPUS'; srun -Q -n1 --gpus=1 sh -c 'echo one $GPUTUNE_LOCALITY'")
	if result.Stdout != "none\none local\n" || result.Stderr != "" {
		t.Errorf("stdout %q, stderr %q", result.Stdout, result.Stderr)
	}
}

// Which node this is, only slurmd knows; the user's environment can say what it
// likes, or what an outer step on another node left there.
func TestNodeNameIsSlurmds(t *testing.T) {
	s := need(t, constrained)
	command := s.Command("srun", "-n1", "--gpus=1", "--gpu-numa-bind=strict,verbose", "true")
	command.Env = []string{"SLURMD_NODENAME=elsewhere", "SLURM_CONF_SERVER=x"}
	result, err := command.Run(t.Context())
	if err != nil || result.Code != 0 || !strings.Contains(result.Stderr, "gputune: "+s.Node+" task 0: gpu 0000:") {
		t.Errorf("code %d, %v, %q", result.Code, err, result.Stderr)
	}
}

// A GPU whose device file has gone is no reason not to bind those that have
// others.
func TestLostDevice(t *testing.T) {
	t.Parallel()
	s := start(t, site.Options{Bed: bed.Options{ConstrainDevices: true}})
	lost := s.GPU(3)
	if err := os.Rename(lost, lost+".gone"); err != nil {
		t.Fatal(err)
	}
	result, err := s.Run(t.Context(), "srun", "-Q", "-n1", "--gpus=1", "--gpu-numa-bind=strict,mem=none", "sh", "-c", "echo $GPUTUNE_GPUS")
	if err != nil || result.Code != 0 || result.Stdout != s.Machine.GPUs[0].PCI+"\n" {
		t.Errorf("code %d, %v, %q, %q", result.Code, err, result.Stdout, result.Stderr)
	}
	if log := s.Log(bed.Slurmd); !strings.Contains(log, "gputune: gpu "+s.Machine.GPUs[3].PCI+": device file "+lost) {
		t.Errorf("not in slurmd's log:\n%s", log)
	}
}
