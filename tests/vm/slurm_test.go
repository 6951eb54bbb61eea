//go:build vm

package vm

import (
	"fmt"
	"strings"
	"testing"

	"gputune/tests/vm/numavm"
)

// restartSlurmd is a script that returns when the new slurmd answers.
const restartSlurmd = `systemctl restart slurmd; for i in $(seq 60); do scontrol show slurmd >/dev/null 2>&1 && exit 0; sleep 0.5; done; exit 1`

// What Slurm does to a job's cgroups while a step runs leaves its tasks where
// they are: slurmd started anew, reconfigured, and more steps, for each of which
// Slurm writes the cpusets of the job and of the step.
func testSlurmChangesCpusets(t *testing.T, m *machine) {
	p := policy{mem: "bind"}
	first := m.hold(t, "first", "srun -Q -n4 --gpus-per-task=1 "+p.option(), 4)
	before := first.look(t)
	m.check(t, before, p)
	job := strings.TrimSpace(m.must(t, "squeue -h -o %i"))
	step := func(arguments string) string {
		return fmt.Sprintf(onOneCPU+"srun -Q --jobid=%s --overlap %s true", job, arguments)
	}
	for _, event := range []struct{ name, script string }{
		{"slurmd was restarted", restartSlurmd},
		{"a second step", step("-n4 --gpus-per-task=1")},
		{"a second step that is bound", step("-n4 --gpus-per-task=1 --gpu-numa-bind=cpus=exclusive")},
		{"a second step on one CPU", step("-n1 --gpus=1")},
		{"scontrol reconfigure", "scontrol reconfigure && sleep 1"},
	} {
		m.must(t, event.script)
		now := first.look(t)
		now.command = "after " + event.name + ": " + now.command
		m.check(t, now, p)
		for i, k := range now.tasks {
			if was := before.tasks[i]; !k.cpus.Equal(was.cpus) || !k.mems.Equal(was.mems) || k.policy != was.policy {
				t.Errorf("after %s: task %d runs on %s with memory %s, was on %s with %s", event.name, k.id, k.cpus, k.mems, was.cpus, was.mems)
			}
		}
	}
	first.release(t)
	m.waitIdle(t)
}

// Scripts that turn SlurmdParameters=contain_spank on, where there are no other
// parameters, and off.
const (
	containSpank    = `cp /etc/slurm/slurm.conf /tmp/slurm.conf && echo SlurmdParameters=contain_spank >>/etc/slurm/slurm.conf && ` + restartSlurmd
	notContainSpank = `cp /tmp/slurm.conf /etc/slurm/slurm.conf && ` + restartSlurmd
)

// SlurmdParameters=contain_spank runs the plugin's hooks in a process that is not
// slurmstepd, in which no Go runtime lives: the step runs, and says that it is
// not bound.
func testContainSpank(t *testing.T, m *machine) {
	if m.suite == numavm.Bookworm {
		t.Skip("Slurm 22.05 has no contain_spank")
	}
	const srun = "srun -Q -n4 --gpus-per-task=1 "
	plain := m.step(t, srun+"look-at-task 8")
	m.must(t, containSpank)
	contained := m.steps(t, "", srun+policy{mem: "bind"}.option()+" look-at-task 8", srun+"--gpu-numa-bind=strict look-at-task 8")
	m.must(t, notContainSpank)

	o := contained[0]
	if o.code != 0 || len(o.tasks) != 4 {
		t.Fatalf("status %d, %d tasks, said %q", o.code, len(o.tasks), o.said)
	}
	const why = "not bound: SlurmdParameters=contain_spank"
	// What is so for the whole step is said once.
	if said := strings.Join(o.said, "\n"); strings.Contains(said, "warning: "+why) {
		for i, k := range o.tasks {
			if was := plain.tasks[i]; !k.cpus.Equal(was.cpus) || k.policy != was.policy || k.leafCPUs != "" || k.leafMems != "" || k.says["locality"] != "" {
				t.Errorf("not bound, and task %d runs on %s with policy %s, without the option on %s", k.id, k.cpus, k.policy, was.cpus)
			}
		}
		if o := contained[1]; o.code != 1 || len(o.tasks) != 0 || !strings.Contains(strings.Join(o.said, "\n"), "error: "+why) {
			t.Errorf("strict: status %d, %d tasks, said %q", o.code, len(o.tasks), o.said)
		}
		m.forgetLog(t)
	} else {
		m.check(t, o, policy{mem: "bind"})
	}
	m.waitIdle(t)
	m.check(t, m.step(t, srun+policy{mem: "bind"}.option()+" look-at-task 8"), policy{mem: "bind"})
}
