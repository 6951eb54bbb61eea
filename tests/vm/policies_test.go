//go:build vm

package vm

import (
	"fmt"
	"testing"
)

// shape is how many tasks with how many GPUs each are started in an allocation.
type shape struct {
	name       string
	allocation string
	srun       string
}

func shapes() []shape {
	return []shape{
		{"the whole node, 4 tasks", "--exclusive --gpus=4 -n4 -c2", "-n4 -c2 --gpus-per-task=1"},
		{"the whole node, 2 tasks", "--exclusive --gpus=4 -n2 -c4", "-n2 -c4 --gpus-per-task=2"},
		{"the whole node, 1 task", "--exclusive --gpus=4 -n1 -c8", "-n1 -c8 --gpus-per-task=4"},
		{"two cores, 2 tasks", "--gpus=2 -n2 -c2", "-n2 -c2 --gpus-per-task=1"},
		{"three cores, 1 task", "--gpus=2 -n1 -c6", "-n1 -c6 --gpus-per-task=2"},
		{"one core, 1 task", "--gpus=4 -n1 -c2", "-n1 -c2 --gpus-per-task=4"},
	}
}

// Every way to choose CPUs with every number of GPUs for a task, on a whole node
// and on a part of it. Memory policies and hardware threads go round, so that
// each is there several times.
func testPolicies(t *testing.T, m *machine) {
	mems := []string{"prefer", "bind", "interleave", "none"}
	seen := map[string]int{}
	steps, tasks, remoteBefore, remoteAfter := 0, 0, 0, 0
	for i, shape := range shapes() {
		var policies []policy
		var commands []string
		for k, cpus := range []string{"node", "exclusive", "core-complex", "socket", "none"} {
			p := policy{cpus: cpus, mem: mems[(i+k)%len(mems)], smt: "all"}
			if (i+k)%3 == 2 {
				p.smt = "one"
			}
			policies = append(policies, p)
			commands = append(commands, fmt.Sprintf("srun -Q %s %s look-at-task 8", shape.srun, p.option()))
		}
		for k, o := range m.steps(t, shape.allocation, commands...) {
			p := policies[k]
			if o.code != 0 {
				t.Errorf("%s, %s: status %d, said %q", shape.name, p.option(), o.code, o.said)
				continue
			}
			m.check(t, o, p)
			steps++
			for _, word := range []string{"cpus=" + p.cpus, "mem=" + p.mem, "smt=" + p.smt, "cpus=" + p.cpus + ",mem=" + p.mem} {
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
	t.Logf("%d steps, %d tasks: %d would have CPUs away from their GPUs, %d have (all that is granted, cpus=socket or cpus=none)", steps, tasks, remoteBefore, remoteAfter)
	for _, word := range []string{
		"cpus=node", "cpus=exclusive", "cpus=core-complex", "cpus=socket", "cpus=none",
		"mem=prefer", "mem=bind", "mem=interleave", "mem=none", "smt=all", "smt=one",
	} {
		if seen[word] < 2 {
			t.Errorf("%s was tried %d times", word, seen[word])
		}
	}
}
