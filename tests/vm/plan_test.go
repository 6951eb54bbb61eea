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
)

// seedVariable chooses other combinations than those that are the same each time.
const seedVariable = "GPUTUNE_VM_SEED"

// seeded returns what makes the combinations of this test.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := variable(t, seedVariable, 1)
	t.Logf("combinations of %s=%d", seedVariable, seed)
	h := fnv.New64a()
	h.Write([]byte(t.Name()))
	return rand.New(rand.NewPCG(uint64(seed), h.Sum64()))
}

// planned is a step that can be planned before it runs.
type planned struct {
	tasks, perTask int
	items          string // of the option
	command        string
}

// newPlanned returns a step of so many tasks with so many GPUs and CPUs each.
func newPlanned(tasks, perTask, cpusPerTask int, items string) planned {
	look := "look-at-task 8"
	if tasks == 1 {
		look = "look-at-task" // with numactl's view, which costs as much again
	}
	return planned{tasks, perTask, items, fmt.Sprintf("srun -Q -n%d -c%d --gpus-per-task=%d --gpu-numa-bind=%s %s", tasks, cpusPerTask, perTask, items, look)}
}

// planThenRun is the command for planScript.
func (p planned) planThenRun() string {
	return fmt.Sprintf("/tmp/plan-then '--tasks=%d --gpus-per-task=%d --bind=%s' %s", p.tasks, p.perTask, p.items, p.command)
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
		// Which of the shares a task gets is Slurm's to say.
		at := slices.IndexFunc(plan.Tasks, func(other planTask) bool { return slices.Equal(plan.addresses(other.GPUs), k.gpus) })
		if at < 0 {
			t.Errorf("%s: task %d has GPUs %v, planned is %+v", o.command, k.id, k.gpus, plan.Tasks)
			continue
		}
		m.checkPlanned(t, o, p, k, plan, plan.Tasks[at])
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
