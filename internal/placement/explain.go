package placement

import (
	"fmt"
	"slices"
	"strings"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

// Explain says in words why each task of a plan got what it got: a few sentences
// for each of result.Tasks, in that order. machine and request are those that
// result was planned with.
func Explain(machine *topology.Machine, request Request, result Result) [][]string {
	p := newPlanner(machine, request)
	lines := make([][]string, len(result.Tasks))
	for i, binding := range result.Tasks {
		lines[i] = p.explain(request, request.Tasks[i], binding)
	}
	return lines
}

func (p *planner) explain(request Request, task Task, binding Binding) []string {
	lines := []string{p.explainPairing(request, task, binding)}
	if len(binding.GPUs) == 0 {
		return lines
	}
	for _, position := range binding.GPUs {
		lines = append(lines, p.explainGPU(&p.machine.GPUs[position]))
	}
	lines = append(lines, p.explainCPUs(request, binding)...)
	return append(lines, p.explainMemory(binding), p.explainLocality(task, binding))
}

func (p *planner) explainPairing(request Request, task Task, binding Binding) string {
	uses := "Uses " + gpuList(binding.GPUs)
	switch {
	case len(binding.GPUs) == 0:
		return "Sees no GPU: nothing to be near to, and left as it is."
	case len(binding.GPUs) < len(task.GPUs) && p.policy.GPUs == GPUsLocal:
		return fmt.Sprintf("%s: of the %d that it sees, those near the CPUs that it has (gpus=local).", uses, len(task.GPUs))
	case len(binding.GPUs) < len(task.GPUs):
		return fmt.Sprintf("%s: the %d tasks see the same %d GPUs, and each uses its part in turn (gpus=auto).", uses, len(request.Tasks), len(task.GPUs))
	case len(task.GPUs) == 1:
		return uses + ": it sees no other."
	case p.policy.GPUs == GPUsAuto && len(request.Tasks) > 1:
		return fmt.Sprintf("%s: all that it sees, since the tasks do not see the same ones or the %d do not divide among %d tasks (gpus=auto).",
			uses, len(task.GPUs), len(request.Tasks))
	}
	return uses + ": all that it sees."
}

func gpuList(gpus []int) string {
	words := make([]string, len(gpus))
	for i, gpu := range gpus {
		words[i] = fmt.Sprint(gpu)
	}
	if len(gpus) == 1 {
		return "GPU " + words[0]
	}
	return "GPUs " + strings.Join(words, ",")
}

func nodeList(nodes idset.Set) string {
	switch nodes.Len() {
	case 0:
		return "no known node"
	case 1:
		return "node " + nodes.String()
	}
	return "nodes " + nodes.String()
}

func (p *planner) explainGPU(gpu *topology.GPU) string {
	from := gpu.NodesFrom
	if from == "" {
		from = p.machine.Source
	}
	switch {
	case gpu.Nodes.Empty():
		return fmt.Sprintf("No source tells the NUMA node of GPU %s: every granted CPU counts as near to it.", name(gpu))
	case from == topology.FromSingleNode:
		return fmt.Sprintf("GPU %s is at %s, the only one that has CPUs.", name(gpu), nodeList(gpu.Nodes))
	}
	return fmt.Sprintf("GPU %s is at %s: known from %s.", name(gpu), nodeList(gpu.Nodes), from)
}

func (p *planner) explainCPUs(request Request, binding Binding) []string {
	if p.policy.CPUs == CPUsNone {
		return []string{"The CPUs are left alone (cpus=none, or a --cpu-bind of the user's)."}
	}
	var lines []string
	for _, position := range binding.GPUs {
		gpu := &p.machine.GPUs[position]
		h := p.home(gpu)
		if h.locality == Remote {
			lines = append(lines, fmt.Sprintf("None of the %d CPUs of %s is granted; of the granted ones, those of %s are the nearest.",
				h.near.Len(), nodeList(gpu.Nodes), nodeList(p.nodesOf(h.pool))))
		}
		lines = append(lines, p.explainMode(request, gpu, h))
	}
	slices.Sort(lines)
	lines = slices.Compact(lines)
	end := ""
	if p.policy.SMT == SMTOne {
		end = ", the first hardware thread of each core alone (smt=one)"
	}
	if binding.CPUs.Empty() {
		return append(lines, "No CPU is known that it could run on.")
	}
	return append(lines, fmt.Sprintf("So it runs on cpus %s%s.", binding.CPUs, end))
}

func (p *planner) explainMode(request Request, gpu *topology.GPU, h home) string {
	where := "the grant"
	if nodes := p.nodesOf(h.pool); !gpu.Nodes.Empty() && !nodes.Empty() {
		where = nodeList(nodes)
	}
	switch p.policy.CPUs {
	case CPUsExclusive:
		share := 0
		for _, other := range request.GPUs {
			if !p.home(&p.machine.GPUs[other]).pool.And(h.pool).Empty() {
				share++
			}
		}
		if share == 1 {
			return fmt.Sprintf("GPU %s shares the granted cores of %s with no other of the step (cpus=exclusive).", name(gpu), where)
		}
		return fmt.Sprintf("The %d granted cores of %s are divided among the %d GPUs of the step there (cpus=exclusive).", len(p.coresIn(h.pool)), where, share)
	case CPUsCoreComplex:
		groups := 0
		for _, group := range p.l3 {
			if !group.And(h.pool).Empty() {
				groups++
			}
		}
		if groups == 0 {
			return fmt.Sprintf("No L3 group of %s is known: all its granted CPUs are taken (cpus=core-complex).", where)
		}
		return fmt.Sprintf("GPU %s gets the least used of the %d L3 groups with granted CPUs of %s (cpus=core-complex).", name(gpu), groups, where)
	case CPUsSocket:
		return fmt.Sprintf("All granted CPUs of the package of %s are taken (cpus=socket).", where)
	}
	return fmt.Sprintf("All granted CPUs of %s are taken (cpus=node).", where)
}

// nodesOf returns the nodes that have any of the CPUs.
func (p *planner) nodesOf(cpus idset.Set) idset.Set {
	var nodes idset.Set
	for id, node := range p.nodes {
		if !node.CPUs.And(cpus).Empty() {
			nodes.Add(id)
		}
	}
	return nodes
}

func (p *planner) explainMemory(binding Binding) string {
	if p.policy.Mem == MemNone {
		return "The memory policy is left alone (mem=none, or a --mem-bind of the user's)."
	}
	if binding.Mems.Empty() {
		return "The memory policy is left alone: no node for the memory is known or granted."
	}
	var local idset.Set
	for _, position := range binding.GPUs {
		local = local.Or(p.machine.GPUs[position].Nodes)
	}
	why := "local to its GPUs"
	if !binding.Mems.SubsetOf(local) {
		why = fmt.Sprintf("the nearest to %s that is granted and has memory", nodeList(local))
	}
	verb := map[MemMode]string{
		MemPrefer: "comes from %s while there is any (mem=prefer)", MemBind: "comes from %s and no other (mem=bind)",
		MemInterleave: "comes from %s in turn (mem=interleave)",
	}[binding.MemPolicy]
	return fmt.Sprintf("New memory "+verb+", %s.", nodeList(binding.Mems), why)
}

func (p *planner) explainLocality(task Task, binding Binding) string {
	cpus := binding.CPUs
	if p.policy.CPUs == CPUsNone {
		cpus = task.CPUs
	}
	switch binding.Locality {
	case Local:
		return "local: each of its CPUs is near one of its GPUs, and each GPU has some."
	case Remote:
		return "remote: no CPU of it is near any of its GPUs."
	case Mixed:
		var near idset.Set
		for _, position := range binding.GPUs {
			near = near.Or(p.home(&p.machine.GPUs[position]).near)
		}
		return fmt.Sprintf("mixed: %d of its %d CPUs are near one of its GPUs.", cpus.And(near).Len(), cpus.Len())
	}
	return "unknown: nobody can say whether it runs near its GPUs."
}
