package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gputune/internal/job"
	"gputune/tests/fakenvml"
)

func one(name, value string) map[string]string { return map[string]string{name: value} }

// What cannot be given is refused with the reason and the nearest value, and
// changes nothing.
func TestRefusals(t *testing.T) {
	n := begin(t, "")
	before := n.state(t)
	gpu := "gpu " + n.Machine.GPUs[0].PCI
	for i, c := range []struct {
		name    string
		config  string
		job     Job
		reason  string
		nearest string
	}{
		{"clocks above", "", Job{GPUs: "0", Options: one("gpu-clocks", "9999")}, gpu + ": clocks 9999 MHz: supported 345–1980 MHz", "1980"},
		{"clocks below", "", Job{GPUs: "0", Options: one("gpu-clocks", "1")}, gpu + ": clocks 1 MHz: supported 345–1980 MHz", "345"},
		{"a range", "", Job{GPUs: "0", Options: one("gpu-clocks", "1201-9999")}, "clocks 1201-9999 MHz: supported", "1200-1980"},
		{"memory", "", Job{GPUs: "0", Options: one("gpu-clocks", "memory=2000")}, "memory clocks 2000 MHz: supported 2201, 3201 MHz", "2201"},
		{"site clocks", "[gpu_clocks]\nmax_mhz = 1500\n", Job{GPUs: "0", Options: one("gpu-clocks", "1800")}, "clocks 1800 MHz: the site allows 345–1500 MHz", "1500"},
		{"site allows none", "[gpu_clocks]\nmin_mhz = 3000\n", Job{GPUs: "0", Options: one("gpu-clocks", "1800")}, "the site allows none that the GPU can have", ""},
		{"power", "", Job{GPUs: "0", Options: one("gpu-power", "1")}, gpu + ": power 1 W: supported 200–700 W", "200"},
		{"site power", "[gpu_power]\nmin_watts = 300\nmax_watts = 600\n", Job{GPUs: "0", Options: one("gpu-power", "650")}, "power 650 W: the site allows 300–600 W", "600"},
		{"site against the default", "[gpu_power]\nmax_watts = 600\n", Job{GPUs: "0", Options: one("gpu-power", "default")}, "power default (700 W): the site allows 200–600 W", "600"},
		{"site mode", "[gpu_compute_mode]\nmodes = [\"shared\"]\n", Job{GPUs: "0", Options: one("gpu-compute-mode", "exclusive")}, "compute mode exclusive: the site allows shared", ""},
		{"denied", "[gpu_power]\ndeny = [\"user:root\"]\n", Job{GPUs: "0", Options: one("gpu-power", "500")}, "the site denies it to user:root", ""},
		{"not allowed", "[gpu_power]\nallow = [\"partition:bench\", \"account:x\"]\n", Job{GPUs: "0", Options: one("gpu-power", "500")}, "the site allows it to partition:bench, account:x", ""},
		{"not the group", "[gpu_power]\nallow = [\"group:no-such-group\"]\n", Job{GPUs: "0", Options: one("gpu-power", "500")}, "the site allows it to group:no-such-group", ""},
		{"no GPU", "", Job{Options: one("gpu-power", "500")}, "the job has no GPU of its own on this node", ""},
		{"mps", "", Job{GPUs: "0", Options: one("gpu-power", "500"), Env: []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"}}, "gres/mps gives it a part of the GPU", ""},
		{"mig", "", Job{GPUs: "0", Options: one("gpu-power", "500"), Env: []string{"CUDA_VISIBLE_DEVICES=MIG-5d1c0000-0000-4000-8000-000000000000"}}, "the job has MIG devices", ""},
		{"grammar", "", Job{GPUs: "0", Options: one("gpu-power", "lots")}, `"lots": want WATTS, max or default`, ""},
		{"unknown option", "", Job{GPUs: "0", Options: one("gpu-fans", "9")}, "not an option of the gputune that is installed on this node", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := n.Configure(c.config); err != nil {
				t.Fatal(err)
			}
			c.job.ID = 100 + i
			n.prolog(t, c.job)
			report, notice := n.report(t, fmt.Sprint(c.job.ID))
			if len(report.Options) != 1 || report.Fault != "" {
				t.Fatalf("report %+v", report)
			}
			o := report.Options[0]
			if o.State != job.Refused || !strings.Contains(o.Reason, c.reason) || o.Nearest != c.nearest {
				t.Errorf("%s: %s, nearest %q; want %s, nearest %q", o.State, o.Reason, o.Nearest, c.reason, c.nearest)
			}
			line := "fail\n--" + o.Name + "=" + o.Value + ": " + strings.TrimPrefix(o.Reason, "--"+o.Name+": ")
			if c.nearest != "" {
				line += "; nearest: " + c.nearest
			}
			if notice != line+"\n" {
				t.Errorf("notice %q, want %q", notice, line)
			}
			n.epilog(t, c.job)
			n.wantClean(t, before)
		})
	}
}

// Where a refusal fails the job nothing is applied; where it warns the rest is.
func TestOneOfSeveralRefused(t *testing.T) {
	n := begin(t, "")
	before := n.state(t)
	j := Job{ID: 7, GPUs: "0", Options: map[string]string{"gpu-clocks": "1200", "gpu-power": "9", "gpu-compute-mode": "exclusive"}}
	n.prolog(t, j)
	if now := n.state(t); now != before {
		t.Errorf("something was applied: %s", now)
	}
	report, notice := n.report(t, "7")
	for _, o := range report.Options {
		if want := map[string]job.State{"gpu-power": job.Refused}[o.Name]; o.State != want && (want != "" || o.State != job.Dropped) {
			t.Errorf("%+v", o)
		}
	}
	if !strings.HasPrefix(notice, "fail\n--gpu-power=9: ") || strings.Count(notice, "\n") != 2 {
		t.Errorf("notice %q", notice)
	}
	if err := n.Configure("[job]\non_refusal = \"warn\"\n"); err != nil {
		t.Fatal(err)
	}
	n.prolog(t, j)
	_, notice = n.report(t, "7")
	if !strings.HasPrefix(notice, "warn\n--gpu-power=9: ") || !strings.HasSuffix(notice, "nearest: 200; the job runs without it\n") {
		t.Errorf("notice %q", notice)
	}
	state, err := n.NVML.State()
	if err != nil {
		t.Fatal(err)
	}
	if got := state[n.Machine.GPUs[0].UUID]; got.GPUClocks != "1200,1200" || got.PowerLimit != 700000 || got.ComputeMode != 3 {
		t.Errorf("%+v", got)
	}
	n.epilog(t, j)
	n.wantClean(t, before)
}

// Words stand for clocks of the GPU within the site's bounds.
func TestWords(t *testing.T) {
	n := begin(t, "[gpu_clocks]\nmax_mhz = 1500\n[gpu_power]\nmax_watts = 650\n")
	for i, c := range []struct{ clocks, power, wantClocks, wantPower string }{
		{"low", "max", "345,345", "650000"},
		{"high", "300", "1500,1500", "300000"},
		{"highm1", "300", "1485,1485", "300000"},
		{"medium", "300", "930,930", "300000"},
		{"900-1203", "300", "900,1200", "300000"},
	} {
		j := Job{ID: i + 1, GPUs: "3", Options: map[string]string{"gpu-clocks": c.clocks, "gpu-power": c.power}}
		n.prolog(t, j)
		state, err := n.NVML.State()
		if err != nil {
			t.Fatal(err)
		}
		if got := state[n.Machine.GPUs[3].UUID]; got.GPUClocks != c.wantClocks || fmt.Sprint(got.PowerLimit) != c.wantPower {
			t.Errorf("%s, %s: %+v", c.clocks, c.power, got)
		}
		n.epilog(t, j)
	}
}

// What is the site's own fault or gputune's does not fail the job.
func TestFaultWarns(t *testing.T) {
	for _, c := range []struct {
		name, config, want string
		job                Job
	}{
		{"baseline", "[baseline]\nclocks = \"9999\"\n", "[baseline] of gputune.toml: gpu", Job{GPUs: "0"}},
		{"index", "", "gres index 9: not known to be any of this node's 4 GPUs", Job{GPUs: "9"}},
		{"user", "", `SLURM_JOB_UID="root": want a number`, Job{GPUs: "0", Env: []string{"SLURM_JOB_UID=root"}}},
		{"gpus", "", "SLURM_JOB_GPUS: GPU indices", Job{GPUs: "0", Env: []string{"SLURM_JOB_GPUS=zero"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := begin(t, c.config)
			before := n.state(t)
			c.job.ID, c.job.Options = 5, one("gpu-clocks", "1200")
			n.prolog(t, c.job)
			report, notice := n.report(t, "5")
			if !strings.Contains(report.Fault, c.want) || report.Options[0].State != job.Dropped {
				t.Errorf("%+v, want %q", report, c.want)
			}
			if !strings.HasPrefix(notice, "warn\nthe job's options are not carried out: ") || !strings.Contains(notice, c.want) {
				t.Errorf("notice %q", notice)
			}
			n.epilog(t, c.job)
			n.wantClean(t, before)
		})
	}
}

// A GPU that is named by its UUID, as slurmd does since 25.11.
func TestUUID(t *testing.T) {
	n := begin(t, "")
	before := n.state(t)
	// The index is wrong on purpose: the UUID is believed.
	j := Job{ID: 9, GPUs: "0", Options: one("gpu-power", "500"), Env: []string{"CUDA_VISIBLE_DEVICES=" + n.Machine.GPUs[2].UUID}}
	n.prolog(t, j)
	state, err := n.NVML.State()
	if err != nil {
		t.Fatal(err)
	}
	for i, gpu := range n.Machine.GPUs {
		if limit := state[gpu.UUID].PowerLimit; (limit == 500000) != (i == 2) {
			t.Errorf("gpu %d: %d mW", i, limit)
		}
	}
	n.epilog(t, j)
	n.wantClean(t, before)
}

// A job that was requeued asks for something else; what its first run left by a
// failed Epilog goes first.
func TestRequeued(t *testing.T) {
	n := begin(t, "")
	before := n.state(t)
	first := Job{ID: 11, GPUs: "0,1", Options: one("gpu-clocks", "1200")}
	n.prolog(t, first)
	n.prolog(t, Job{ID: 11, GPUs: "2", Options: one("gpu-power", "500")})
	state, err := n.NVML.State()
	if err != nil {
		t.Fatal(err)
	}
	for i, gpu := range n.Machine.GPUs {
		if got := state[gpu.UUID]; got.GPUClocks != "none" || (got.PowerLimit == 500000) != (i == 2) {
			t.Errorf("gpu %d: %+v", i, got)
		}
	}
	// And then for nothing at all.
	n.prolog(t, Job{ID: 11, GPUs: "0"})
	n.wantClean(t, before)
}

// What a job left that has ended does not keep the next job from the GPU.
func TestLeftByAnEndedJob(t *testing.T) {
	n := begin(t, "")
	before := n.state(t)
	n.prolog(t, Job{ID: 1, GPUs: "0,1", Options: one("gpu-clocks", "1200")})
	next := Job{ID: 2, GPUs: "1", Options: one("gpu-clocks", "900")}
	if output := n.prolog(t, next); !strings.Contains(output, "job 1: it has ended and left GPUs changed: putting it back") {
		t.Errorf("output %q", output)
	}
	state, err := n.NVML.State()
	if err != nil {
		t.Fatal(err)
	}
	if got := state[n.Machine.GPUs[1].UUID].GPUClocks; got != "900,900" {
		t.Errorf("clocks %s", got)
	}
	n.epilog(t, next)
	n.epilog(t, Job{ID: 1})
	n.wantClean(t, before)
}

// A site's baseline is put back in place of what was found.
func TestBaseline(t *testing.T) {
	n := begin(t, "[baseline]\nclocks = \"345-1500\"\npersistence = \"on\"\npower = \"600\"\n")
	j := Job{ID: 3, GPUs: "0", Options: map[string]string{"gpu-clocks": "1200", "gpu-power": "500"}}
	n.prolog(t, j)
	n.epilog(t, j)
	state, err := n.NVML.State()
	if err != nil {
		t.Fatal(err)
	}
	want := fakenvml.GPUState{PowerLimit: 600000, GPUClocks: "345,1500", MemoryClocks: "none", ApplicationClocks: "3201,1980", Persistence: 1}
	if got := state[n.Machine.GPUs[0].UUID]; got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A job that asks for nothing loads no library and writes nothing.
func TestNothingAsked(t *testing.T) {
	n := begin(t, "")
	before := n.state(t)
	if err := os.Remove(n.NVML.Path()); err != nil {
		t.Fatal(err)
	}
	j := Job{ID: 4, GPUs: "0,1,2,3"}
	if output := n.prolog(t, j) + n.epilog(t, j); output != "" {
		t.Errorf("output %q", output)
	}
	n.wantClean(t, before)
	for _, folder := range []string{n.Run, n.State} {
		if _, err := os.Stat(folder); !os.IsNotExist(err) {
			t.Errorf("%s: %v, want it not to be made", folder, err)
		}
	}
}

// A driver that is not there is a reason to refuse, and the Epilog says what it
// could not put back.
func TestNoLibrary(t *testing.T) {
	n := begin(t, "")
	before := n.state(t)
	held := Job{ID: 6, GPUs: "0", Options: one("gpu-power", "500")}
	n.prolog(t, held)
	away := n.NVML.Path() + ".away"
	if err := os.Rename(n.NVML.Path(), away); err != nil {
		t.Fatal(err)
	}
	j := Job{ID: 8, GPUs: "1", Options: one("gpu-power", "500")}
	n.prolog(t, j)
	if report, _ := n.report(t, "8"); !strings.Contains(report.Options[0].Reason, "libnvidia-ml.so.1 is not supported on this node") {
		t.Errorf("%+v", report)
	}
	n.epilog(t, j)
	result, err := n.Epilog(t.Context(), held)
	if err != nil || result.Code == 0 || !strings.Contains(result.Output, "job 6: gpu/"+n.Machine.GPUs[0].UUID+"/power.limit: put back 700: ") {
		t.Errorf("status %d, %v: %q", result.Code, err, result.Output)
	}
	if err := os.Rename(away, n.NVML.Path()); err != nil {
		t.Fatal(err)
	}
	n.epilog(t, held)
	n.wantClean(t, before)
}

// Folders and links that somebody has planted are not used, and nothing behind
// them is changed.
func TestPlanted(t *testing.T) {
	for _, c := range []struct {
		name  string
		plant func(n *Node, treasure string) error
	}{
		{"run is a link", func(n *Node, treasure string) error { return os.Symlink(treasure, n.Run) }},
		{"run is another's", func(n *Node, _ string) error {
			if err := os.Mkdir(n.Run, 0o755); err != nil {
				return err
			}
			return os.Chown(n.Run, 65534, 65534)
		}},
		{"run is open to all", func(n *Node, _ string) error {
			if err := os.Mkdir(n.Run, 0o755); err != nil {
				return err
			}
			return os.Chmod(n.Run, 0o777)
		}},
		{"jobs is a link", func(n *Node, treasure string) error {
			if err := os.Mkdir(n.Run, 0o755); err != nil {
				return err
			}
			return os.Symlink(treasure, filepath.Join(n.Run, "jobs"))
		}},
		{"state is a link", func(n *Node, treasure string) error { return os.Symlink(treasure, n.State) }},
		{"state is another's", func(n *Node, _ string) error {
			if err := os.Mkdir(n.State, 0o700); err != nil {
				return err
			}
			return os.Chown(n.State, 65534, 65534)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := begin(t, "")
			before := n.state(t)
			treasure := filepath.Join(t.TempDir(), "treasure")
			if err := os.MkdirAll(filepath.Join(treasure, "jobs", "5"), 0o755); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"jobs/5.json", "jobs/5.notice", "5.json", "5.notice", "jobs/5/record.json"} {
				if err := os.WriteFile(filepath.Join(treasure, name), []byte("precious"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.plant(n, treasure); err != nil {
				t.Fatal(err)
			}
			j := Job{ID: 5, GPUs: "0", Options: one("gpu-power", "500")}
			output := n.prolog(t, j)
			if !strings.Contains(output, "not a file of gputune's") && !strings.Contains(output, "not a directory") {
				t.Errorf("output %q", output)
			}
			result, err := n.Epilog(t.Context(), j)
			if err != nil {
				t.Fatal(err)
			}
			if now := n.state(t); now != before {
				t.Errorf("changed: status %d, %s\n%s", result.Code, result.Output, now)
			}
			count := 0
			err = filepath.WalkDir(treasure, func(path string, entry os.DirEntry, err error) error {
				if err != nil || entry.IsDir() {
					return err
				}
				count++
				text, err := os.ReadFile(path)
				if string(text) != "precious" {
					t.Errorf("%s has %q", path, text)
				}
				return err
			})
			if err != nil || count != 5 {
				t.Errorf("%d files of the treasure, %v", count, err)
			}
		})
	}
}
