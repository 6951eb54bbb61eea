package smi

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

// fromTable is GPU.NodesFrom of what this package reads.
const fromTable = "nvidia-smi topo -m"

// builder puts a machine together from what was found in the text.
type builder struct {
	table      *table // nil: none
	host       *host
	identities map[int]identity
	all        []gpu
	gpuNames   []string // in the matrix, of the GPUs by position
	unknown    []string
}

func (b *builder) say(format string, args ...any) {
	b.unknown = append(b.unknown, fmt.Sprintf(format, args...))
}

// gpu is what the matrix says about one GPU.
type gpu struct {
	number  int
	stated  bool // has a row
	cpus    idset.Set
	cut     bool      // the list may have been longer
	numa    idset.Set // NUMA Affinity
	memory  idset.Set // GPU NUMA ID: the node that is its memory
	nodes   idset.Set // local ones that have CPUs
	hasCPU  bool      // the CPU cell says something
	hasNUMA bool
}

func (b *builder) machine() (*topology.Machine, error) {
	m := &topology.Machine{
		Source: topology.KindNVIDIASMI, CPUs: b.host.cpus, Offline: b.host.offline,
		Nodes: []topology.Node{}, Packages: []topology.Package{}, Cores: []topology.Core{}, L3: []topology.L3Group{},
		GPUs: []topology.GPU{}, NICs: []topology.NIC{},
	}
	gpus, err := b.gpus()
	if err != nil {
		return nil, err
	}
	b.locate(gpus)
	b.all = gpus
	b.nodes(m, gpus)
	b.allCPUs(m, gpus)
	for i := range m.Nodes {
		m.Nodes[i].CPUs = m.Nodes[i].CPUs.And(m.CPUs)
	}
	for i, g := range gpus {
		m.GPUs = append(m.GPUs, b.gpu(m, g, i))
		b.gpuNames = append(b.gpuNames, gpuLabel(g.number))
	}
	b.nics(m)
	b.parts(m)
	return m, nil
}

// gpus reads the cells of all GPUs' rows, by the GPUs' number.
func (b *builder) gpus() ([]gpu, error) {
	if b.table == nil {
		b.say("GPUs are not stated.")
		return nil, nil
	}
	var gpus []gpu
	var absent, ambiguous []string
	for _, name := range b.table.devices {
		match := gpuName().FindStringSubmatch(name)
		if match == nil {
			continue
		}
		g := gpu{number: number(match[1])}
		if r := b.table.rows[name]; r != nil {
			if err := g.read(r); err != nil {
				return nil, err
			}
			if r.ambiguous {
				ambiguous = append(ambiguous, name)
			}
		} else {
			absent = append(absent, name)
		}
		gpus = append(gpus, g)
	}
	slices.SortFunc(gpus, func(a, b gpu) int { return cmp.Compare(a.number, b.number) })
	if len(absent) > 0 {
		b.say("The rows of %s are missing, nothing is stated for them.", strings.Join(absent, ", "))
	}
	if len(ambiguous) > 0 {
		b.say("The rows of %s have fewer or more values than columns, and nothing tells which is which: none is used.", strings.Join(ambiguous, ", "))
	}
	if last := len(gpus) - 1; last >= 0 && gpus[last].number != last {
		b.say("Some GPUs with lower numbers than %d are not stated; positions count those that are.", gpus[last].number)
	}
	if slices.ContainsFunc(gpus, func(g gpu) bool { return b.identities[g.number].pci == "" }) {
		b.say("The PCI addresses of GPUs are not stated.")
	}
	for c, title := range columnNames {
		if !slices.Contains(b.table.columns, column(c)) && column(c) != gpuNUMAID {
			b.say("There is no column %s.", title)
		}
	}
	return gpus, nil
}

// cutAfter is the number of items after which some versions of nvidia-smi
// print no more of a list of CPUs, without a mark.
const cutAfter = 6

func (g *gpu) read(r *row) error {
	g.stated = true
	fail := func(c column, err error) error {
		return fmt.Errorf("line %d: row %s: %s: %w", r.line, r.name, columnNames[c], err)
	}
	var err error
	if text := r.values[cpuAffinity]; text != "" && text != "N/A" {
		if g.cpus, err = topology.ParseList(strings.TrimSuffix(text, ",")); err != nil {
			return fail(cpuAffinity, err)
		}
		g.hasCPU = true
		if strings.Count(text, ",") == cutAfter-1 || strings.HasSuffix(text, ",") {
			g.cpus, g.cut = idset.Set{}, true
		}
	}
	if text := r.values[numaAffinity]; text != "" && text != "N/A" {
		if g.numa, err = topology.ParseList(text); err != nil {
			return fail(numaAffinity, err)
		}
		if g.numa.Max() >= maxNodes {
			return fail(numaAffinity, fmt.Errorf("%q: want nodes below %d", text, maxNodes))
		}
		g.hasNUMA = true
	}
	if text := r.values[gpuNUMAID]; text != "" && text != "N/A" {
		id, err := strconv.ParseUint(text, 10, 16)
		if err != nil || id >= maxNodes {
			return fail(gpuNUMAID, fmt.Errorf("%q: want the number of a node", text))
		}
		g.memory = idset.Of(int(id))
	}
	return nil
}

// nodes lists every node that the text names.
func (b *builder) nodes(m *topology.Machine, gpus []gpu) {
	cpus := maps.Clone(b.host.nodes)
	if len(cpus) == 0 {
		cpus = nodesByGPUs(gpus)
	}
	var ids idset.Set
	for id := range cpus {
		ids.Add(id)
	}
	for _, g := range gpus {
		ids = ids.Or(g.numa).Or(g.memory)
	}
	var noMemory, noCPUs idset.Set
	for id := range ids.All() {
		node := topology.Node{ID: id, CPUs: cpus[id], MemoryMiB: topology.MemoryUnknown, Distances: b.host.distances[id]}
		if size, ok := b.host.memory[id]; ok {
			node.MemoryMiB = size
		} else {
			noMemory.Add(id)
		}
		if _, listed := b.host.nodes[id]; !listed && node.CPUs.Empty() {
			noCPUs.Add(id)
		}
		m.Nodes = append(m.Nodes, node)
	}
	for _, g := range gpus {
		noCPUs = noCPUs.AndNot(g.memory) // it has none
	}
	switch {
	case ids.Empty():
		b.say("NUMA nodes are not stated.")
		return
	case len(b.host.nodes) == 0:
		b.say("The CPUs of a node are those that the table names for its GPUs; nodes without GPUs are not stated.")
	}
	if !noCPUs.Empty() {
		b.say("Which CPUs node %s has, if any, is not stated.", noCPUs)
	}
	if !noMemory.Empty() {
		b.say("How much memory node %s has is not stated.", noMemory)
	}
	if len(b.host.distances) == 0 && ids.Len() > 1 {
		b.say("The distances between nodes are not stated.")
	}
}

// nodesByGPUs takes the CPUs that are named for the GPUs of a node for the
// node's, unless the lists of several nodes overlap: then they are those of the
// process that asked.
func nodesByGPUs(gpus []gpu) map[int]idset.Set {
	cpus := make(map[int]idset.Set)
	for _, g := range gpus {
		if g.nodes.Len() == 1 {
			cpus[g.nodes.Min()] = cpus[g.nodes.Min()].Or(g.cpus)
		}
	}
	var seen idset.Set
	for _, set := range cpus {
		if !set.And(seen).Empty() {
			return nil
		}
		seen = seen.Or(set)
	}
	return cpus
}

func (b *builder) allCPUs(m *topology.Machine, gpus []gpu) {
	if !m.CPUs.Empty() {
		return
	}
	for _, cpus := range b.host.nodes {
		m.CPUs = m.CPUs.Or(cpus)
	}
	if !m.CPUs.Empty() {
		return
	}
	for _, g := range gpus {
		m.CPUs = m.CPUs.Or(g.cpus)
	}
	b.say("CPUs that the table names for no GPU are not stated.")
}

func (b *builder) gpu(m *topology.Machine, g gpu, position int) topology.GPU {
	id := b.identities[g.number]
	gpu := topology.GPU{
		Index: position, PCI: id.pci, UUID: id.uuid, Model: id.model, Minor: -1,
		NUMANode: -1, NVMLMemory: g.numa, NVMLCPUs: g.cpus, Nodes: g.nodes, CPUs: g.cpus,
	}
	if !g.nodes.Empty() {
		gpu.NodesFrom = fromTable
	}
	if strange := g.cpus.AndNot(m.CPUs); !strange.Empty() {
		m.Warnings = append(m.Warnings, fmt.Sprintf("%s: CPUs %s are not among those that lscpu or numactl lists: they are not used", gpuLabel(g.number), strange))
		gpu.CPUs = g.cpus.And(m.CPUs)
	}
	if g.cpus.Empty() && len(b.host.nodes) > 0 {
		for _, node := range m.Nodes {
			if g.nodes.Has(node.ID) {
				gpu.CPUs = gpu.CPUs.Or(node.CPUs)
			}
		}
	}
	gpu.CPUsDoubted = b.doubted(gpu.CPUs, g)
	return gpu
}

// doubted tells whether another GPU, on other nodes, has some of the same CPUs:
// then the lists are those of the process that asked.
func (b *builder) doubted(cpus idset.Set, g gpu) bool {
	for _, other := range b.all {
		if !g.nodes.Empty() && !other.nodes.Empty() && other.nodes.And(g.nodes).Empty() && !other.cpus.And(cpus).Empty() {
			return true
		}
	}
	return false
}
