package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNoSwap(t *testing.T) {
	root, leaf := slurmV2(t)
	job := filepath.Dir(filepath.Dir(filepath.Dir(leaf)))
	limits := map[string]string{job: "1\n", filepath.Join(job, "step_0"): "2\n", filepath.Join(job, "step_0/user"): "3\n", leaf: "4\n"}
	for dir, text := range limits {
		if err := os.WriteFile(filepath.Join(dir, swapMax), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	hierarchies, err := Mounted(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := hierarchies.NoSwap(100); err != nil {
		t.Fatal(err)
	}
	limits[job], limits[filepath.Join(job, "step_0")] = "0\n", "0\n"
	for dir, want := range limits {
		if is, err := os.ReadFile(filepath.Join(dir, swapMax)); err != nil || string(is) != want {
			t.Errorf("%s: %q, %v, want %q", dir, is, err, want)
		}
	}
	// What does not become 0, as no kernel's does.
	if err := os.WriteFile(filepath.Join(job, swapMax), []byte("12\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := hierarchies.NoSwap(100); err == nil || !strings.Contains(err.Error(), job+`/memory.swap.max: wrote 0, reads "02\n"`) {
		t.Errorf("%v", err)
	}
	if err := os.Remove(filepath.Join(job, "step_0", swapMax)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(job, swapMax), []byte("0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := hierarchies.NoSwap(100); !errors.Is(err, ErrNoSwapLimit) || !strings.Contains(err.Error(), "job_7/step_0: ") {
		t.Errorf("no controller: %v", err)
	}
}

// Processes that are in no job's cgroup v2: nothing is written anywhere.
func TestNoSwapElsewhere(t *testing.T) {
	for name, cgroup := range map[string]string{
		"Slurm with v1":     "9:memory:/slurm/uid_0/job_7/step_0/task_0\n0::/\n",
		"linuxproc":         "0::/system.slice/slurmd.service\n",
		"slurmstepd's own":  "0::/system.slice/slurmstepd.scope/system\n",
		"no unified at all": "9:memory:/slurm/uid_0/job_7/step_0/task_0\n",
	} {
		root := put(t, map[string]string{
			"proc/100/cgroup":               cgroup,
			"proc/self/mountinfo":           "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			"sys/fs/cgroup/memory.swap.max": "1\n",
			"sys/fs/cgroup/system.slice/slurmd.service/memory.swap.max":          "1\n",
			"sys/fs/cgroup/system.slice/slurmstepd.scope/system/memory.swap.max": "1\n",
		})
		hierarchies, err := Mounted(root)
		if err != nil {
			t.Fatal(err)
		}
		if err := hierarchies.NoSwap(100); !errors.Is(err, ErrNoSwapLimit) {
			t.Errorf("%s: %v", name, err)
		}
		err = filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
			if text, _ := os.ReadFile(path); filepath.Base(path) == swapMax && string(text) != "1\n" {
				t.Errorf("%s: %s was written", name, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestCountsSwap(t *testing.T) {
	const mounted = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  bool
	}{
		"v2":               {map[string]string{"cgroup.controllers": "cpu memory\n", "a/memory.max": "", "a/memory.swap.max": ""}, true},
		"nothing below":    {map[string]string{"cgroup.controllers": "cpu memory\n"}, true},
		"one level deeper": {map[string]string{"cgroup.controllers": "memory\n", "a/b/memory.max": ""}, false},
		"no swap":          {map[string]string{"cgroup.controllers": "memory\n", "a/memory.max": ""}, false},
		"no memory":        {map[string]string{"cgroup.controllers": "cpu pids\n"}, false},
		"a hybrid":         {map[string]string{"cgroup.controllers": "\n"}, false},
	} {
		files := map[string]string{"proc/self/mountinfo": mounted}
		for file, text := range c.files {
			files["sys/fs/cgroup/"+file] = text
		}
		if got := CountsSwap(put(t, files)); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if CountsSwap(put(t, map[string]string{"proc/self/mountinfo": "\n"})) || CountsSwap(t.TempDir()) {
		t.Error("a machine without cgroup v2 counts swap")
	}
}
