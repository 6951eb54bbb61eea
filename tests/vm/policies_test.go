//go:build vm

package vm

import (
	"testing"

	"gputune/tests/vm/numavm"
)

// shape is how many tasks with how many GPUs each are started in an allocation.
type shape struct {
	name           string
	allocation     string
	tasks, perTask int
	cpusPerTask    int
}

func shapes() []shape {
	return []shape{
		{"the whole node, 4 tasks", "--exclusive --gpus=4 -n4 -c2", 4, 1, 2},
		{"the whole node, 2 tasks", "--exclusive --gpus=4 -n2 -c4", 2, 2, 4},
		{"the whole node, 1 task", "--exclusive --gpus=4 -n1 -c8", 1, 4, 8},
		{"two cores, 2 tasks", "--gpus=2 -n2 -c2", 2, 1, 2},
		{"three cores, 1 task", "--gres=gpu:2 -n1 -c6", 1, 2, 6},
		{"one core, 1 task", "--gpus-per-node=4 -n1 -c2", 1, 4, 2},
	}
}

// Every way to choose CPUs with every number of GPUs for a task, on a whole node
// and on a part of it, each planned before on one of the releases. Memory policies
// and hardware threads go round, so that each is there several times; they begin
// anywhere, and what else can be said is made at random.
func testPolicies(t *testing.T, m *machine) {
	m.put(t, "/tmp/plan-then", planScript)
	rng := seeded(t)
	plan := m.suite == numavm.Trixie || full() // which nothing of the release has a part in
	mems := []string{"prefer", "bind", "interleave", "none"}
	firstMem, firstThread := rng.IntN(len(mems)), rng.IntN(3)
	seen := map[string]int{}
	steps, tasks, remoteBefore, remoteAfter := 0, 0, 0, 0
	for i, shape := range shapes() {
		var policies []policy
		var all []planned
		var commands []string
		for k, cpus := range []string{"node", "exclusive", "core-complex", "socket", "none"} {
			p := policy{cpus: cpus, mem: mems[(firstMem+i+k)%len(mems)], smt: "all", enforce: oneOf(rng, "cgroup", "cgroup", "affinity")}
			if (firstThread+i+k)%3 == 2 {
				p.smt = "one"
			}
			step := newPlanned(shape.tasks, shape.perTask, shape.cpusPerTask, items(rng, p, oneOf(rng, "auto", "all")))
			policies, all = append(policies, p), append(all, step)
			if plan {
				commands = append(commands, step.planThenRun())
			} else {
				commands = append(commands, step.command)
			}
		}
		for k, o := range m.steps(t, shape.allocation, commands...) {
			p := policies[k]
			if o.code != 0 {
				t.Errorf("%s, %s: status %d, said %q", shape.name, all[k].items, o.code, o.said)
				continue
			}
			m.check(t, o, p)
			if plan {
				m.checkPlan(t, o, all[k])
			}
			steps++
			for _, word := range []string{"cpus=" + p.cpus, "mem=" + p.mem, "smt=" + p.smt, "enforce=" + p.enforce} {
				seen[word]++
			}
			for _, task := range o.tasks {
				tasks++
				if m.remote(task, task.bound) {
					remoteBefore++
				}
				if m.remote(task, task.cpus) {
					remoteAfter++
				}
			}
		}
	}
	t.Logf("%d steps, planned before: %t, %d tasks: %d would have CPUs away from their GPUs, %d have (all that is granted, cpus=socket or cpus=none)",
		steps, plan, tasks, remoteBefore, remoteAfter)
	for _, word := range []string{
		"cpus=node", "cpus=exclusive", "cpus=core-complex", "cpus=socket", "cpus=none",
		"mem=prefer", "mem=bind", "mem=interleave", "mem=none", "smt=all", "smt=one",
	} {
		if seen[word] < 2 {
			t.Errorf("%s was tried %d times", word, seen[word])
		}
	}
}
