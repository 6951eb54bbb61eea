package node

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gputune/internal/job"
)

// begin makes a node of four GPUs.
func begin(t testing.TB, config string) *Node {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can change a GPU")
	}
	n, err := Make(t.Context(), t.TempDir(), "demo-dual", config)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *Node) state(t testing.TB) string {
	t.Helper()
	text, err := n.NVML.StateText()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func (n *Node) prolog(t testing.TB, j Job) string {
	t.Helper()
	result, err := n.Prolog(t.Context(), j)
	if err != nil || result.Code != 0 {
		t.Fatalf("gputune-prolog: status %d, %v\n%s", result.Code, err, result.Output)
	}
	return result.Output
}

func (n *Node) epilog(t testing.TB, j Job) string {
	t.Helper()
	result, err := n.Epilog(t.Context(), j)
	if err != nil || result.Code != 0 {
		t.Fatalf("gputune-epilog: status %d, %v\n%s", result.Code, err, result.Output)
	}
	return result.Output
}

// wantClean is that the machine is as at first and no file of a job is left.
func (n *Node) wantClean(t testing.TB, state string) {
	t.Helper()
	if now := n.state(t); now != state {
		t.Errorf("the GPUs are\n%s, want\n%s", now, state)
	}
	left, err := n.Left()
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// report returns what the Prolog reported, and the notice for the user.
func (n *Node) report(t testing.TB, id string) (job.Report, string) {
	t.Helper()
	var report job.Report
	text, err := os.ReadFile(filepath.Join(n.Run, "jobs", id+".json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &report); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	notice, err := os.ReadFile(filepath.Join(n.Run, "jobs", id+".notice"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return report, string(notice)
}

func all() map[string]string {
	return map[string]string{"gpu-clocks": "1200,memory=high", "gpu-power": "500", "gpu-compute-mode": "exclusive"}
}

// A job's GPUs are changed and no others, and what was there is put back.
func TestThereAndBack(t *testing.T) {
	n := begin(t, "")
	before := n.state(t)
	j := Job{ID: 42, GPUs: "1,2", Options: all()}
	output := n.prolog(t, j)
	state, err := n.NVML.State()
	if err != nil {
		t.Fatal(err)
	}
	for i, gpu := range n.Machine.GPUs {
		got := state[gpu.UUID]
		changed := got.GPUClocks == "1200,1200" && got.MemoryClocks == "3201,3201" && got.PowerLimit == 500000 && got.ComputeMode == 3
		untouched := got.GPUClocks == "none" && got.MemoryClocks == "none" && got.PowerLimit == 700000 && got.ComputeMode == 0
		if ours := i == 1 || i == 2; ours && !changed || !ours && !untouched {
			t.Errorf("gpu %d: %+v", i, got)
		}
	}
	report, notice := n.report(t, "42")
	if notice != "" || report.Fault != "" || len(report.Options) != 3 || report.Node != Name || report.Job != "42" {
		t.Errorf("report %+v, notice %q", report, notice)
	}
	for _, o := range report.Options {
		if o.State != job.Applied || len(o.GPUs) != 2 || o.GPUs[0].UUID != n.Machine.GPUs[1].UUID {
			t.Errorf("option %+v", o)
		}
	}
	if want := "gpu " + n.Machine.GPUs[1].PCI + ": clocks.sm 1200-1200, was unlocked"; !strings.Contains(output, want) {
		t.Errorf("want %q in %q", want, output)
	}
	// Twice is the same as once.
	n.prolog(t, j)
	if again, err := n.NVML.State(); err != nil || !maps.Equal(again, state) {
		t.Errorf("a second Prolog made %v of %v", again, state)
	}
	n.epilog(t, j)
	n.wantClean(t, before)
	n.epilog(t, j)
	n.wantClean(t, before)
}
