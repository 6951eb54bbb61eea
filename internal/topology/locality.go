package topology

import (
	"fmt"
	"slices"

	"gputune/internal/idset"
)

// The sources of a device's local nodes, in the order in which they are
// believed.
const (
	FromNVMLMemory     = "nvml memory affinity" // nvmlDeviceGetMemoryAffinity
	FromNVMLCPUs       = "nvml cpu affinity"    // the nodes of nvmlDeviceGetCpuAffinity
	FromNUMANode       = "numa_node"            // sysfs
	FromLocalCPUs      = "local_cpulist"        // the nodes of sysfs' list
	FromBridgeNUMANode = "bridge numa_node"     // of the nearest PCI bridge that has one
	FromBridgeCPUs     = "bridge local_cpulist" // the nodes of such a bridge's list
	FromSingleNode     = "single node"          // the machine has CPUs on one node only
)

// Resolve works out which NUMA nodes are local to each GPU and NIC and sets
// their Nodes, and NodesFrom and CPUs of the GPUs, from what the sources said.
// It can be called again after facts were added.
//
// Only nodes that have CPUs are ever named: a source that names only others
// (the memory of a GPU, an expander) means the nearest nodes that have some.
// A source is passed over when it says nothing that tells one node from
// another, because it says -1 or because it names every node with CPUs of a
// machine that has several: that is how the kernel and NVML say that they do
// not know. Facts that look wrong are named in Machine.Warnings.
func (m *Machine) Resolve() {
	m.Warnings = slices.DeleteFunc(m.Warnings, func(text string) bool { return slices.Contains(m.resolved, text) })
	m.resolved = nil
	l := newLocator(m)
	useNVML := l.nvmlTellsGPUsApart()
	for i := range m.GPUs {
		l.resolveGPU(&m.GPUs[i], useNVML)
	}
	for i := range m.NICs {
		nic := &m.NICs[i]
		nic.Nodes = idset.Set{}
		if found, ok := l.first(l.sysfs("NIC "+nic.PCI, nic.NUMANode, nic.LocalCPUs, nic.Bridges)); ok {
			nic.Nodes = found.nodes
		}
	}
}

func (m *Machine) warnResolved(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if len(m.resolved) >= maxWarnings || slices.Contains(m.Warnings, text) {
		return
	}
	m.Warnings = append(m.Warnings, text)
	m.resolved = append(m.resolved, text)
}

// locator answers questions about a machine's nodes.
type locator struct {
	m       *Machine
	known   idset.Set // all nodes
	withCPU idset.Set // nodes that have CPUs
}

func newLocator(m *Machine) *locator {
	l := &locator{m: m}
	for _, node := range m.Nodes {
		if node.ID < 0 || node.ID >= idset.Limit {
			continue
		}
		l.known.Add(node.ID)
		if !node.CPUs.Empty() {
			l.withCPU.Add(node.ID)
		}
	}
	return l
}

// claim is what one source says about one device.
type claim struct {
	source string
	nodes  idset.Set // empty: nothing that helps
	cpus   idset.Set // the CPUs that the source names, if it names CPUs
}

func (l *locator) first(claims []claim) (claim, bool) {
	for _, c := range claims {
		if !c.nodes.Empty() {
			return c, true
		}
	}
	return claim{}, false
}

func (l *locator) resolveGPU(gpu *GPU, useNVML bool) {
	device := "GPU " + gpu.PCI
	var claims []claim
	if useNVML {
		claims = l.nvml(gpu, device)
	}
	claims = append(claims, l.sysfs(device, gpu.NUMANode, gpu.LocalCPUs, gpu.Bridges)...)
	used, ok := l.first(claims)
	gpu.Nodes, gpu.NodesFrom = used.nodes, used.source
	gpu.CPUs = l.statedCPUs(used, claims)
	switch {
	case !ok:
		l.m.warnResolved("%s: no source tells its NUMA node (numa_node is %d): it counts as near to every node", device, gpu.NUMANode)
	case l.m.Source == KindHwloc: // its XML has no numa_node
	case gpu.NUMANode < 0 && l.withCPU.Len() > 1:
		l.m.warnResolved("%s: numa_node is -1: node %s is from its %s", device, used.nodes, used.source)
	}
	for _, other := range claims {
		// What a bridge says counts only where nobody else knows.
		if other.source == FromBridgeNUMANode || other.source == FromBridgeCPUs || other.nodes.Empty() {
			continue
		}
		if other.nodes.And(used.nodes).Empty() {
			l.m.warnResolved("%s: %s says node %s, %s says node %s: the first is used",
				device, used.source, used.nodes, other.source, other.nodes)
		}
	}
}

func (l *locator) nvml(gpu *GPU, device string) []claim {
	if strange := gpu.NVMLMemory.AndNot(l.known); !strange.Empty() {
		l.m.warnResolved("%s: %s names nodes %s, which this machine does not have", device, FromNVMLMemory, strange)
	}
	return []claim{
		{source: FromNVMLMemory, nodes: l.places(gpu.NVMLMemory)},
		{source: FromNVMLCPUs, nodes: l.places(l.nodesOf(gpu.NVMLCPUs)), cpus: gpu.NVMLCPUs},
	}
}

func (l *locator) sysfs(device string, numaNode int, localCPUs idset.Set, bridges []Bridge) []claim {
	claims := []claim{
		{source: FromNUMANode, nodes: l.placesOfNode(device, numaNode)},
		{source: FromLocalCPUs, nodes: l.places(l.nodesOf(localCPUs)), cpus: localCPUs},
	}
	for _, bridge := range bridges {
		claims = append(claims,
			claim{source: FromBridgeNUMANode, nodes: l.placesOfNode("bridge "+bridge.PCI, bridge.NUMANode), cpus: bridge.LocalCPUs},
			claim{source: FromBridgeCPUs, nodes: l.places(l.nodesOf(bridge.LocalCPUs)), cpus: bridge.LocalCPUs})
	}
	if l.withCPU.Len() == 1 {
		claims = append(claims, claim{source: FromSingleNode, nodes: l.withCPU})
	}
	return claims
}

// statedCPUs returns the CPU list of a device: that of the source that its
// nodes came from, else one of another source that agrees on the nodes, else
// the CPUs of the nodes. Without nodes it is what the first source that names
// CPUs says.
func (l *locator) statedCPUs(used claim, claims []claim) idset.Set {
	for _, c := range append([]claim{used}, claims...) {
		cpus := c.cpus.And(l.m.CPUs)
		if !cpus.Empty() && (used.nodes.Empty() || l.nodesOf(cpus).SubsetOf(used.nodes)) {
			return cpus
		}
	}
	var cpus idset.Set
	for _, node := range l.m.Nodes {
		if used.nodes.Has(node.ID) {
			cpus = cpus.Or(node.CPUs)
		}
	}
	return cpus
}

// nodesOf returns the nodes that have any of the CPUs.
func (l *locator) nodesOf(cpus idset.Set) idset.Set {
	var nodes idset.Set
	if cpus.Empty() {
		return nodes
	}
	for _, node := range l.m.Nodes {
		if l.known.Has(node.ID) && !node.CPUs.And(cpus).Empty() {
			nodes.Add(node.ID)
		}
	}
	return nodes
}

// places turns the nodes that a source names into nodes that have CPUs, and
// into the empty set where that tells nothing.
func (l *locator) places(nodes idset.Set) idset.Set {
	found := nodes.And(l.withCPU)
	if found.Empty() {
		for id := range nodes.And(l.known).All() {
			if near := l.nearest(id); near >= 0 {
				found.Add(near)
			}
		}
	}
	if l.withCPU.Len() > 1 && found.Equal(l.withCPU) {
		return idset.Set{}
	}
	return found
}

func (l *locator) placesOfNode(device string, id int) idset.Set {
	switch {
	case id < 0:
		return idset.Set{}
	case !l.known.Has(id):
		if !l.known.Empty() {
			l.m.warnResolved("%s: numa_node is %d, which this machine does not have", device, id)
		}
		return idset.Set{}
	}
	return l.places(idset.Of(id))
}

// nearest returns the node with CPUs that has the smallest distance to a node
// without, the lowest of several, -1 where the distances are not known: then
// every node would do, and to take one would be a guess.
func (l *locator) nearest(id int) int {
	best, least := -1, 0
	for _, node := range l.m.Nodes {
		if node.ID != id {
			continue
		}
		for near := range l.withCPU.All() {
			distance, ok := node.Distances[near]
			if ok && (best < 0 || distance < least) {
				best, least = near, distance
			}
		}
	}
	return best
}

// nvmlTellsGPUsApart tells whether NVML's affinities are those of the GPUs.
// Called in a process whose cpuset is narrower than the machine, in a job for
// example, some drivers answer with that process's own CPUs for every GPU.
// That is so when all GPUs got the same answer, and sysfs contradicts it for
// one of them, or the answer has several nodes and sysfs supports it for none.
func (l *locator) nvmlTellsGPUsApart() bool {
	if len(l.m.GPUs) < 2 {
		return true
	}
	var same idset.Set
	supported := false
	contradicted := false
	for i := range l.m.GPUs {
		gpu := &l.m.GPUs[i]
		nodes := l.places(gpu.NVMLMemory)
		if nodes.Empty() {
			nodes = l.places(l.nodesOf(gpu.NVMLCPUs))
		}
		if i == 0 {
			same = nodes
		}
		if nodes.Empty() || !nodes.Equal(same) {
			return true
		}
		if !l.known.Has(gpu.NUMANode) {
			continue
		}
		if near := l.places(idset.Of(gpu.NUMANode)); !near.Empty() {
			supported = supported || near.SubsetOf(same)
			contradicted = contradicted || near.And(same).Empty()
		}
	}
	if !contradicted && (supported || same.Len() == 1) {
		return true
	}
	l.m.warnResolved("NVML says node %s for every GPU, sysfs does not agree: it may have answered with the CPUs of the process that asked, and is not used", same)
	return false
}
