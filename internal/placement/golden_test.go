package placement

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gputune/internal/idset"
	"gputune/internal/topology"
	"gputune/tests/machines"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestGolden plans on every described machine and compares with what was
// looked at and found right.
func TestGolden(t *testing.T) {
	for _, description := range machines.All() {
		t.Run(description.Name, func(t *testing.T) {
			machine := machineOf(t, description)
			var text strings.Builder
			fmt.Fprintf(&text, "%s: %s\n", description.Name, description.Met)
			for _, c := range cases(machine) {
				fmt.Fprintf(&text, "\n%s\n", c.name)
				if c.request.Policy == (Policy{}) {
					t.Fatalf("%s: no policy", c.name)
				}
				check(t, machine, c.request)
				write(&text, Plan(machine, c.request))
			}
			path := filepath.Join("testdata", description.Name+".golden")
			if *update {
				if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if text.String() != string(want) {
				t.Errorf("not as in %s; got\n%s", path, text.String())
			}
		})
	}
}

func machineOf(t testing.TB, description machines.Description) *topology.Machine {
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

type goldenCase struct {
	name    string
	request Request
}

func cases(m *topology.Machine) []goldenCase {
	all := make([]int, len(m.GPUs))
	var own, same []Task
	for i := range all {
		all[i] = i
	}
	for i := range all {
		own = append(own, Task{LocalID: i, GPUs: []int{i}})
		same = append(same, Task{LocalID: i, GPUs: all})
	}
	with := func(change func(*Policy)) Policy {
		p := Default()
		change(&p)
		return p
	}
	half := firstHalf(m.CPUs)
	last := idset.Of(m.CPUs.Max())
	return []goldenCase{
		{"one GPU per task", Request{Policy: Default(), GPUs: all, Tasks: own}},
		{"every task sees all GPUs, gpus=auto", Request{Policy: Default(), GPUs: all, Tasks: same}},
		{"two tasks see all GPUs, gpus=auto", Request{Policy: Default(), GPUs: all, Tasks: []Task{{0, all, idset.Set{}}, {1, all, idset.Set{}}}}},
		{"one task has all GPUs, mem=interleave", Request{Policy: with(func(p *Policy) { p.Mem = MemInterleave }), GPUs: all, Tasks: []Task{{0, all, idset.Set{}}}}},
		{"a task on the last CPU sees all GPUs, gpus=local", Request{
			Policy: with(func(p *Policy) { p.GPUs = GPUsLocal }),
			GPUs:   all, Tasks: []Task{{0, all, last}},
		}},
		{"cpus=exclusive", Request{Policy: with(func(p *Policy) { p.CPUs = CPUsExclusive }), GPUs: all, Tasks: own}},
		{"cpus=exclusive,smt=one,mem=bind", Request{
			Policy: with(func(p *Policy) { p.CPUs, p.SMT, p.Mem = CPUsExclusive, SMTOne, MemBind }),
			GPUs:   all, Tasks: own,
		}},
		{"cpus=core-complex", Request{Policy: with(func(p *Policy) { p.CPUs = CPUsCoreComplex }), GPUs: all, Tasks: own}},
		{"cpus=socket,mem=none", Request{Policy: with(func(p *Policy) { p.CPUs, p.Mem = CPUsSocket, MemNone }), GPUs: all, Tasks: own}},
		{"cpus=none", Request{Policy: with(func(p *Policy) { p.CPUs = CPUsNone }), GPUs: all, Tasks: own}},
		{"half of the CPUs granted: " + half.String(), Request{Policy: Default(), CPUs: half, GPUs: all, Tasks: own}},
		{"half of the CPUs granted, cpus=exclusive", Request{
			Policy: with(func(p *Policy) { p.CPUs = CPUsExclusive }),
			CPUs:   half, GPUs: all, Tasks: own,
		}},
		{"one CPU granted, cpus=exclusive: " + last.String(), Request{
			Policy: with(func(p *Policy) { p.CPUs = CPUsExclusive }),
			CPUs:   last, GPUs: all, Tasks: own,
		}},
		{"memory of the first node alone granted, mem=bind", Request{
			Policy: with(func(p *Policy) { p.Mem = MemBind }),
			Mems:   idset.Of(m.Nodes[0].ID), GPUs: all, Tasks: own,
		}},
		{"more tasks than GPUs: two share each", Request{Policy: Default(), GPUs: all, Tasks: append(own[:len(own):len(own)], own...)}},
		{"a task without a GPU", Request{Policy: Default(), GPUs: all, Tasks: []Task{{LocalID: 0}}}},
	}
}

// firstHalf is what a job gets that was granted half of the machine's CPUs in
// the order of their numbers.
func firstHalf(cpus idset.Set) idset.Set {
	var half idset.Set
	n := 0
	for cpu := range cpus.All() {
		if n++; n > (cpus.Len()+1)/2 {
			break
		}
		half.Add(cpu)
	}
	return half
}

func write(text *strings.Builder, result Result) {
	for _, b := range result.Tasks {
		gpus := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(b.GPUs)), ","), "[]")
		fmt.Fprintf(text, "  task %d: gpus %s cpus %s mems %s %s %s\n", b.LocalID, or(gpus), or(b.CPUs.String()), or(b.Mems.String()), b.MemPolicy, b.Locality)
		for _, w := range b.Warnings {
			fmt.Fprintf(text, "    %s: %s\n", w.Code, w.Text)
		}
	}
}

func or(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func BenchmarkPlan(b *testing.B) {
	for _, mode := range []CPUMode{CPUsNode, CPUsExclusive, CPUsCoreComplex} {
		b.Run(fmt.Sprintf("16 GPUs x 512 CPUs x 64 tasks, cpus=%s", mode), func(b *testing.B) {
			description, err := machines.Get("bench-512")
			if err != nil {
				b.Fatal(err)
			}
			machine := machineOf(b, description)
			if len(machine.GPUs) != 16 || machine.CPUs.Len() != 512 {
				b.Fatalf("%d GPUs, %d CPUs", len(machine.GPUs), machine.CPUs.Len())
			}
			request := Request{Policy: Default()}
			request.Policy.CPUs = mode
			for i := range machine.GPUs {
				request.GPUs = append(request.GPUs, i)
			}
			for id := range 64 {
				request.Tasks = append(request.Tasks, Task{LocalID: id, GPUs: []int{id % 16}, CPUs: machine.CPUs})
			}
			for b.Loop() {
				Plan(machine, request)
			}
		})
	}
}
