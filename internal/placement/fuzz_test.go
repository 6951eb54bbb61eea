package placement

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

// invent makes a machine with holes: nodes without CPUs or memory, sparse
// numbers, offline CPUs, caches of uneven size, GPUs of several or no nodes.
func invent(random *rand.Rand) *topology.Machine {
	m := &topology.Machine{Source: "invented"}
	cpu := random.IntN(4)
	node := random.IntN(3)
	threads := 1 + random.IntN(3)
	for pkg := range 1 + random.IntN(3) {
		p := topology.Package{ID: pkg}
		for range 1 + random.IntN(4) {
			n := topology.Node{ID: node, MemoryMiB: int64(random.IntN(3) * 1024), Distances: map[int]int{}}
			node += 1 + random.IntN(3)
			if random.IntN(5) > 0 {
				for range 1 + random.IntN(3) {
					var l3 topology.L3Group
					for range 1 + random.IntN(5) {
						var core topology.Core
						for range threads {
							if random.IntN(12) == 0 {
								m.Offline.Add(cpu)
							} else {
								core.CPUs.Add(cpu)
							}
							cpu += 1 + random.IntN(8)/7
						}
						if !core.CPUs.Empty() {
							m.Cores = append(m.Cores, core)
							l3.CPUs = l3.CPUs.Or(core.CPUs)
						}
					}
					if random.IntN(10) > 0 && !l3.CPUs.Empty() {
						m.L3 = append(m.L3, l3)
					}
					n.CPUs = n.CPUs.Or(l3.CPUs)
				}
			}
			p.CPUs = p.CPUs.Or(n.CPUs)
			m.Nodes = append(m.Nodes, n)
		}
		m.CPUs = m.CPUs.Or(p.CPUs)
		m.Packages = append(m.Packages, p)
	}
	for i := range m.Nodes {
		for j := range m.Nodes {
			if random.IntN(10) > 0 {
				m.Nodes[i].Distances[m.Nodes[j].ID] = 10 + random.IntN(4)*10
			}
		}
	}
	if m.CPUs.Empty() {
		m.CPUs = idset.Of(0)
	}
	for i := range 1 + random.IntN(9) {
		gpu := topology.GPU{Index: i, PCI: fmt.Sprintf("0000:%02x:00.0", i+1), NUMANode: -1}
		if random.IntN(6) > 0 {
			for range 1 + random.IntN(8)/6 {
				gpu.Nodes.Add(m.Nodes[random.IntN(len(m.Nodes))].ID)
			}
		}
		m.GPUs = append(m.GPUs, gpu)
	}
	return m
}

func subset(random *rand.Rand, of idset.Set, keep int) idset.Set {
	var s idset.Set
	for id := range of.All() {
		if random.IntN(10) < keep {
			s.Add(id)
		}
	}
	return s
}

func request(random *rand.Rand, m *topology.Machine) Request {
	pick := func(values ...string) string { return values[random.IntN(len(values))] }
	r := Request{Policy: Policy{
		CPUs: CPUMode(pick("node", "exclusive", "exclusive", "core-complex", "socket", "none")),
		Mem:  MemMode(pick("prefer", "bind", "interleave", "none")),
		SMT:  SMTMode(pick("all", "one")),
		GPUs: GPUMode(pick("auto", "all", "local")),
	}}
	if random.IntN(4) > 0 {
		if r.CPUs = subset(random, m.CPUs, 1+random.IntN(9)); r.CPUs.Empty() {
			r.CPUs = idset.Of(m.CPUs.Max())
		}
	}
	if random.IntN(2) == 0 {
		var nodes idset.Set
		for _, n := range m.Nodes {
			nodes.Add(n.ID)
		}
		r.Mems = subset(random, nodes, 5)
	}
	for i := range m.GPUs {
		if random.IntN(5) > 0 {
			r.GPUs = append(r.GPUs, i)
		}
	}
	alike := random.IntN(2) == 0
	for id := range 1 + random.IntN(12) {
		task := Task{LocalID: id, CPUs: subset(random, m.CPUs, random.IntN(10))}
		for _, gpu := range r.GPUs {
			if alike || random.IntN(3) == 0 {
				task.GPUs = append(task.GPUs, gpu)
			}
		}
		r.Tasks = append(r.Tasks, task)
	}
	return r
}

func check(t *testing.T, m *topology.Machine, r Request) {
	t.Helper()
	before := fingerprint(t, m, r)
	result := Plan(m, r)
	if again := Plan(m, r); fingerprint(t, again) != fingerprint(t, result) {
		t.Fatal("the same input gave another plan")
	}
	if fingerprint(t, m, r) != before {
		t.Fatal("the input was changed")
	}
	granted := r.CPUs
	if granted.Empty() {
		granted = m.CPUs
	}
	shares := map[int]Share{}
	for _, share := range result.Shares {
		shares[share.GPU] = share
		if !share.CPUs.SubsetOf(granted) {
			t.Fatalf("gpu %d: cpus %s are outside the grant %s", share.GPU, share.CPUs, granted)
		}
		if share.CPUs.Empty() != (r.Policy.CPUs == CPUsNone) {
			t.Fatalf("gpu %d: cpus %q under cpus=%s", share.GPU, share.CPUs, r.Policy.CPUs)
		}
		if !r.Mems.Empty() && !share.Mems.SubsetOf(r.Mems) {
			t.Fatalf("gpu %d: mems %s are outside the grant %s", share.GPU, share.Mems, r.Mems)
		}
		for id := range share.Mems.All() {
			if n := nodeOf(m, id); n == nil || n.MemoryMiB == 0 {
				t.Fatalf("gpu %d: mems %s: node %d has no memory", share.GPU, share.Mems, id)
			}
		}
		checkLocal(t, m, r, granted, share)
	}
	if r.Policy.CPUs == CPUsExclusive {
		checkExclusive(t, m, granted, result.Shares)
	}
	for i, b := range result.Tasks {
		var cpus, mems idset.Set
		anywhere := false
		sees := map[int]bool{}
		for _, gpu := range r.Tasks[i].GPUs {
			sees[gpu] = true
		}
		for _, gpu := range b.GPUs {
			if !sees[gpu] {
				t.Fatalf("task %d is bound to gpu %d, which it does not see", i, gpu)
			}
			cpus, mems = cpus.Or(shares[gpu].CPUs), mems.Or(shares[gpu].Mems)
			anywhere = anywhere || shares[gpu].Mems.Empty()
		}
		if anywhere {
			mems = idset.Set{}
		}
		if len(b.GPUs) == 0 && len(r.Tasks[i].GPUs) > 0 {
			t.Fatalf("task %d sees GPUs and is bound to none", i)
		}
		if !b.CPUs.Equal(cpus) || !b.Mems.Equal(mems) {
			t.Fatalf("task %d: cpus %s mems %s, its GPUs' shares are %s, %s", i, b.CPUs, b.Mems, cpus, mems)
		}
	}
}

// checkLocal: a GPU with a granted local CPU has local CPUs alone, but for
// cpus=socket, and the warning is there exactly when it has none.
func checkLocal(t *testing.T, m *topology.Machine, r Request, granted idset.Set, share Share) {
	t.Helper()
	if r.Policy.CPUs == CPUsNone {
		return
	}
	var near idset.Set
	for id := range m.GPUs[share.GPU].Nodes.All() {
		near = near.Or(nodeOf(m, id).CPUs)
	}
	reachable := !near.And(granted).Empty()
	switch {
	case near.Empty() && share.Locality != Unknown:
		t.Fatalf("gpu %d has no known node and is %s", share.GPU, share.Locality)
	case reachable && r.Policy.CPUs != CPUsSocket && !share.CPUs.SubsetOf(near):
		t.Fatalf("gpu %d: cpus %s, though %s of its node are granted", share.GPU, share.CPUs, near.And(granted))
	case reachable && r.Policy.CPUs == CPUsNode && r.Policy.SMT == SMTAll && !share.CPUs.Equal(near.And(granted)):
		t.Fatalf("gpu %d: cpus %s, want all of %s", share.GPU, share.CPUs, near.And(granted))
	}
	remote := false
	for _, w := range share.Warnings {
		remote = remote || w.Code == RemoteCPUs
	}
	if want := !near.Empty() && !reachable; remote != want {
		t.Fatalf("gpu %d: warned of remote CPUs: %v, want %v", share.GPU, remote, want)
	}
}

// checkExclusive: no core is given twice unless there are fewer cores than
// GPUs, and GPUs that may choose from the same CPUs differ by one core at most.
func checkExclusive(t *testing.T, m *topology.Machine, granted idset.Set, shares []Share) {
	t.Helper()
	coresOf := func(cpus idset.Set) (n int) {
		left := cpus
		for _, core := range m.Cores {
			if !core.CPUs.And(cpus).Empty() {
				n++
				left = left.AndNot(core.CPUs)
			}
		}
		return n + left.Len()
	}
	shared := func(s Share) bool {
		for _, w := range s.Warnings {
			if w.Code == SharedCores {
				return true
			}
		}
		return false
	}
	p := newPlanner(m, Request{CPUs: granted})
	for i, a := range shares {
		for _, b := range shares[i+1:] {
			if shared(a) || shared(b) {
				continue
			}
			if !a.CPUs.And(b.CPUs).Empty() {
				t.Fatalf("gpus %d and %d share cpus %s", a.GPU, b.GPU, a.CPUs.And(b.CPUs))
			}
			for _, core := range m.Cores {
				if !core.CPUs.And(a.CPUs).Empty() && !core.CPUs.And(b.CPUs).Empty() {
					t.Fatalf("gpus %d and %d share the core with cpus %s", a.GPU, b.GPU, core.CPUs)
				}
			}
			if p.home(&m.GPUs[a.GPU]).pool.Equal(p.home(&m.GPUs[b.GPU]).pool) {
				if d := coresOf(a.CPUs) - coresOf(b.CPUs); d < -1 || d > 1 {
					t.Fatalf("gpus %d and %d have %d and %d cores", a.GPU, b.GPU, coresOf(a.CPUs), coresOf(b.CPUs))
				}
			}
		}
		if shared(a) {
			// Only right where there are not enough cores for every GPU that could use them.
			cores, gpus := coresOf(p.home(&m.GPUs[a.GPU]).pool), 0
			for _, b := range shares {
				if !p.home(&m.GPUs[b.GPU]).pool.And(p.home(&m.GPUs[a.GPU]).pool).Empty() {
					gpus++
				}
			}
			if cores >= len(shares) && gpus <= cores {
				t.Fatalf("gpu %d shares cores, though %d cores would do for %d GPUs", a.GPU, cores, gpus)
			}
		}
	}
}

func nodeOf(m *topology.Machine, id int) *topology.Node {
	for i := range m.Nodes {
		if m.Nodes[i].ID == id {
			return &m.Nodes[i]
		}
	}
	return nil
}

func fingerprint(t *testing.T, values ...any) string {
	t.Helper()
	text, err := json.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func FuzzPlan(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed, seed+1)
	}
	f.Fuzz(func(t *testing.T, a, b uint64) {
		random := rand.New(rand.NewPCG(a, b))
		m := invent(random)
		for range 20 {
			check(t, m, request(random, m))
		}
	})
}
