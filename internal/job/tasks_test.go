package job

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gputune/conf"
)

// All that the processes of a job's tasks are given is in one file, whichever
// options it is from, and nothing of what is refused.
func TestTasksFile(t *testing.T) {
	const shared = "SLURM_JOB_CPUS_PER_NODE=2"
	const warned = "swap: this node cannot keep a job's memory from being swapped out"
	for name, c := range map[string]struct {
		environ    []string
		counts     bool // the kernel's cgroups count swap
		want, said string
	}{
		"all":                           {[]string{"GPU_MEMLOCK=2G", "THP=never", "NODE_PROFILE=noswap"}, true, "memlock 2147483648\nthp-disable\nswap 0\n", ""},
		"swap, where nothing counts it": {[]string{"NODE_PROFILE=noswap"}, false, "swap 0\n", warned},
		"a profile with swap":           {[]string{"NODE_PROFILE=nothing"}, false, "", ""},
		"thp alone":                     {[]string{"THP=never"}, true, "thp-disable\n", ""},
		"one that is refused":           {[]string{"GPU_MEMLOCK=2T", "THP=never"}, true, "thp-disable\n", "the site allows 1048576 MiB at most"},
		"nothing":                       {[]string{"GPU_MEMLOCK=inherit"}, true, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			h, output := host(t, shared)
			h.aloneNode(t)
			for _, option := range c.environ {
				h.Environ = append(h.Environ, "SPANK_GPUTUNE_"+option)
			}
			h.Site.Job.OnRefusal = conf.RefusalWarns
			h.Site.Memlock.Max = 1 << 20
			h.Site.Profiles["noswap"] = conf.Profile{Swap: conf.Want{Value: "off"}}
			h.Site.Profiles["nothing"] = conf.Profile{}
			if c.counts {
				for file, text := range map[string]string{
					"proc/self/mountinfo": "30 23 0:26 / /cgroup rw - cgroup2 cgroup2 rw\n", "cgroup/cgroup.controllers": "memory\n",
				} {
					file = filepath.Join(h.Root, file)
					if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
			const places = "Filename Type Size Used Priority\n/dev/sda2 partition 8388604 0 -2\n"
			if err := os.WriteFile(filepath.Join(string(h.Site.Paths.Machine), "proc/swaps"), []byte(places), 0o600); err != nil {
				t.Fatal(err)
			}
			h.Prolog(t.Context())
			files := h.files(t)
			notice := files["/run/gputune/jobs/42.notice"]
			if got := files["/run/gputune/jobs/42.tasks"]; got != c.want || !strings.Contains(notice, c.said) || (notice != "") != (c.said != "") {
				t.Errorf("file %q, want %q, notice %q\n%s", got, c.want, notice, output)
			}
			if err := h.Epilog(t.Context()); err != nil {
				t.Error(err)
			}
			if _, left := h.files(t)["/run/gputune/jobs/42.tasks"]; left {
				t.Error("the file is left after the Epilog")
			}
		})
	}
}

// Nobody is warned of swapping where there is no place for it.
func TestSwaps(t *testing.T) {
	machine := t.TempDir()
	if swaps(machine) {
		t.Error("a kernel without swapping")
	}
	if err := os.Mkdir(filepath.Join(machine, "proc"), 0o700); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{
		"Filename\tType\tSize\tUsed\tPriority\n":                                   false,
		"Filename\tType\tSize\tUsed\tPriority\n/dev/sda2 partition 8388604 0 -2\n": true,
	} {
		if err := os.WriteFile(filepath.Join(machine, "proc/swaps"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := swaps(machine); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
