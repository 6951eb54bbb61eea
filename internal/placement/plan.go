package placement

import (
	"cmp"
	"fmt"
	"slices"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

// Request is one step on one node.
type Request struct {
	Policy Policy
	CPUs   idset.Set // CPUs granted to the step; empty: not known, the machine's
	Mems   idset.Set // memory nodes granted to the step; empty: not known, all
	GPUs   []int     // GPUs of the step, as positions in Machine.GPUs
	Tasks  []Task
}

// Task is one task of the step as the launcher made it.
type Task struct {
	LocalID int
	GPUs    []int     // GPUs that it sees, as positions in Machine.GPUs
	CPUs    idset.Set // CPUs that it may run on now; empty: not known
}

// Result is the plan for one step on one node.
type Result struct {
	Shares []Share   // one per GPU of the step, in the order of Request.GPUs
	Tasks  []Binding // one per task, in the order of Request.Tasks
}

// Share is what one GPU brings along: a task's binding is the union of the
// shares of its GPUs, so that it can be put together where the task's GPUs
// become known. A GPU that leaves the memory policy alone does so for the task.
type Share struct {
	GPU      int       // position in Machine.GPUs
	CPUs     idset.Set // empty: the CPUs are left alone
	Mems     idset.Set // empty: the memory policy is left alone
	Near     idset.Set // all CPUs of the GPU's local nodes, granted or not
	Locality Locality  // of CPUs; unknown where they are left alone
	Warnings []Warning
}

// Binding is the plan for one task.
type Binding struct {
	LocalID   int       `json:"local_id"`
	GPUs      []int     `json:"gpus"`
	CPUs      idset.Set `json:"cpus"` // empty: left alone
	Mems      idset.Set `json:"mems"` // empty: left alone
	MemPolicy MemMode   `json:"mem_policy"`
	Locality  Locality  `json:"locality"`
	Warnings  []Warning `json:"warnings"`
}

// Plan decides. GPUs outside Machine.GPUs are a programming error and panic.
//
// No share and no binding ever has a CPU or memory node outside the grant, and
// none has an empty CPU list unless the policy leaves the CPUs alone or the
// task has no GPU.
func Plan(machine *topology.Machine, request Request) Result {
	p := newPlanner(machine, request)
	result := Result{
		Shares: p.shares(request.GPUs),
		Tasks:  make([]Binding, 0, len(request.Tasks)),
	}
	byGPU := make(map[int]Share, len(result.Shares))
	for _, share := range result.Shares {
		byGPU[share.GPU] = share
	}
	for i, gpus := range p.pair(request) {
		result.Tasks = append(result.Tasks, p.bind(request.Tasks[i], gpus, byGPU))
	}
	return result
}

// planner holds what the policy's parts need of the machine, worked out once.
type planner struct {
	machine *topology.Machine
	policy  Policy
	granted idset.Set
	mems    idset.Set
	nodes   map[int]*topology.Node
	cores   []idset.Set // granted hardware threads, core by core, in the order of L3 groups
	l3      []idset.Set // granted CPUs of each L3 group
	l3Of    []int       // position in l3 of each of cores, -1 unknown
}

func newPlanner(machine *topology.Machine, request Request) *planner {
	p := &planner{machine: machine, policy: request.Policy, nodes: make(map[int]*topology.Node, len(machine.Nodes))}
	for i := range machine.Nodes {
		p.nodes[machine.Nodes[i].ID] = &machine.Nodes[i]
	}
	p.granted = request.CPUs.And(machine.CPUs)
	switch {
	case request.CPUs.Empty():
		p.granted = machine.CPUs
	case p.granted.Empty():
		// The machine's description is older than a CPU that came online:
		// the grant is the truth.
		p.granted = request.CPUs
	}
	p.mems = request.Mems
	p.readCaches()
	return p
}

// readCaches lists the granted cores ordered by L3 group and then by number,
// so that neighbours in the list share as much as possible.
func (p *planner) readCaches() {
	l3Of := make(map[int]int)
	for _, group := range p.machine.L3 {
		if cpus := group.CPUs.And(p.granted); !cpus.Empty() {
			for cpu := range cpus.All() {
				l3Of[cpu] = len(p.l3)
			}
			p.l3 = append(p.l3, cpus)
		}
	}
	type core struct {
		cpus idset.Set
		l3   int
	}
	var cores []core
	add := func(cpus idset.Set) {
		position, known := l3Of[cpus.Min()]
		if !known {
			position = -1
		}
		cores = append(cores, core{cpus, position})
	}
	rest := p.granted
	for _, c := range p.machine.Cores {
		if cpus := c.CPUs.And(p.granted); !cpus.Empty() {
			add(cpus)
			rest = rest.AndNot(cpus)
		}
	}
	for cpu := range rest.All() { // no source tells their cores
		add(idset.Of(cpu))
	}
	slices.SortFunc(cores, func(a, b core) int {
		return cmp.Or(cmp.Compare(a.l3, b.l3), cmp.Compare(a.cpus.Min(), b.cpus.Min()))
	})
	for _, c := range cores {
		p.cores = append(p.cores, c.cpus)
		p.l3Of = append(p.l3Of, c.l3)
	}
}

// home is where a GPU's tasks run: near the GPU, or as near as was granted.
type home struct {
	near     idset.Set // all CPUs of the local nodes
	pool     idset.Set // granted CPUs to choose from, never empty
	locality Locality
	warnings []Warning
}

func (p *planner) home(gpu *topology.GPU) home {
	h := home{near: p.nodeCPUs(gpu.Nodes)}
	if h.near.Empty() && !gpu.CPUsDoubted && (!gpu.Nodes.Empty() || len(p.machine.Nodes) == 0) {
		h.near = gpu.CPUs // a source that lists no CPUs for nodes, or has no nodes
	}
	if h.near.Empty() {
		h.pool, h.locality = p.granted, Unknown
		h.warnings = append(h.warnings, Warning{
			LocalityAbsent,
			fmt.Sprintf("gpu %s: local NUMA node not known, all granted CPUs are used", name(gpu)),
		})
		return h
	}
	h.pool, h.locality = h.near.And(p.granted), Local
	if h.pool.Empty() {
		h.pool, h.locality = p.nearestCPUs(gpu.Nodes), Remote
		h.warnings = append(h.warnings, Warning{
			RemoteCPUs,
			fmt.Sprintf("gpu %s: none of the %d CPUs of node %s is granted, the nearest granted are %s", name(gpu), h.near.Len(), gpu.Nodes, h.pool),
		})
	}
	return h
}

func (p *planner) nodeCPUs(nodes idset.Set) idset.Set {
	var cpus idset.Set
	for id := range nodes.All() {
		if node := p.nodes[id]; node != nil {
			cpus = cpus.Or(node.CPUs)
		}
	}
	return cpus
}

// nearestCPUs returns the granted CPUs of the nodes that are nearest to from,
// all of them where several are equally near.
func (p *planner) nearestCPUs(from idset.Set) idset.Set {
	cpus := p.nodeCPUs(p.nearestNodes(from, func(n *topology.Node) bool {
		return !n.CPUs.And(p.granted).Empty()
	})).And(p.granted)
	if cpus.Empty() {
		return p.granted
	}
	return cpus
}

// nearestNodes returns those nodes that pass the test and have the smallest
// distance to any node of from. An unknown distance is farther than any known.
func (p *planner) nearestNodes(from idset.Set, pass func(*topology.Node) bool) idset.Set {
	var nearest idset.Set
	best := 0
	for i := range p.machine.Nodes {
		node := &p.machine.Nodes[i]
		if !pass(node) {
			continue
		}
		distance := p.distance(from, node)
		if nearest.Empty() || distance < best {
			nearest, best = idset.Of(node.ID), distance
		} else if distance == best {
			nearest.Add(node.ID)
		}
	}
	return nearest
}

// farthest is above every ACPI SLIT distance, which are bytes.
const farthest = 256

func (p *planner) distance(from idset.Set, to *topology.Node) int {
	best := farthest
	for id := range from.All() {
		if id == to.ID {
			return 0
		}
		if node := p.nodes[id]; node != nil {
			if d, known := node.Distances[to.ID]; known {
				best = min(best, d)
			}
		}
	}
	return best
}

// memory returns the nodes for the GPU's host memory: its local nodes that
// have CPUs and memory, or the nearest such node; of those the granted ones,
// or the nearest granted node.
func (p *planner) memory(gpu *topology.GPU) (idset.Set, []Warning) {
	if p.policy.Mem == MemNone || gpu.Nodes.Empty() {
		return idset.Set{}, nil
	}
	hasMemory := func(n *topology.Node) bool { return n.MemoryMiB != 0 }
	isHost := func(n *topology.Node) bool { return hasMemory(n) && !n.CPUs.Empty() }
	granted := func(n *topology.Node) bool { return p.mems.Empty() || p.mems.Has(n.ID) }

	var wanted idset.Set
	for id := range gpu.Nodes.All() {
		if node := p.nodes[id]; node != nil && isHost(node) {
			wanted.Add(id)
		}
	}
	if wanted.Empty() {
		wanted = p.first(p.nearestNodes(gpu.Nodes, isHost))
	}
	got := wanted
	if !p.mems.Empty() {
		got = wanted.And(p.mems)
	}
	if !got.Empty() {
		return got, nil
	}
	got = p.first(p.nearestNodes(gpu.Nodes, func(n *topology.Node) bool { return isHost(n) && granted(n) }))
	if got.Empty() {
		got = p.first(p.nearestNodes(gpu.Nodes, func(n *topology.Node) bool { return hasMemory(n) && granted(n) }))
	}
	if got.Empty() {
		return got, []Warning{{NoMemory, fmt.Sprintf("gpu %s: no granted memory node (granted: %s)", name(gpu), p.mems)}}
	}
	return got, []Warning{{
		RemoteMemory,
		fmt.Sprintf("gpu %s: memory of node %s is not granted, using node %s", name(gpu), wanted, got),
	}}
}

func (p *planner) first(nodes idset.Set) idset.Set {
	if nodes.Empty() {
		return nodes
	}
	return idset.Of(nodes.Min())
}

func (p *planner) shares(gpus []int) []Share {
	homes := make([]home, len(gpus))
	for i, position := range gpus {
		homes[i] = p.home(&p.machine.GPUs[position])
	}
	cpus, warnings := p.choose(homes)
	shares := make([]Share, len(gpus))
	for i, position := range gpus {
		gpu := &p.machine.GPUs[position]
		mems, memWarnings := p.memory(gpu)
		shares[i] = Share{
			GPU:      position,
			CPUs:     p.threads(cpus[i]),
			Mems:     mems,
			Near:     homes[i].near,
			Locality: Unknown,
		}
		if p.policy.CPUs != CPUsNone {
			shares[i].Locality = locality(shares[i].CPUs, homes[i].near)
			shares[i].Warnings = append(shares[i].Warnings, homes[i].warnings...)
			if warnings[i].Text != "" {
				warnings[i].Text = fmt.Sprintf("gpu %s: %s", name(gpu), warnings[i].Text)
				shares[i].Warnings = append(shares[i].Warnings, warnings[i])
			}
		} else if homes[i].locality == Unknown {
			shares[i].Warnings = append(shares[i].Warnings, homes[i].warnings...)
		}
		shares[i].Warnings = append(shares[i].Warnings, memWarnings...)
	}
	return shares
}

// choose returns the CPUs of each GPU under the policy, before smt=, and for
// each GPU a warning or none (an empty text).
func (p *planner) choose(homes []home) ([]idset.Set, []Warning) {
	cpus := make([]idset.Set, len(homes))
	warnings := make([]Warning, len(homes))
	switch p.policy.CPUs {
	case CPUsNone:
	case CPUsSocket:
		for i, h := range homes {
			cpus[i] = p.packageCPUs(h.pool)
		}
	case CPUsCoreComplex:
		p.chooseL3(homes, cpus, warnings)
	case CPUsExclusive:
		p.chooseExclusive(homes, cpus, warnings)
	case CPUsNode:
		for i, h := range homes {
			cpus[i] = h.pool
		}
	}
	return cpus, warnings
}

// packageCPUs returns the granted CPUs of the packages that pool is on.
func (p *planner) packageCPUs(pool idset.Set) idset.Set {
	cpus := pool
	for _, pkg := range p.machine.Packages {
		if !pkg.CPUs.And(pool).Empty() {
			cpus = cpus.Or(pkg.CPUs.And(p.granted))
		}
	}
	return cpus
}

// chooseL3 gives each GPU the least used L3 group of its pool; of several the
// one with the most granted CPUs, then the lowest.
func (p *planner) chooseL3(homes []home, cpus []idset.Set, warnings []Warning) {
	used := make([]int, len(p.l3))
	for i, h := range homes {
		best := -1
		var chosen idset.Set
		for group, members := range p.l3 {
			in := members.And(h.pool)
			if in.Empty() {
				continue
			}
			if best < 0 || used[group] < used[best] || (used[group] == used[best] && in.Len() > chosen.Len()) {
				best, chosen = group, in
			}
		}
		if best < 0 {
			cpus[i] = h.pool
			warnings[i] = Warning{NoL3, "no L3 groups known, using the whole node"}
			continue
		}
		if used[best] > 0 {
			warnings[i] = Warning{SharedL3, fmt.Sprintf("more GPUs than L3 groups, cpus %s are shared", chosen)}
		}
		used[best]++
		cpus[i] = chosen
	}
}

// threads applies smt=.
func (p *planner) threads(cpus idset.Set) idset.Set {
	if p.policy.SMT != SMTOne {
		return cpus
	}
	var firsts idset.Set
	for _, core := range p.cores {
		if in := core.And(cpus); !in.Empty() {
			firsts.Add(in.Min())
		}
	}
	return firsts
}

// locality tells how cpus lie to near, the CPUs of the local nodes.
func locality(cpus, near idset.Set) Locality {
	switch in := cpus.And(near); {
	case near.Empty():
		return Unknown
	case in.Empty():
		return Remote
	case in.Len() < cpus.Len():
		return Mixed
	}
	return Local
}

// localityOf tells how the CPUs of a task lie to its GPUs, given the CPUs near
// each of them. A GPU without any CPU near it makes the whole mixed, and so does
// a CPU that is near none.
func localityOf(cpus idset.Set, near []idset.Set) Locality {
	var union idset.Set
	all := true
	for _, n := range near {
		union = union.Or(n)
		all = all && !n.And(cpus).Empty()
	}
	if l := locality(cpus, union); l != Local || all {
		return l
	}
	return Mixed
}

// pair returns for each task the GPUs that its binding follows.
func (p *planner) pair(request Request) [][]int {
	pairs := make([][]int, len(request.Tasks))
	for i, task := range request.Tasks {
		pairs[i] = slices.Clone(task.GPUs)
	}
	switch p.policy.GPUs {
	case GPUsAll:
	case GPUsLocal:
		for i, task := range request.Tasks {
			var local []int
			for _, position := range task.GPUs {
				near := p.home(&p.machine.GPUs[position]).near
				if !near.And(task.CPUs).Empty() {
					local = append(local, position)
				}
			}
			if len(local) > 0 {
				pairs[i] = local
			}
		}
	case GPUsAuto:
		block := blockSize(request.Tasks)
		if block == 0 {
			break
		}
		order := make([]int, len(request.Tasks))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int {
			return cmp.Compare(request.Tasks[a].LocalID, request.Tasks[b].LocalID)
		})
		for rank, i := range order {
			pairs[i] = pairs[i][rank*block : (rank+1)*block]
		}
	}
	return pairs
}

// blockSize returns how many GPUs each task is paired with where every task
// sees the same GPUs and their number is a multiple of the tasks', else 0.
func blockSize(tasks []Task) int {
	if len(tasks) < 2 || len(tasks[0].GPUs) < 2 || len(tasks[0].GPUs)%len(tasks) != 0 {
		return 0
	}
	for _, task := range tasks[1:] {
		if !slices.Equal(task.GPUs, tasks[0].GPUs) {
			return 0
		}
	}
	return len(tasks[0].GPUs) / len(tasks)
}

// bind puts a task's binding together from the shares of its GPUs.
func (p *planner) bind(task Task, gpus []int, shares map[int]Share) Binding {
	b := Binding{LocalID: task.LocalID, GPUs: gpus, MemPolicy: MemNone, Locality: Unknown, Warnings: []Warning{}}
	if len(gpus) == 0 {
		b.GPUs = []int{}
		b.Warnings = append(b.Warnings, Warning{NoGPU, "no GPU is visible to it: ask for one with --gpus, or for --gpu-numa-bind=off"})
		return b
	}
	var near []idset.Set
	anywhere := false // memory of one of the GPUs may be on any node
	for _, position := range gpus {
		share, planned := shares[position]
		if !planned {
			panic(fmt.Sprintf("placement: task %d has gpu %d, which is not one of the step's", task.LocalID, position))
		}
		b.CPUs = b.CPUs.Or(share.CPUs)
		b.Mems = b.Mems.Or(share.Mems)
		anywhere = anywhere || share.Mems.Empty()
		near = append(near, share.Near)
		b.Warnings = append(b.Warnings, share.Warnings...)
	}
	switch {
	case p.policy.CPUs != CPUsNone:
		b.Locality = localityOf(b.CPUs, near)
	case !task.CPUs.Empty():
		b.Locality = localityOf(task.CPUs, near)
	}
	if anywhere {
		b.Mems = idset.Set{}
	}
	if !b.Mems.Empty() {
		b.MemPolicy = p.policy.Mem
	}
	return b
}

func name(gpu *topology.GPU) string {
	if gpu.PCI != "" {
		return gpu.PCI
	}
	return fmt.Sprint(gpu.Index)
}
