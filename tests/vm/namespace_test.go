//go:build vm

package vm

import (
	"strings"
	"testing"
)

// Another plugin puts the tasks into a mount namespace with other /sys, /run and
// /dev, as those for containers do. Which GPUs a task has and where it belongs is
// found from outside, so that nothing changes, whichever plugin comes first.
func testNamespace(t *testing.T, m *machine) {
	other := "required " + guestTools + "/namespace-" + m.suite.Slurm() + ".so"
	p := policy{mem: "bind"}
	defer m.put(t, "/etc/slurm/plugstack.conf", plugstack+"\n")
	for name, lines := range map[string]string{
		"gputune first": plugstack + "\n" + other + "\n",
		"gputune last":  other + "\n" + plugstack + "\n",
	} {
		m.put(t, "/etc/slurm/plugstack.conf", lines)
		h := m.hold(t, "namespace", "srun -Q -n4 --gpus-per-task=1 "+p.option(), 4)
		o := h.look(t)
		o.command = name + ": " + o.command
		m.check(t, o, p)
		for _, k := range o.tasks {
			if m.remote(k, k.cpus) || len(k.gpus) != 1 {
				t.Errorf("%s: task %d with gpus %v runs on %s", name, k.id, k.gpus, k.cpus)
			}
		}
		for line := range strings.Lines(m.must(t, "cat "+h.dir+"/sees.*")) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasSuffix(line, ":") {
				t.Fatalf("%s: the tasks see %q in /dev, /run or /sys, which the other plugin hides: it did nothing", name, line)
			}
		}
		h.release(t)
	}
	m.waitIdle(t)
}
