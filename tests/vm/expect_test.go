//go:build vm

package vm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gputune/internal/idset"
)

// policy is what a step asks for, in the option's words; empty is the default.
type policy struct {
	cpus, mem, smt, enforce string
}

// option is the option that asks for it, and for the verbose line.
func (p policy) option() string {
	items := []string{"verbose"}
	for _, item := range []struct{ key, value string }{{"cpus", p.cpus}, {"mem", p.mem}, {"smt", p.smt}, {"enforce", p.enforce}} {
		if item.value != "" {
			items = append(items, item.key+"="+item.value)
		}
	}
	return "--gpu-numa-bind=" + strings.Join(items, ",")
}

func (p policy) withDefaults() policy {
	for _, item := range []struct {
		value     *string
		otherwise string
	}{{&p.cpus, "node"}, {&p.mem, "prefer"}, {&p.smt, "all"}, {&p.enforce, "cgroup"}} {
		if *item.value == "" {
			*item.value = item.otherwise
		}
	}
	return p
}

// gpu is one GPU of a step, with what lstopo and the grant say of it.
type gpu struct {
	pci  string
	near idset.Set // all CPUs of its nodes; none: not known
	pool idset.Set // the granted of those, or the nearest granted
	mems idset.Set // where its memory should be; none: anywhere
}

// locality tells how the CPUs that a task has lie to its GPUs. A GPU without any
// CPU near it makes the whole mixed, and so does a CPU that is near to none.
func locality(cpus idset.Set, gpus ...gpu) string {
	var near idset.Set
	without := 0
	for _, g := range gpus {
		near = near.Or(g.near)
		if g.near.And(cpus).Empty() {
			without++
		}
	}
	switch {
	case near.Empty():
		return "unknown"
	case without == len(gpus):
		return "remote"
	case without > 0 || !cpus.SubsetOf(near):
		return "mixed"
	}
	return "local"
}

func (l *layout) gpu(pci string, granted idset.Set) gpu {
	nodes := l.local[pci]
	g := gpu{pci: pci, near: l.cpusOf(nodes), pool: granted}
	if nodes.Empty() {
		return g
	}
	if g.pool = g.near.And(granted); g.pool.Empty() {
		g.pool = l.nearestTo(nodes, granted)
	}
	for id := range nodes.All() {
		if l.node(id).memory > 0 {
			g.mems.Add(id)
		}
	}
	return g
}

// check compares what each task of the step has with what the policy promises.
// The step's GPUs are those that its tasks may open.
func (m *machine) check(t *testing.T, o outcome, p policy) {
	t.Helper()
	p = p.withDefaults()
	if len(o.tasks) == 0 {
		t.Fatalf("%s: no tasks", o.command)
	}
	of := make([][]gpu, len(o.tasks))
	var all []gpu
	for i, k := range o.tasks {
		for _, pci := range k.gpus {
			g := m.layout.gpu(pci, k.granted())
			of[i] = append(of[i], g)
			if !slices.ContainsFunc(all, func(other gpu) bool { return other.pci == pci }) {
				all = append(all, g)
			}
		}
	}
	for i, k := range o.tasks {
		fail := func(format string, arguments ...any) {
			t.Helper()
			t.Errorf("%s: task %d with gpus %v: %s", o.command, k.id, k.gpus, fmt.Sprintf(format, arguments...))
		}
		if len(k.gpus) == 0 {
			fail("may open none")
			continue
		}
		if !k.cpus.SubsetOf(k.granted()) {
			fail("runs on %s, granted are %s", k.cpus, k.stepCPUs)
		}
		m.checkCPUs(k, of[i], p, fail)
		m.checkMemory(k, of[i], p, fail)
		m.checkSaid(o.line(t, k.id), k, of[i], fail)
		warned := len(o.warnings(k.id)) > 0
		if must, may := m.short(of[i], all, p); warned && !may || must && !warned {
			fail("warnings %q", o.warnings(k.id))
		}
	}
	if p.cpus == "exclusive" {
		m.checkExclusive(t, o, of, all, p)
	}
}

// checkCPUs is about one task by itself.
func (m *machine) checkCPUs(k task, gpus []gpu, p policy, fail func(string, ...any)) {
	var pool idset.Set
	for _, g := range gpus {
		pool = pool.Or(g.pool)
	}
	want := pool
	switch p.cpus {
	case "none":
		want = k.bound
	case "socket":
		for _, pkg := range m.layout.packages {
			if !pkg.And(pool).Empty() {
				want = want.Or(pkg.And(k.granted()))
			}
		}
	case "core-complex", "exclusive":
		want = k.cpus // which of several is free to choose: see below
	}
	if p.cpus != "none" && p.smt == "one" {
		want = m.firsts(want)
	}
	if !k.cpus.Equal(want) {
		fail("runs on %s, want %s", k.cpus, want)
	}
	if list, asked := k.numactl["physcpubind"]; asked && !mustParse(strings.Join(strings.Fields(list), ",")).Equal(k.cpus) {
		fail("numactl says CPUs %s, the kernel %s", list, k.cpus)
	}
	if p.cpus == "core-complex" {
		m.checkL3(k, gpus, pool, p, fail)
	}
	confined := p.cpus != "none" && p.enforce == "cgroup"
	if confined && (k.leafCPUs != k.cpus.String() || k.leafCPUsEffective != k.cpus.String()) {
		fail("its cgroup has CPUs %q, in effect %q, want %s", k.leafCPUs, k.leafCPUsEffective, k.cpus)
	}
	if !confined && (k.leafCPUs != "" || k.leafCPUsEffective != k.stepCPUs) {
		fail("its cgroup has CPUs %q, in effect %q, want none of its own", k.leafCPUs, k.leafCPUsEffective)
	}
}

// checkL3 wants as many whole L3 groups as the task has GPUs, while there are.
func (m *machine) checkL3(k task, gpus []gpu, pool idset.Set, p policy, fail func(string, ...any)) {
	groups := parts(m.layout.l3, pool)
	if len(groups) == 0 {
		groups = []idset.Set{pool} // lstopo knows no L3 cache: the whole node is used
	}
	used := 0
	rest := k.cpus
	for _, group := range groups {
		if p.smt == "one" {
			group = m.firsts(group)
		}
		if in := group.And(k.cpus); in.Equal(group) {
			used++
			rest = rest.AndNot(in)
		}
	}
	if !rest.Empty() || used == 0 || used > len(gpus) {
		fail("runs on %s, want up to %d of the L3 groups %v", k.cpus, len(gpus), groups)
	}
}

// checkExclusive wants the cores of a pool dealt out: whole, to one GPU only, as
// many to each but for one, and all of them, as long as there is one for each.
func (m *machine) checkExclusive(t *testing.T, o outcome, of [][]gpu, all []gpu, p policy) {
	t.Helper()
	for _, pool := range pools(t, all) {
		cores := parts(m.layout.cores, pool)
		if p.smt == "one" {
			for i := range cores {
				cores[i] = idset.Of(cores[i].Min())
			}
		}
		gpus := count(all, pool)
		least, most := len(cores)/gpus, (len(cores)+gpus-1)/gpus
		owner := map[int]int{}
		for i, k := range o.tasks {
			mine := 0
			for c, core := range cores {
				switch in := core.And(k.cpus); {
				case in.Empty():
					continue
				case !in.Equal(core):
					t.Errorf("%s: task %d runs on %s, a part of core %s", o.command, k.id, k.cpus, core)
				}
				mine++
				if other, taken := owner[c]; taken && len(cores) >= gpus {
					t.Errorf("%s: tasks %d and %d both have core %s", o.command, other, k.id, core)
				}
				owner[c] = k.id
			}
			own := count(of[i], pool)
			if len(cores) < gpus {
				if own > 0 && (mine == 0 || mine > own) {
					t.Errorf("%s: task %d has %d cores of %s for %d GPUs", o.command, k.id, mine, pool, own)
				}
			} else if mine < own*least || mine > own*most {
				t.Errorf("%s: task %d has %d cores of %s for %d GPUs, want %d to %d for each", o.command, k.id, mine, pool, own, least, most)
			}
		}
		if len(cores) >= gpus && len(owner) != len(cores) {
			t.Errorf("%s: %d of %d cores of %s are used", o.command, len(owner), len(cores), pool)
		}
	}
}

// pools lists the different pools of the GPUs, which must be equal or apart.
func pools(t *testing.T, gpus []gpu) []idset.Set {
	t.Helper()
	var all []idset.Set
	for _, g := range gpus {
		if slices.ContainsFunc(all, g.pool.Equal) {
			continue
		}
		for _, other := range all {
			if !other.And(g.pool).Empty() {
				t.Fatalf("pools %s and %s overlap: these expectations are not for that", other, g.pool)
			}
		}
		all = append(all, g.pool)
	}
	return all
}

func count(gpus []gpu, pool idset.Set) int {
	n := 0
	for _, g := range gpus {
		if g.pool.Equal(pool) {
			n++
		}
	}
	return n
}

// short tells whether one of a task's GPUs cannot have what the policy says, so
// that the task must be warned; and whether it may be, since one of several GPUs
// cannot, and which one is free to choose.
func (m *machine) short(gpus, all []gpu, p policy) (must, may bool) {
	for _, g := range gpus {
		l3 := len(parts(m.layout.l3, g.pool))
		switch {
		case g.near.Empty():
			must = true
		case p.cpus == "none":
		case g.pool.And(g.near).Empty(): // remote
			must = true
		case p.cpus == "exclusive":
			must = must || len(parts(m.layout.cores, g.pool)) < count(all, g.pool)
		case p.cpus == "core-complex":
			must = must || l3 == 0
			may = may || l3 < count(all, g.pool)
		}
	}
	return must, must || may
}

// firsts returns the first hardware thread of each core that has CPUs in the set.
func (m *machine) firsts(cpus idset.Set) idset.Set {
	var first idset.Set
	for _, core := range parts(m.layout.cores, cpus) {
		first.Add(core.Min())
	}
	return first
}

func (m *machine) checkMemory(k task, gpus []gpu, p policy, fail func(string, ...any)) {
	var nodes idset.Set
	for _, g := range gpus {
		nodes = nodes.Or(g.mems)
	}
	for _, g := range gpus {
		if g.mems.Empty() {
			nodes = idset.Set{} // memory of a GPU that may be anywhere may be anywhere
		}
	}
	if nodes.Empty() {
		p.mem = "none"
	}
	want := map[string]string{
		"none":       "default",
		"prefer":     "prefer:" + nodes.String(),
		"bind":       "bind:" + nodes.String(),
		"interleave": "interleave:" + nodes.String(),
	}[p.mem]
	if p.mem == "prefer" && nodes.Len() > 1 {
		want = "prefer (many):" + nodes.String()
	}
	if k.policy != want {
		fail("memory policy %q, want %q", k.policy, want)
	}
	confined := p.mem == "bind" && p.enforce == "cgroup"
	allowed, leaf := mustParse(k.stepMems), ""
	if confined {
		allowed, leaf = nodes, nodes.String()
	}
	if !k.mems.Equal(allowed) || k.leafMems != leaf || k.leafMemsEffective != allowed.String() {
		fail("may use memory of nodes %s, its cgroup has %q, in effect %q, want %s", k.mems, k.leafMems, k.leafMemsEffective, allowed)
	}
	if p.mem == "none" {
		return
	}
	total := 0
	for _, n := range k.pages {
		total += n
	}
	for id, n := range k.pages {
		if !nodes.Has(id) {
			fail("%d of %d pages are on node %d, want nodes %s", n, total, id, nodes)
		}
	}
	if p.mem == "interleave" {
		for id := range nodes.All() {
			// A huge page goes to one node as a whole, so that few pages are not spread evenly.
			if share := total / nodes.Len(); k.pages[id] < share/5 {
				fail("%d of %d pages are on node %d, want about %d", k.pages[id], total, id, share)
			}
		}
	}
}

func mustParse(list string) idset.Set { return idset.MustParse(list) }

// checkSaid compares what the task was told with the facts.
func (m *machine) checkSaid(said line, k task, gpus []gpu, fail func(string, ...any)) {
	names := make([]string, len(gpus))
	for i, g := range gpus {
		names[i] = fmt.Sprintf("%s (node %s)", g.pci, m.gpuNodes(g.pci))
	}
	locality := locality(k.cpus, gpus...)
	mode, mems, _ := strings.Cut(k.policy, ":")
	word := map[string]string{"default": "none", "prefer": "prefer", "prefer (many)": "prefer", "bind": "bind", "interleave": "interleave"}[mode]
	if said.gpus != strings.Join(names, ", ") || said.cpus != k.cpus.String() || said.mems != mems || said.policy != word || said.locality != locality {
		fail("was told %q, the facts are: gpus %v, cpus %s, mems %s %s, %s", said.allText, names, k.cpus, mems, word, locality)
	}
	want := map[string]string{"gpus": strings.Join(k.gpus, ","), "cpus": k.cpus.String(), "mems": mems, "mem_policy": word, "locality": locality}
	for name, value := range want {
		if k.says[name] != value {
			fail("GPUTUNE_%s=%s, want %s", strings.ToUpper(name), k.says[name], value)
		}
	}
}

// remote tells whether the task has a CPU that is near to none of its GPUs.
func (m *machine) remote(k task, cpus idset.Set) bool {
	var near idset.Set
	for _, pci := range k.gpus {
		near = near.Or(m.layout.cpusOf(m.layout.local[pci]))
	}
	return !cpus.SubsetOf(near)
}

// remotePages counts the pages on nodes that none of the task's GPUs is near to.
func (m *machine) remotePages(k task) (remote, all int) {
	var near idset.Set
	for _, pci := range k.gpus {
		near = near.Or(m.layout.local[pci])
	}
	for id, n := range k.pages {
		all += n
		if !near.Has(id) {
			remote += n
		}
	}
	return remote, all
}
