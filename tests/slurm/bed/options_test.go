package bed

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

func ampleMachine() machine {
	return machine{
		root:        true,
		cpus:        4,
		controllers: func(string) bool { return true },
		program:     func(string) error { return nil },
	}
}

func TestOptionsDefaults(t *testing.T) {
	cases := []struct {
		name                        string
		options                     Options
		taskPlugin, proctrack, gres string
		cpus                        int
	}{
		{"zero", Options{}, "task/none", "proctrack/linuxproc", "", 4},
		{"cores", Options{ConstrainCores: true}, "task/affinity,task/cgroup", "proctrack/cgroup", "", 4},
		{"devices", Options{ConstrainDevices: true, GPUs: 2}, "task/affinity,task/cgroup", "proctrack/cgroup", "gpu:2", 4},
		{"given", Options{ConstrainCores: true, TaskPlugin: "task/cgroup", ProctrackType: "proctrack/pgid", NodeGres: "gpu:a100:1", GPUs: 1, NCPU: 3}, "task/cgroup", "proctrack/pgid", "gpu:a100:1", 3},
		{"more CPUs", Options{NCPU: 64}, "task/none", "proctrack/linuxproc", "", 64},
		{"more CPUs, task/cgroup that only constrains devices", Options{NCPU: 64, TaskPlugin: "task/cgroup", ConstrainDevices: true}, "task/cgroup", "proctrack/cgroup", "", 64},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			o, err := c.options.complete(ampleMachine())
			if err != nil {
				t.Fatal(err)
			}
			if o.TaskPlugin != c.taskPlugin || o.ProctrackType != c.proctrack || o.NodeGres != c.gres || o.NCPU != c.cpus {
				t.Errorf("got %q, %q, gres %q, %d CPUs; want %q, %q, gres %q, %d CPUs", o.TaskPlugin, o.ProctrackType, o.NodeGres, o.NCPU, c.taskPlugin, c.proctrack, c.gres, c.cpus)
			}
			if o.Timeout != DefaultTimeout || o.MaxTime != "INFINITE" {
				t.Errorf("timeout %s, MaxTime %s", o.Timeout, o.MaxTime)
			}
		})
	}
}

func TestOptionsRefused(t *testing.T) {
	cases := []struct {
		options Options
		wanted  string
	}{
		{Options{Node: "node[1-2]"}, `"node[1-2]"`},
		{Options{Node: "3node"}, `"3node"`},
		{Options{Node: "-x"}, `"-x"`},
		{Options{Node: strings.Repeat("n", 64)}, "63 at most"},
		{Options{NCPU: -1}, "NCPU -1"},
		{Options{NCPU: 5, TaskPlugin: "task/affinity"}, "the machine has 4 CPUs"},
		{Options{NCPU: 5, ConstrainCores: true, TaskPlugin: "task/cgroup"}, "the machine has 4 CPUs"},
		{Options{GPUs: 65}, "GPUs 65"},
		{Options{GPUs: -1}, "GPUs -1"},
		{Options{Auth: "jwt"}, `"jwt"`},
		{Options{ConstrainCores: true, TaskPlugin: "task/affinity"}, `TaskPlugin "task/affinity" does not constrain`},
	}
	for _, c := range cases {
		t.Run(c.wanted, func(t *testing.T) {
			_, err := c.options.complete(ampleMachine())
			if err == nil || !strings.Contains(err.Error(), c.wanted) {
				t.Errorf("want an error with %q, got %v", c.wanted, err)
			}
			if errors.Is(err, ErrUnavailable) {
				t.Errorf("a wrong option would be taken for a lack of the machine: %v", err)
			}
		})
	}
}

func TestOptionsOnPoorMachines(t *testing.T) {
	without := func(names ...string) machine {
		m := ampleMachine()
		m.program = func(name string) error {
			for _, missing := range names {
				if name == missing {
					return exec.ErrNotFound
				}
			}
			return nil
		}
		m.controllers = func(name string) bool {
			for _, missing := range names {
				if name == missing {
					return false
				}
			}
			return true
		}
		return m
	}
	user := ampleMachine()
	user.root = false
	cases := []struct {
		name    string
		machine machine
		options Options
		wanted  string // "" if it is good enough
	}{
		{"user", user, Options{}, "root"},
		{"no slurmd", without(Slurmd), Options{}, "slurmd"},
		{"no srun", without("srun"), Options{}, "srun"},
		{"no munge, needed", without(Munged), Options{Auth: authMunge}, "munge"},
		{"no munge", without(Munged), Options{}, ""},
		{"no freezer", without("freezer"), Options{}, ""},
		{"no freezer, needed", without("freezer"), Options{ProctrackType: "proctrack/cgroup"}, "freezer"},
		{"no cpuset, needed", without("cpuset"), Options{ConstrainCores: true}, "cpuset"},
		{"no devices", without("devices"), Options{ConstrainCores: true}, ""},
		{"no devices, needed", without("devices"), Options{ConstrainDevices: true}, "devices"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			o, err := c.options.complete(c.machine)
			if c.wanted == "" {
				if err != nil {
					t.Fatal(err)
				}
				if c.name == "no munge" && o.Auth != authNone {
					t.Errorf("Auth %q, want %q", o.Auth, authNone)
				}
				return
			}
			if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), c.wanted) {
				t.Errorf("want ErrUnavailable with %q, got %v", c.wanted, err)
			}
		})
	}
}
