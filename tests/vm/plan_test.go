//go:build vm

package vm

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gputune/internal/idset"
)

// seedVariable chooses other combinations than those that are the same each time.
const seedVariable = "GPUTUNE_VM_SEED"

// So many steps in so many allocations are made at random, in each of which a step
// costs as much as in those of testPolicies.
const (
	planAllocations = 3
	planSteps       = 2
)

// seeded returns what makes the combinations of this test.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := variable(t, seedVariable, 1)
	t.Logf("combinations of %s=%d", seedVariable, seed)
	h := fnv.New64a()
	h.Write([]byte(t.Name()))
	return rand.New(rand.NewPCG(uint64(seed), h.Sum64()))
}

// grant is what a job is given.
type grant struct {
	cpus, gpus int
	salloc     string    // arguments
	mems       idset.Set // that the job is confined to; none: all
}

// planned is a step that is planned before it runs.
type planned struct {
	tasks   int
	perTask int       // GPUs of each task, 0: all tasks see all
	items   string    // of the option
	mems    idset.Set // that the job is confined to; none: all
	command string
}

// newPlanned returns a step of so many tasks with so many CPUs each, 0: as Slurm
// likes.
func newPlanned(tasks, perTask, cpusPerTask int, items string) planned {
	p := planned{tasks: tasks, perTask: perTask, items: items}
	plan := fmt.Sprintf("--tasks=%d --bind=%s", tasks, items)
	gpus, cpus, look := "--gpu-bind=none", " -O", "look-at-task 8"
	if perTask > 0 {
		gpus = fmt.Sprintf("--gpus-per-task=%d", perTask)
		plan += " " + gpus
	}
	if cpusPerTask > 0 {
		cpus = fmt.Sprintf(" -c%d", cpusPerTask)
	}
	if tasks == 1 {
		look = "look-at-task" // with numactl's view, which costs as much again
	}
	p.command = fmt.Sprintf("/tmp/plan-then '%s' srun -Q -n%d%s %s --gpu-numa-bind=%s %s", plan, tasks, cpus, gpus, items, look)
	return p
}

// items says a policy in some order; what is the default is not always said.
func items(rng *rand.Rand, p policy, pairing string) string {
	said := []string{"verbose"}
	for _, item := range []struct{ key, value, otherwise string }{
		{"cpus", p.cpus, "node"}, {"mem", p.mem, "prefer"}, {"smt", p.smt, "all"}, {"enforce", p.enforce, "cgroup"}, {"gpus", pairing, "auto"},
	} {
		if item.value != item.otherwise || rng.IntN(2) == 0 {
			said = append(said, item.key+"="+item.value)
		}
	}
	rng.Shuffle(len(said), func(i, k int) { said[i], said[k] = said[k], said[i] })
	return strings.Join(said, ",")
}

// oneOf picks one.
func oneOf[T any](rng *rand.Rand, values ...T) T { return values[rng.IntN(len(values))] }

// someGrant is the whole node or a part of it, asked for in one of several ways,
// and perhaps not all of its memory.
func (m *machine) someGrant(rng *rand.Rand) grant {
	g := grant{cpus: 8, gpus: 4, salloc: "--exclusive"}
	if rng.IntN(3) > 0 {
		g = grant{cpus: 2 * (1 + rng.IntN(4)), gpus: 1 + rng.IntN(4)}
	}
	g.salloc += fmt.Sprintf(oneOf(rng, " --gpus=%d", " --gres=gpu:%d", " --gpus-per-node=%d"), g.gpus)
	if rng.IntN(2) == 0 {
		for _, n := range m.layout.nodes {
			if rng.IntN(2) == 0 {
				g.mems.Add(n.id)
			}
		}
	}
	return g
}

// someStep uses all that is granted: which part of it Slurm would give to a step,
// nobody knows before.
func (g grant) someStep(rng *rand.Rand, tasks, cpusPerTask int) planned {
	shares := []int{0}
	if g.gpus%tasks == 0 {
		shares = append(shares, g.gpus/tasks)
	}
	perTask := oneOf(rng, shares...)
	pairing := oneOf(rng, "auto", "all", "local")
	if pairing == "local" && tasks > 1 && perTask != 1 {
		pairing = "auto" // local to what Slurm binds each task to, which nobody knows before
	}
	p := newPlanned(tasks, perTask, cpusPerTask, items(rng, policy{
		cpus:    oneOf(rng, "node", "exclusive", "core-complex", "socket", "none"),
		mem:     oneOf(rng, "prefer", "bind", "interleave", "none"),
		smt:     oneOf(rng, "all", "one"),
		enforce: oneOf(rng, "cgroup", "affinity"),
	}, pairing))
	if p.mems = g.mems; !p.mems.Empty() {
		p.command = strings.Replace(p.command, " --bind=", " --allowed-mems="+p.mems.String()+" --bind=", 1)
	}
	return p
}

// planScript plans a step with what its job was granted, as Slurm tells it, and
// then runs it.
const planScript = `#!/bin/bash
file=/tmp/granted.$SLURM_JOB_ID
[ -e $file ] || scontrol -d show job $SLURM_JOB_ID >$file
granted=$(<$file)
[[ $granted =~ ' CPU_IDs='([0-9,-]+)' ' ]] || { echo "no CPUs in $granted" >&2; exit 1; }
cpus=${BASH_REMATCH[1]}
[[ $granted =~ ' GRES=gpu:'[0-9]+'(IDX:'([0-9,-]+)')' ]] || { echo "no GPUs in $granted" >&2; exit 1; }
plan=$(gputune plan --root /run/testroot --format json --allowed-cpus $cpus --gpus ${BASH_REMATCH[1]} $1) || exit
echo "granted=$cpus"
echo "plan=${plan//$'\n'/}"
shift
exec "$@"
`

// confineMems confines all that Slurm starts to memory of these nodes; none: all.
const confineMems = `echo '%s' >/sys/fs/cgroup/system.slice/node1_slurmstepd.scope/cpuset.mems`

// What gputune plan says before a step runs is what the kernel says of the
// running step's tasks: for steps made at random, in whole nodes and parts, of up
// to as many tasks as there are CPUs.
func testPlan(t *testing.T, m *machine) {
	rng := seeded(t)
	m.put(t, "/tmp/plan-then", planScript)
	steps, tasks := 0, 0
	for range planAllocations {
		g := m.someGrant(rng)
		count, cpusPerTask := 1+rng.IntN(8), 0
		size := fmt.Sprintf(" -n%d", g.cpus)
		if whole := 1 + rng.IntN(4); g.cpus%(2*whole) == 0 && rng.IntN(2) == 0 { // whole cores for each task
			count, cpusPerTask = whole, g.cpus/whole
			size = fmt.Sprintf(" -n%d -c%d", count, cpusPerTask)
		}
		g.salloc += size
		var all []planned
		var commands []string
		for range planSteps {
			p := g.someStep(rng, count, cpusPerTask)
			all, commands = append(all, p), append(commands, p.command)
		}
		confine := func(mems idset.Set) {
			if !g.mems.Empty() {
				m.must(t, fmt.Sprintf(confineMems, mems))
			}
		}
		confine(g.mems)
		for i, o := range m.steps(t, g.salloc, commands...) {
			t.Logf("salloc%s, memory of nodes %q: %s", g.salloc, g.mems, o.command)
			if o.code != 0 {
				t.Errorf("%s: status %d, said %q", o.command, o.code, o.said)
				continue
			}
			m.checkPlan(t, o, all[i])
			steps++
			tasks += len(o.tasks)
		}
		confine(idset.Set{})
	}
	t.Logf("%d steps, %d tasks, all as planned before", steps, tasks)
}

// planJSON is a step's plan, as gputune plan shows it.
type planJSON struct {
	GPUs []struct {
		PCI string
	}
	Tasks []planTask
}

type planTask struct {
	LocalID   int `json:"local_id"`
	GPUs      []int
	CPUs      string
	Mems      string
	MemPolicy string `json:"mem_policy"`
	Locality  string
	Warnings  []string
}

// checkPlan compares what each task of the step has with what was planned for it
// before.
func (m *machine) checkPlan(t *testing.T, o outcome, p planned) {
	t.Helper()
	var plan planJSON
	if err := json.Unmarshal([]byte(o.plan), &plan); err != nil {
		t.Fatalf("%s: plan %q: %v", o.command, o.plan, err)
	}
	if len(plan.Tasks) != p.tasks || len(o.tasks) != p.tasks {
		t.Fatalf("%s: %d tasks are planned, %d ran", o.command, len(plan.Tasks), len(o.tasks))
	}
	for _, k := range o.tasks {
		want := plan.Tasks[k.id]
		if p.perTask > 0 { // which of the shares a task gets is Slurm's to say
			at := slices.IndexFunc(plan.Tasks, func(other planTask) bool { return slices.Equal(plan.addresses(other.GPUs), k.gpus) })
			if at < 0 {
				t.Errorf("%s: task %d has GPUs %v, planned is %+v", o.command, k.id, k.gpus, plan.Tasks)
				continue
			}
			want = plan.Tasks[at]
		}
		m.checkPlanned(t, o, p, k, plan, want)
	}
}

// addresses are the PCI addresses of the plan's GPUs.
func (plan planJSON) addresses(gpus []int) []string {
	var all []string
	for _, gpu := range gpus {
		all = append(all, plan.GPUs[gpu].PCI)
	}
	slices.Sort(all)
	return all
}

func (m *machine) checkPlanned(t *testing.T, o outcome, p planned, k task, plan planJSON, want planTask) {
	t.Helper()
	fail := func(what string, is, want any) {
		t.Helper()
		t.Errorf("%s: task %d with gpus %v: %s %v, planned %v", o.command, k.id, k.gpus, what, is, want)
	}
	if k.stepCPUs != o.granted {
		fail("is granted", k.stepCPUs, o.granted)
	}
	cpus, locality := want.CPUs, want.Locality
	confined := !strings.Contains(p.items, "enforce=affinity")
	leaf := ""
	if cpus == "" { // where Slurm put the task
		cpus = k.bound.String()
		if cpus != o.granted {
			locality = k.says["locality"] // planned for all that is granted
		}
	} else if confined {
		leaf = cpus
	}
	if k.cpus.String() != cpus {
		fail("runs on", k.cpus, cpus)
	}
	if k.leafCPUs != leaf {
		fail("its cgroup has CPUs", k.leafCPUs, leaf)
	}
	if list, asked := k.numactl["physcpubind"]; asked && mustParse(strings.Join(strings.Fields(list), ",")).String() != cpus {
		fail("numactl says CPUs", list, cpus)
	}

	policy := map[string]string{"none": "default", "prefer": "prefer:", "bind": "bind:", "interleave": "interleave:"}[want.MemPolicy]
	if want.MemPolicy == "prefer" && mustParse(want.Mems).Len() > 1 {
		policy = "prefer (many):"
	}
	if policy += want.Mems; k.policy != policy {
		fail("memory policy", k.policy, policy)
	}
	mems, leaf := k.stepMems, ""
	if want.MemPolicy == "bind" && confined {
		mems, leaf = want.Mems, want.Mems
	}
	if k.mems.String() != mems || k.leafMems != leaf {
		fail("memory of nodes", fmt.Sprintf("%s, its cgroup has %q", k.mems, k.leafMems), mems)
	}
	if !p.mems.Empty() && k.stepMems != p.mems.String() {
		fail("is granted memory of nodes", k.stepMems, p.mems)
	}

	says := map[string]string{"gpus": strings.Join(plan.addresses(want.GPUs), ","), "cpus": cpus, "mems": want.Mems, "mem_policy": want.MemPolicy, "locality": locality}
	for name, value := range says {
		if k.says[name] != value {
			fail("GPUTUNE_"+strings.ToUpper(name), k.says[name], value)
		}
	}
	warnings := o.warnings(k.id)
	slices.Sort(warnings)
	slices.Sort(want.Warnings)
	if !slices.Equal(warnings, want.Warnings) {
		fail("is warned", warnings, want.Warnings)
	}
}
