//go:build vm

package vm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gputune/internal/idset"
)

// No task comes to a node without CPUs, by whatever policy.
func testMemoryOnlyNodes(t *testing.T, m *machine) {
	var memoryOnly idset.Set
	for _, n := range m.layout.nodes {
		if n.cpus.Empty() {
			memoryOnly.Add(n.id)
		}
	}
	if memoryOnly.Len() != 2 {
		t.Fatalf("nodes without CPUs: %s, this test expects two", memoryOnly)
	}
	for _, p := range []policy{{mem: "bind"}, {mem: "interleave", cpus: "socket"}, {mem: "prefer", cpus: "core-complex"}, {mem: "none"}} {
		o := m.step(t, "srun -Q -n4 --gpus-per-task=1 "+p.option()+" look-at-task 32")
		m.check(t, o, p)
		for _, k := range o.tasks {
			pages := 0
			for id, n := range k.pages {
				pages += n
				if memoryOnly.Has(id) {
					t.Errorf("%s: task %d has %d pages on node %d", p.option(), k.id, n, id)
				}
			}
			if pages < 32<<20/4096 {
				t.Errorf("%s: task %d has %d pages", p.option(), k.id, pages)
			}
			if _, list, found := strings.Cut(k.policy, ":"); found && !mustParse(list).And(memoryOnly).Empty() {
				t.Errorf("%s: task %d has policy %s", p.option(), k.id, k.policy)
			}
			if p.mem == "bind" && k.says["mem_policy"] == "bind" && !k.mems.And(memoryOnly).Empty() {
				t.Errorf("%s: task %d may use memory of nodes %s", p.option(), k.id, k.mems)
			}
		}
	}
}

// The task of the GPU that nobody can place runs, anywhere, and is warned; strict
// refuses it and harms nobody else.
func testUnknownLocality(t *testing.T, m *machine) {
	const srun = "srun -Q -n4 --gpus-per-task=1 "
	o := m.step(t, srun+policy{}.option()+" look-at-task 8")
	m.check(t, o, policy{})
	unknown := 0
	for _, k := range o.tasks {
		if !m.layout.local[k.gpus[0]].Empty() {
			continue
		}
		unknown++
		said := o.line(t, k.id)
		if said.locality != "unknown" || !strings.Contains(said.gpus, "(node unknown)") || said.policy != "none" || !k.cpus.Equal(k.granted()) {
			t.Errorf("task %d was told %q and runs on %s", k.id, said.allText, k.cpus)
		}
		if warnings := o.warnings(k.id); len(warnings) != 1 || !strings.Contains(warnings[0], "gpu "+k.gpus[0]+": local NUMA node not known") {
			t.Errorf("task %d was warned %q", k.id, warnings)
		}
	}
	if unknown != 1 {
		t.Fatalf("%d tasks have a GPU of unknown locality, want 1", unknown)
	}
	strict := m.steps(t, "", srun+"--gpu-numa-bind=strict look-at-task 8")[0]
	if strict.code != 1 || len(strict.tasks) != 3 || !strings.Contains(strings.Join(strict.said, "\n"), "error: gpu 0000:") {
		t.Errorf("strict: status %d, %d tasks ran, said %q", strict.code, len(strict.tasks), strict.said)
	}
	m.waitIdle(t)
}

func testMoreTasksThanGPUs(t *testing.T, m *machine) {
	for _, c := range []struct {
		arguments string
		gpus      int // of each task
	}{
		{"--gpus=4 --ntasks-per-gpu=2", 1},
		{"-n8 --gpus=4 --gpu-bind=none", 4},
	} {
		p := policy{mem: "bind"}
		o := m.step(t, "srun -Q "+c.arguments+" "+p.option()+" look-at-task 4")
		if len(o.tasks) != 8 {
			t.Fatalf("%s: %d tasks, want 8", o.command, len(o.tasks))
		}
		m.check(t, o, p)
		users := map[string]int{}
		for _, k := range o.tasks {
			if len(k.gpus) != c.gpus {
				t.Errorf("%s: task %d may open %v", o.command, k.id, k.gpus)
			}
			for _, pci := range k.gpus {
				users[pci]++
			}
		}
		if len(users) < 3 { // how tasks are dealt out to GPUs is Slurm's business
			t.Errorf("%s: only GPUs %v are in use", o.command, users)
		}
	}
}

// An allocation of one core, for tasks with GPUs of both nodes and the one that
// nobody can place.
func testNoLocalCPU(t *testing.T, m *machine) {
	const srun = "srun -Q -n4 -O --gpus-per-task=1 "
	p := policy{mem: "bind"}
	outcomes := m.steps(t, "-n2 -c1 --gpus=4", srun+p.option()+" look-at-task 8", srun+"--gpu-numa-bind=strict look-at-task 8")
	o, strict := outcomes[0], outcomes[1]
	if o.code != 0 || len(o.tasks) != 4 {
		t.Fatalf("%s: status %d, %d tasks, said %q", o.command, o.code, len(o.tasks), o.said)
	}
	m.check(t, o, p)
	local := 0
	said := strings.Join(strict.said, "\n")
	for _, k := range o.tasks {
		g := m.layout.gpu(k.gpus[0], k.granted())
		ran := slices.ContainsFunc(strict.tasks, func(other task) bool { return other.id == k.id })
		locality := locality(k.cpus, g)
		if locality == "local" {
			local++
			if !ran {
				t.Errorf("strict: task %d, which is local, did not run: %s", k.id, said)
			}
			continue
		}
		want := fmt.Sprintf("gpu %s: none of the %d CPUs of node %s is granted, the nearest granted are %s", g.pci, g.near.Len(), m.gpuNodes(g.pci), k.cpus)
		if locality == "unknown" {
			want = fmt.Sprintf("gpu %s: local NUMA node not known, all granted CPUs are used", g.pci)
		}
		if warnings := o.warnings(k.id); len(warnings) != 1 || warnings[0] != want {
			t.Errorf("task %d was warned %q, want %q", k.id, warnings, want)
		}
		if ran || !strings.Contains(said, fmt.Sprintf("task %d: error: %s", k.id, want)) {
			t.Errorf("strict: task %d, which is %s, ran: %v, said %s", k.id, locality, ran, said)
		}
	}
	if local == 0 || local == 4 || strict.code != 1 {
		t.Errorf("%d of 4 tasks are local, strict ended with status %d: this test expects some, and 1", local, strict.code)
	}
	m.waitIdle(t)
}

// What is written is root's to write; whose the tasks are makes no difference.
func testUser(t *testing.T, m *machine) {
	m.must(t, "id alice >/dev/null 2>&1 || useradd --create-home alice")
	p := policy{mem: "bind", cpus: "node"}
	o := m.step(t, "setpriv --reuid=alice --regid=alice --init-groups env HOME=/home/alice USER=alice srun -Q -n4 --gpus-per-task=1 "+p.option()+" look-at-task 32")
	m.check(t, o, p)
	for _, k := range o.tasks {
		if k.uid == "0" {
			t.Errorf("task %d runs as root", k.id)
		}
		if !m.layout.local[k.gpus[0]].Empty() && m.remote(k, k.cpus) {
			t.Errorf("task %d with %v runs on %s", k.id, k.gpus, k.cpus)
		}
	}
	m.waitIdle(t)
}
