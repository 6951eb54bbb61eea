package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gputune/internal/mig"
)

// A job's GPUs are split while it runs, its steps learn of it, and afterwards
// they are what they were.
func TestMIG(t *testing.T) {
	n := begin(t, "")
	gpus := n.state(t)
	j := Job{ID: 71, GPUs: "1,2", Options: map[string]string{"gpu-mig": "1g.18gb:2+4g.71gb", "gpu-power": "500"}}
	n.prolog(t, j)
	state, err := n.NVML.State()
	if err != nil {
		t.Fatal(err)
	}
	for i, gpu := range n.Machine.GPUs {
		want := ""
		if i == 1 || i == 2 {
			want = "5@0:4/3@0:4;19@4:1/0@0:1;19@5:1/0@0:1"
		}
		if got := state[gpu.UUID]; got.MIG != want || (got.MIGMode == "1,1") != (want != "") {
			t.Errorf("gpu %d: %+v, want %s", i, got, want)
		}
	}
	text, err := os.ReadFile(filepath.Join(n.Run, "jobs/71.mig"))
	if err != nil {
		t.Fatal(err)
	}
	handout, err := mig.ParseHandout(string(text))
	if err != nil || len(handout) != 2 || handout[0].GPU != n.Machine.GPUs[1].UUID || len(handout[1].UUIDs) != 3 {
		t.Errorf("%q: %v, %v", text, handout, err)
	}
	report, notice := n.report(t, "71")
	if report.Options[0].Name != "gpu-mig" || len(report.Options[0].GPUs) != 2 {
		t.Errorf("%+v", report)
	}
	if !strings.HasPrefix(notice, "warn\n--gpu-mig=1g.18gb:2+4g.71gb: GPU-to-GPU peer access is off") {
		t.Errorf("notice %q", notice)
	}
	n.epilog(t, j)
	if dirt := n.dirt(gpus); dirt != "" {
		t.Error(dirt)
	}
	if _, err := os.Lstat(filepath.Join(n.Run, "jobs/71.mig")); err == nil {
		t.Error("71.mig is left")
	}
}

// What a GPU has no room for fails the job's steps, and says what would fit.
func TestMIGRefused(t *testing.T) {
	n := begin(t, "")
	gpus := n.state(t)
	for value, want := range map[string]string{
		"4g.71gb:2":       "fail\n--gpu-mig=4g.71gb:2: gpu %s: MIG 4g.71gb:2: has room for 1; nearest: 4g.71gb\n",
		"1g.5gb":          "fail\n--gpu-mig=1g.5gb: gpu %s: MIG 1g.5gb: the GPU has 1g.18gb:7, 2g.35gb:3, 3g.71gb:2, 4g.71gb:1, 7g.141gb:1, 1g.18gb+me:1, 1g.35gb:4\n",
		"3g.71gb+4g.71gb": "",
	} {
		j := Job{ID: 72, GPUs: "1", Options: map[string]string{"gpu-mig": value}}
		n.prolog(t, j)
		if want != "" {
			want = fmt.Sprintf(want, n.Machine.GPUs[1].PCI)
		}
		if _, notice := n.report(t, "72"); notice != want {
			t.Errorf("%s: %q, want %q", value, notice, want)
		}
		n.epilog(t, j)
		if dirt := n.dirt(gpus); dirt != "" {
			t.Error(dirt)
		}
	}
}

// TestMIGKilledAtSystemCalls kills Prolog and Epilog of a job that splits a GPU
// which was split otherwise, at one in so many of their system calls, and wants
// the Epilog or a restore to bring the former instances back.
func TestMIGKilledAtSystemCalls(t *testing.T) {
	needTracer(t)
	another := func() (*Node, string) {
		n := begin(t, "")
		d := Driver(n.Machine)
		d.GPUs[2].Lines = append(d.GPUs[2].Lines, "mig_mode 1", "mig_instances 9@4:4/1@0:2/0@2:1;9@0:4/2@0:3")
		if err := n.NVML.Describe(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		return n, n.state(t)
	}
	n, gpus := another()
	nodes := []*Node{n}
	for len(nodes) < 2 {
		more, _ := another()
		nodes = append(nodes, more)
	}
	j := Job{ID: 73, GPUs: "1,2", Options: map[string]string{"gpu-mig": "3g.71gb+1g.18gb"}}
	before, err := n.take()
	if err != nil {
		t.Fatal(err)
	}
	n.prolog(t, j)
	during, err := n.take()
	if err != nil {
		t.Fatal(err)
	}
	if n.state(t) == gpus {
		t.Fatal("nothing is split")
	}
	back := func(n *Node, _ trace) error { return n.wantsBackOf(t.Context(), j, gpus, "epilog") }
	command := func(program string) func(n *Node) *exec.Cmd {
		return func(n *Node) *exec.Cmd { return n.Program(t.Context(), program, j) }
	}
	child := func(process int) bool { return process > 0 }
	tried := 0
	for _, k := range []killing{
		{name: "Prolog and its child", from: before, command: command("gputune-prolog"), only: child, with: []int{0}, each: 50, after: back},
		{name: "Prolog's child alone", from: before, command: command("gputune-prolog"), only: child, each: 250, after: back},
		{name: "Epilog and its child", from: during, command: command("gputune-epilog"), only: child, with: []int{0}, each: 50, after: back},
	} {
		t.Run(k.name, func(t *testing.T) { tried += k.everywhere(t, nodes) })
	}
	t.Logf("%d kill points", tried)
}
