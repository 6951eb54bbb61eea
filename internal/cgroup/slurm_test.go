package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestKindOf(t *testing.T) {
	const v2 = "/system.slice/slurmstepd.scope"
	for path, want := range map[string]Kind{
		// cgroup v2
		v2 + "/job_2/step_0/user/task_0":                                              Task,
		"/system.slice/node1_slurmstepd.scope/job_2/step_0/user/task_12":              Task,
		"/system.slice/node1_slurmstepd.scope/s97DM8MRE7WY00/step_0/user/task_0":      Task, // 26.05
		"/custom.slice/sub.slice/slurmstepd.scope/job_2/step_interactive/user/task_0": Task,
		v2 + "/job_2/step_batch/user/task_0":                                          Task,
		v2 + "/job_2/step_0+1/user/task_3":                                            Task,
		v2 + "/job_2/step_0/user/task_special":                                        Special,
		v2 + "/job_2/step_extern/user/task_special":                                   Special,
		v2 + "/job_2/step_0/user":                                                     Step,
		v2 + "/job_2/step_0":                                                          Step,
		v2 + "/job_2":                                                                 Step,
		v2 + "/job_2/step_0/slurm":                                                    Daemon,
		v2 + "/system":                                                                Daemon,
		v2:                                                                            Daemon,
		v2 + "/job_2/step_0/user/task_0/mine":                                         Foreign,
		v2 + "/job_2/step_0/user/task_x":                                              Foreign,
		v2 + "/job_2/step_0/user/task_-1":                                             Foreign,
		v2 + "/job_2/step_0/other/task_0":                                             Foreign,
		v2 + "/job_2/user/task_0":                                                     Foreign,
		// cgroup v1
		"/slurm/uid_1000/job_2/step_0/task_1":       Task,
		"/slurm_node1/uid_1000/job_2/step_0/task_1": Task,
		"/slurm/uid_1000/job_2/step_0/task_special": Special,
		"/slurm/uid_1000/job_2/step_batch":          Step,
		"/slurm/uid_1000/job_2":                     Step,
		"/slurm/uid_1000":                           Step,
		"/slurm":                                    Daemon,
		"/slurm/other/job_2":                        Foreign,
		"/slurm/uid_1000/job_2/step_0/task_1/x":     Foreign,
		// others
		"/":                            Foreign,
		"":                             Foreign,
		"/system.slice/slurmd.service": Foreign,
		"/user.slice/slurm/uid_1000/job_2/step_0/task_1":                       Foreign,
		"/slurmish/uid_1000/job_2/step_0/task_1":                               Foreign,
		"/system.slice/xslurmstepd.scope/job_2/step_0/user/task_0":             Foreign,
		"/user.slice/user-1000.slice/session-3.scope/job_2/step_0/user/task_0": Foreign,
	} {
		if got := KindOf(path); got != want {
			t.Errorf("KindOf(%s) = %s, want %s", path, got, want)
		}
	}
}

func TestExclusive(t *testing.T) {
	for _, test := range []struct {
		name, path, procs string
		reason            string // "" exclusive
	}{
		{"alone", taskPath, "100\n", ""},
		{"with others", taskPath, "100\n200\n", "task_0 holds 2 processes, not only 100"},
		{"elsewhere", taskPath, "200\n", "process 100 is not in"},
		{"empty", taskPath, "", "process 100 is not in"},
		{"special", strings.Replace(taskPath, "task_0", "task_special", 1), "100\n", "task_special, which all tasks of the step share"},
		{"step", filepath.Dir(taskPath), "100\n", "the whole step's cgroup"},
		{"slurmstepd", "/system.slice/slurmstepd.scope/job_7/step_0/slurm", "100\n", "Slurm's own processes"},
		{"no Slurm", "/user.slice", "100\n", "not one of Slurm's cgroups"},
		{"unreadable", taskPath, "x\n", `"x": want a process id`},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := put(t, map[string]string{"c" + test.path + "/cgroup.procs": test.procs})
			place := Place{Dir: filepath.Join(root, "c", test.path), Path: test.path}
			exclusive, reason := place.Exclusive(100)
			if exclusive != (test.reason == "") || !strings.Contains(reason, test.reason) {
				t.Errorf("Exclusive = %v, %q, want %q", exclusive, reason, test.reason)
			}
		})
	}
	if exclusive, reason := (Place{}).Exclusive(100); exclusive || reason == "" {
		t.Errorf("no cgroup: %v, %q", exclusive, reason)
	}
	if exclusive, reason := (Place{Dir: t.TempDir(), Path: taskPath}).Exclusive(100); exclusive || !strings.Contains(reason, "no such file") {
		t.Errorf("no cgroup.procs: %v, %q", exclusive, reason)
	}
}

func TestProcs(t *testing.T) {
	_, leaf := slurmV2(t)
	place := Place{Dir: leaf, Path: taskPath}
	if pids, err := Procs(place); err != nil || !slices.Equal(pids, []int{100}) {
		t.Errorf("Procs = %v, %v", pids, err)
	}
	if threads, err := Threads(place); err != nil || !slices.Equal(threads, []int{100, 101}) {
		t.Errorf("Threads = %v, %v", threads, err)
	}
	if err := os.Rename(filepath.Join(leaf, "cgroup.threads"), filepath.Join(leaf, "tasks")); err != nil {
		t.Fatal(err)
	}
	if threads, err := Threads(place); err != nil || !slices.Equal(threads, []int{100, 101}) {
		t.Errorf("v1: Threads = %v, %v", threads, err)
	}
	if _, err := Procs(Place{Dir: t.TempDir()}); !os.IsNotExist(err) {
		t.Errorf("no such cgroup: %v", err)
	}
}

func TestJobOf(t *testing.T) {
	for path, want := range map[string]string{
		"/system.slice/slurmstepd.scope/job_7/step_0/user/task_0":              "/system.slice/slurmstepd.scope/job_7",
		"/system.slice/node1_slurmstepd.scope/s97DM8MRE7WY00/step_batch/slurm": "/system.slice/node1_slurmstepd.scope/s97DM8MRE7WY00",
		"/x/system.slice/slurmstepd.scope/job_7":                               "/x/system.slice/slurmstepd.scope/job_7",
		"/system.slice/slurmstepd.scope/system":                                "",
		"/system.slice/slurmstepd.scope":                                       "",
		"/system.slice/slurmstepd.scope/":                                      "",
		"/slurm/uid_0/job_7/step_0":                                            "",
		"/user.slice":                                                          "",
	} {
		if got, is := JobOf(path); got != want || is != (want != "") {
			t.Errorf("%s: %q, %v, want %q", path, got, is, want)
		}
	}
}

func TestStepOf(t *testing.T) {
	for path, want := range map[string]string{
		"/system.slice/slurmstepd.scope/job_5/step_0/user/task_0":             "/system.slice/slurmstepd.scope/job_5/step_0",
		"/system.slice/node1_slurmstepd.scope/s00A/step_batch/user/x/y/job_9": "/system.slice/node1_slurmstepd.scope/s00A/step_batch",
		"/slurm_node1/uid_7/job_5/step_0/task_1":                              "/slurm_node1/uid_7/job_5/step_0",
		"/slurm/uid_7/job_5/step_2+1":                                         "/slurm/uid_7/job_5/step_2+1",
		"/system.slice/slurmstepd.scope/job_5":                                "",
		"/system.slice/slurmstepd.scope/system":                               "",
		"/slurm/uid_7/job_5":                                                  "",
		"/user.slice/job_5/step_0":                                            "",
		"/":                                                                   "",
		"":                                                                    "",
	} {
		if got, found := StepOf(path); got != want || found != (want != "") {
			t.Errorf("%s: %q, %v, want %q", path, got, found, want)
		}
	}
}
