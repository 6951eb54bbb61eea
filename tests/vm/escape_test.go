//go:build vm

package vm

import (
	"strings"
	"testing"

	"gputune/internal/idset"
)

// A task tries everything to leave; the same attempts succeed where nothing but
// affinity and a memory policy is set, so that they are worth something.
func testEscape(t *testing.T, m *machine) {
	const srun = "srun -Q --exclusive -n1 -c8 --gpus=1 "
	look := m.step(t, srun+policy{mem: "bind"}.option()+" look-at-task 8")
	m.check(t, look, policy{mem: "bind"})
	task := look.tasks[0]
	home := m.layout.gpu(task.gpus[0], task.granted())
	if !task.granted().Equal(m.layout.cpus) || home.pool.Equal(m.layout.cpus) {
		t.Fatalf("granted %s, near %s: there is nowhere to go", task.stepCPUs, home.pool)
	}
	for _, c := range []struct {
		enforce string
		cpus    idset.Set // where it may get to
		mems    idset.Set
	}{
		{"cgroup", home.pool, home.mems},
		{"affinity", m.layout.cpus, m.layout.nodesWithCPUs()},
	} {
		p := policy{mem: "bind", enforce: c.enforce}
		output := m.must(t, onOneCPU+srun+p.option()+" "+guestTools+"/escape")
		attempts := map[string]map[string]string{}
		for line := range strings.Lines(output) {
			if f := fields(line); f["who"] != "" {
				attempts[f["who"]] = f
			}
		}
		for _, who := range []string{"main", "thread", "child", "grandchild"} {
			f, tried := attempts[who]
			if !tried {
				t.Fatalf("%s: %s did not try:\n%s", c.enforce, who, output)
			}
			if f["all"] != c.cpus.String() || f["reached"] != c.cpus.String() || f["refused"] != m.layout.cpus.AndNot(c.cpus).String() {
				t.Errorf("enforce=%s: %s got to CPUs %s at once and to %s one by one, refused were %s: want %s",
					c.enforce, who, f["all"], f["reached"], f["refused"], c.cpus)
			}
			for _, n := range m.layout.nodes {
				where := f["mem"+idset.Of(n.id).String()]
				on, _, _ := strings.Cut(where, ":")
				if inside := c.mems.Has(n.id); inside && (on != idset.Of(n.id).String() || strings.Contains(where, ",")) || !inside && where != "EINVAL" {
					t.Errorf("enforce=%s: %s asked for memory of node %d and got %s: want nodes %s alone", c.enforce, who, n.id, where, c.mems)
				}
			}
		}
	}
}

// fields reads a line of NAME=VALUE, separated by tabs.
func fields(line string) map[string]string {
	f := map[string]string{}
	for field := range strings.SplitSeq(strings.TrimSuffix(line, "\n"), "\t") {
		if name, value, found := strings.Cut(field, "="); found {
			f[name] = value
		}
	}
	return f
}
