//go:build vm

package vm

import (
	"fmt"
	"strings"
	"testing"

	"gputune/tests/vm/numavm"
)

// Four tasks with a GPU each, as most jobs start: first as Slurm starts them,
// then with each way of binding memory.
func testLaunch(t *testing.T, m *machine) {
	const srun = "srun -Q -n4 --gpus-per-task=1 "
	before := m.step(t, srun+"look-at-task")
	if len(before.tasks) != 4 {
		t.Fatalf("%d tasks", len(before.tasks))
	}
	after := map[string]outcome{}
	for _, mem := range []string{"", "bind", "interleave"} {
		p := policy{mem: mem}
		o := m.step(t, srun+p.option()+" look-at-task")
		m.check(t, o, p)
		m.checkFour(t, o)
		after[p.withDefaults().mem] = o
	}

	misplaced := map[string]int{}
	misplaced["without"] = m.table(t, "without the option", before)
	for _, mem := range []string{"prefer", "bind", "interleave"} {
		misplaced[mem] = m.table(t, "mem="+mem, after[mem])
		if misplaced[mem] != 0 {
			t.Errorf("mem=%s: %d tasks are remote", mem, misplaced[mem])
		}
	}
	t.Logf("%s, Slurm %s: tasks of 4 that are remote: %d without the option, %d with it", m.suite, m.suite.Slurm(), misplaced["without"],
		misplaced["prefer"]+misplaced["bind"]+misplaced["interleave"])
	// Slurm 22.05 hands out GPUs in the order of tasks and CPUs in turn from each socket.
	if m.suite == numavm.Bookworm && misplaced["without"] != 2 {
		t.Errorf("without the option %d tasks are remote, this test expects 2 of this Slurm: is it of a kind that shows anything?", misplaced["without"])
	}
}

// checkFour checks what holds for four tasks with a GPU each, and that the test
// has looked at what it means to.
func (m *machine) checkFour(t *testing.T, o outcome) {
	t.Helper()
	owner := map[string]int{}
	for _, k := range o.tasks {
		if len(k.gpus) != 1 {
			t.Fatalf("task %d may open %v, want one GPU", k.id, k.gpus)
		}
		if other, taken := owner[k.gpus[0]]; taken {
			t.Errorf("tasks %d and %d have GPU %s", other, k.id, k.gpus[0])
		}
		owner[k.gpus[0]] = k.id
		const pages = 16 << 20 / 4096
		if remote, all := m.remotePages(k); remote != 0 || all < pages {
			t.Errorf("task %d: %d of %d pages are remote, want 0 of %d", k.id, remote, all, pages)
		}
	}
	if len(owner) != 4 {
		t.Errorf("%d GPUs are in use, want 4", len(owner))
	}
}

// table logs the tasks and tells how many are remote.
func (m *machine) table(t *testing.T, title string, o outcome) int {
	t.Helper()
	remote := 0
	var b strings.Builder
	fmt.Fprintf(&b, "%s, Slurm %s, %s\n  task  gpu           of node  cpus  mems  policy        pages by node   locality\n", m.suite, m.suite.Slurm(), title)
	for _, k := range o.tasks {
		word := "local"
		if m.remote(k, k.cpus) {
			word = "REMOTE"
			remote++
		}
		if pages, _ := m.remotePages(k); pages > 0 {
			word += fmt.Sprintf(", %d pages REMOTE", pages)
		}
		fmt.Fprintf(&b, "  %-4d  %-12s  %-7s  %-4s  %-4s  %-12s  %-14s  %s\n", k.id, strings.Join(k.gpus, ","), m.gpuNodes(k.gpus[0]),
			k.cpus, k.mems, k.policy, strings.TrimPrefix(fmt.Sprint(k.pages), "map"), word)
	}
	t.Log(b.String())
	return remote
}
