package draw

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gputune/internal/idset"
	"gputune/internal/placement"
	"gputune/internal/topology"
	"gputune/tests/machines"
)

var update = flag.Bool("update", false, "write the golden files anew")

func machineOf(t *testing.T, description machines.Description) *topology.Machine {
	t.Helper()
	dir, remove, err := machines.Scratch()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := remove(); err != nil {
			t.Error(err)
		}
	})
	machine, err := description.Machine(dir)
	if err != nil {
		t.Fatal(err)
	}
	return machine
}

// planned is one picture of a plan.
type planned struct {
	name    string
	request placement.Request
}

func plans(m *topology.Machine) []planned {
	var gpus []int
	var own, same []placement.Task
	for i := range m.GPUs {
		gpus = append(gpus, i)
	}
	for i := range m.GPUs {
		own = append(own, placement.Task{LocalID: i, GPUs: []int{i}})
	}
	for i := range 64 {
		same = append(same, placement.Task{LocalID: i, GPUs: gpus})
	}
	exclusive, one := placement.Default(), placement.Default()
	exclusive.CPUs, exclusive.SMT = placement.CPUsExclusive, placement.SMTOne
	one.CPUs, one.Mem = placement.CPUsNone, placement.MemInterleave
	some := idset.Range(max(0, m.CPUs.Min()), m.CPUs.Max()/2)
	return []planned{
		{"one GPU for each task", placement.Request{Policy: placement.Default(), GPUs: gpus, Tasks: own}},
		{"exclusive, one thread", placement.Request{Policy: exclusive, GPUs: gpus, Tasks: own}},
		{"half of the CPUs granted", placement.Request{Policy: exclusive, CPUs: some, GPUs: gpus, Tasks: own}},
		{"CPUs left alone", placement.Request{Policy: one, GPUs: gpus, Tasks: own}},
		{"64 tasks that share all", placement.Request{Policy: placement.Default(), GPUs: gpus, Tasks: same}},
		{"a task without a GPU", placement.Request{Policy: placement.Default(), GPUs: gpus, Tasks: []placement.Task{{LocalID: 7}}}},
	}
}

// TestEveryMachine checks each picture of every described machine, and those in
// testdata against what was looked at and found right.
func TestEveryMachine(t *testing.T) {
	golden := map[string]bool{"demo-dual": true, "gpu-at-minus-one": true, "snc-two-nodes": true, "workstation": true}
	for _, description := range machines.All() {
		t.Run(description.Name, func(t *testing.T) {
			m := machineOf(t, description)
			picture := Machine(m)
			check(t, "machine", picture)
			checkMachine(t, m, picture)
			if golden[description.Name] {
				checkGolden(t, description.Name+".svg", picture)
			}
			for i, p := range plans(m) {
				result := placement.Plan(m, p.request)
				picture := Plan(m, p.request, result)
				check(t, p.name, picture)
				checkMachine(t, m, picture)
				checkTasks(t, p, result, picture)
				if i == 1 && golden[description.Name] {
					checkGolden(t, description.Name+"-plan.svg", picture)
				}
			}
		})
	}
}

// TestLittleKnown draws what sources that state little make of a machine.
func TestLittleKnown(t *testing.T) {
	gpu := topology.GPU{PCI: "", NUMANode: -1, Nodes: idset.Of(1), CPUs: idset.Range(4, 7)}
	nodes := []topology.Node{{ID: 0, CPUs: idset.Range(0, 3), MemoryMiB: topology.MemoryUnknown}, {ID: 1, MemoryMiB: topology.MemoryUnknown}}
	for name, m := range map[string]*topology.Machine{
		"nothing":          {},
		"CPUs":             {CPUs: idset.Range(0, 70)},
		"no packages":      {CPUs: idset.Range(0, 7), Nodes: nodes, GPUs: []topology.GPU{gpu}},
		"a node's CPUs":    {CPUs: idset.Range(0, 3), Packages: []topology.Package{{ID: -1, CPUs: idset.Range(0, 3)}}, Nodes: nodes, GPUs: []topology.GPU{gpu}},
		"a node over all":  {CPUs: idset.Range(0, 7), Packages: []topology.Package{{ID: 0, CPUs: idset.Range(0, 3)}, {ID: 1, CPUs: idset.Range(4, 7)}}, Nodes: []topology.Node{{CPUs: idset.Range(0, 7)}}, GPUs: []topology.GPU{{Nodes: idset.Of(0)}}},
		"a GPU over all":   {CPUs: idset.Range(0, 3), Nodes: nodes, GPUs: []topology.GPU{{Nodes: idset.Of(0, 1), Model: "<&\">", MIG: []string{"a", "b"}}}},
		"long names":       {CPUs: idset.Range(0, 3), Nodes: nodes, NICs: []topology.NIC{{Names: []string{strings.Repeat("x", 60)}, Nodes: idset.Of(0)}}},
		"CPUs in a stripe": {CPUs: every(2, 512), Nodes: []topology.Node{{CPUs: every(2, 512), MemoryMiB: 1}}, L3: []topology.L3Group{{CPUs: every(4, 512)}}},
	} {
		picture := Machine(m)
		check(t, name, picture)
		checkMachine(t, m, picture)
	}
}

func every(step, end int) idset.Set {
	var s idset.Set
	for id := 0; id < end; id += step {
		s.Add(id)
	}
	return s
}

// check tells whether a picture keeps to its rules: everything in sight, boxes
// inside each other or apart, no two lines of text over each other, text inside
// the boxes that it begins in, and a document that XML's reader takes.
func check(t *testing.T, name string, d Drawing) {
	t.Helper()
	var boxes, texts []Shape
	for _, s := range d.Shapes {
		if s.X < 0 || s.Y < 0 || s.X+s.W > d.Width || s.Y+s.H > d.Height {
			t.Errorf("%s: out of sight (%dx%d): %+v", name, d.Width, d.Height, s)
		}
		switch s.Kind {
		case Box:
			boxes = append(boxes, s)
		case Text:
			texts = append(texts, s)
			if s.Text == "" || s.Size < small {
				t.Errorf("%s: not legible: %+v", name, s)
			}
		case Area, Line:
		}
	}
	for i, a := range texts {
		for _, b := range texts[i+1:] {
			if meet(a, b) {
				t.Errorf("%s: %q and %q are over each other", name, a.Text, b.Text)
			}
		}
	}
	slices.SortFunc(boxes, func(a, b Shape) int { return cmp.Compare(a.Y, b.Y) })
	for i, a := range boxes {
		for _, b := range boxes[i+1:] {
			if b.Y >= a.Y+a.H {
				break
			}
			if meet(a, b) && !inside(a, b) && !inside(b, a) {
				t.Errorf("%s: boxes cross: %+v and %+v", name, a, b)
			}
		}
		for _, text := range texts {
			if meet(a, text) && !inside(text, a) {
				t.Errorf("%s: %q crosses the border of %+v", name, text.Text, a)
			}
		}
	}
	var svg bytes.Buffer
	if err := d.WriteSVG(&svg); err != nil {
		t.Fatal(err)
	}
	decoder := xml.NewDecoder(&svg)
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

func meet(a, b Shape) bool {
	return a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H
}

func inside(a, b Shape) bool {
	return a.X >= b.X && a.Y >= b.Y && a.X+a.W <= b.X+b.W && a.Y+a.H <= b.Y+b.H
}

// checkMachine tells whether everything of the machine is there once.
func checkMachine(t *testing.T, m *topology.Machine, d Drawing) {
	t.Helper()
	count := make(map[string]int)
	for _, s := range d.Shapes {
		if s.Kind == Text && s.Bold {
			count[s.Text]++
		}
	}
	for i := range m.GPUs {
		if name := fmt.Sprintf("GPU %d", m.GPUs[i].Index); count[name] == 0 {
			t.Errorf("%s: is not drawn", name)
		}
	}
	for _, node := range m.Nodes {
		name := fmt.Sprintf("node %d", node.ID)
		known := !node.CPUs.Empty() || node.MemoryMiB != 0
		if known && count[name] != 1 {
			t.Errorf("%s: drawn %d times", name, count[name])
		}
	}
	var cpus idset.Set
	cores := 0
	for _, s := range d.Shapes {
		list, isCore := strings.CutPrefix(s.Title, "cpus ")
		if !isCore || s.Kind != Box {
			continue
		}
		cores++
		list, _, _ = strings.Cut(list, ", ")
		of := idset.MustParse(list)
		if !of.And(cpus).Empty() {
			t.Errorf("cpus %s: drawn twice", of)
		}
		cpus = cpus.Or(of)
	}
	var all idset.Set
	for _, node := range m.Nodes {
		all = all.Or(node.CPUs)
	}
	for _, p := range m.Packages {
		all = all.Or(p.CPUs)
	}
	if len(m.Nodes) == 0 {
		all = m.CPUs
	}
	if !cpus.Equal(all) {
		t.Errorf("%d cores with cpus %s are drawn, want %s", cores, cpus, all)
	}
}

// checkTasks tells whether the colours are those of the plan.
func checkTasks(t *testing.T, p planned, result placement.Result, d Drawing) {
	t.Helper()
	painted := make(map[string]bool)
	for _, s := range d.Shapes {
		if s.Kind == Area {
			painted[s.Fill] = true
		}
	}
	for i, b := range result.Tasks {
		has := len(b.GPUs) > 0
		if len(result.Tasks) <= len(palette) && has != painted[taskColour(i)] {
			t.Errorf("%s: task %d has GPUs %v, cpus %s: painted %v", p.name, b.LocalID, b.GPUs, b.CPUs, painted[taskColour(i)])
		}
	}
}

func checkGolden(t *testing.T, name string, d Drawing) {
	t.Helper()
	var svg bytes.Buffer
	if err := d.WriteSVG(&svg); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, svg.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, svg.Bytes()) {
		t.Errorf("not as in %s; write it anew with -update and look at it", path)
	}
}

func TestTaskColours(t *testing.T) {
	seen := make(map[string]int)
	for i := range 64 {
		c := taskColour(i)
		if other, twice := seen[c]; twice {
			t.Errorf("tasks %d and %d are both %s", other, i, c)
		}
		seen[c] = i
	}
}

func TestWrap(t *testing.T) {
	for _, c := range []struct {
		text    string
		letters int
		most    int
		want    string
	}{
		{"cpus 0-3", 8, 2, "cpus 0-3"},
		{"cpus 0-3,8-11", 9, 2, "cpus 0-3,|8-11"},
		{"cpus 0-3,8-11,16", 9, 1, "cpus 0-3…"},
		{"0-3,8-11,16", 6, 1, "0-3,…"},
		{"xxxxxxxxxx", 4, 5, "xxxx|xxxx|xx"},
		{"", 4, 5, ""},
	} {
		if got := strings.Join(wrap(c.text, c.letters, c.most), "|"); got != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
}
