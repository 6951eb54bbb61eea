// Package nccl reads the topology files of NCCL and RCCL: XML that vendors ship
// for NCCL_TOPO_FILE, and that the library writes to NCCL_TOPO_DUMP_FILE. They
// say which PCI functions are below which NUMA node, and with a mask which CPUs
// that node has (NCCL's src/graph/xml.cc).
package nccl

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gputune/internal/idset"
	"gputune/internal/topology"
	"gputune/internal/topology/xmltree"
)

// fromFile is GPU.NodesFrom of what this package reads.
const fromFile = "numaid of the NCCL topology"

// Detect tells whether a text begins as these files do.
func Detect(text []byte) bool { return xmltree.Root(text) == "system" }

// Parse reads a file. It returns with the machine what the file leaves unknown,
// one sentence each. An error names the line and what is wrong in it.
func Parse(text []byte) (*topology.Machine, []string, error) {
	root, err := xmltree.Parse(text)
	if err != nil {
		return nil, nil, err
	}
	if root.Name != "system" {
		return nil, nil, root.Errorf("want <system> as the root of an NCCL topology")
	}
	r := &reader{nodes: make(map[int]*node), seen: make(map[string]int), gpus: []topology.GPU{}, nics: []topology.NIC{}}
	for _, child := range root.Children {
		if child.Name != "cpu" {
			continue
		}
		if err := r.cpu(child); err != nil {
			return nil, nil, err
		}
	}
	if r.cpus == 0 {
		return nil, nil, root.Errorf("no <cpu> in it")
	}
	return r.machine(), r.unknown, nil
}

// node is what <cpu> says about a NUMA node.
type node struct {
	line   int
	stated bool // has an affinity
	mask   mask
}

type reader struct {
	cpus    int // elements
	host    string
	nodes   map[int]*node
	seen    map[string]int // lines of GPUs and NICs
	gpus    []topology.GPU
	nics    []topology.NIC
	unnamed []string // functions without a class
	unknown []string
}

func (r *reader) say(format string, args ...any) {
	r.unknown = append(r.unknown, fmt.Sprintf(format, args...))
}

// maxNodes is the kernel's largest MAX_NUMNODES.
const maxNodes = 1024

func (r *reader) cpu(e *xmltree.Element) error {
	host := e.Get("host_hash")
	if r.cpus++; r.cpus > 1 && host != r.host {
		return e.Errorf("host_hash %q after %q: describes more than one machine", clip(host), clip(r.host))
	}
	r.host = host
	id := -1
	if text, ok := e.Attribute("numaid"); ok && text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < -1 || n >= maxNodes {
			return e.Errorf("numaid %q: want a number from -1 to %d", clip(text), maxNodes-1)
		}
		id = n
	}
	if id >= 0 {
		if err := r.node(e, id); err != nil {
			return err
		}
	}
	return r.below(e, id, nil)
}

func (r *reader) node(e *xmltree.Element, id int) error {
	found := &node{line: e.Line}
	if text := e.Get("affinity"); text != "" {
		var err error
		if found.mask, err = parseMask(text); err != nil {
			return e.Errorf("%w", err)
		}
		found.stated = true
	}
	if before := r.nodes[id]; before != nil {
		if !before.mask.cpus.Equal(found.mask.cpus) {
			return e.Errorf("numaid %d: has CPUs %q here and %q in line %d", id, found.mask.cpus, before.mask.cpus, before.line)
		}
		return nil
	}
	r.nodes[id] = found
	return nil
}

// below reads the functions below a node or a bridge.
func (r *reader) below(e *xmltree.Element, id int, bridges []topology.Bridge) error {
	for _, child := range e.Children {
		if child.Name != "pci" {
			continue
		}
		if err := r.pci(child, id, bridges); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) pci(e *xmltree.Element, id int, bridges []topology.Bridge) error {
	pci, err := topology.NormalizePCI(e.Get("busid"))
	if err != nil {
		return e.Errorf("busid: %w", err)
	}
	class := strings.TrimPrefix(e.Get("class"), "0x")
	var nodes idset.Set
	from := ""
	if id >= 0 {
		nodes, from = idset.Of(id), fromFile
	}
	gpu, nic := has(e, "gpu") || isGPU(class), has(e, "nic") || strings.HasPrefix(class, "02")
	if gpu || nic { // switches are repeated in files that were written by hand
		if line, ok := r.seen[pci]; ok {
			return e.Errorf("%s is in line %d already", pci, line)
		}
		r.seen[pci] = e.Line
	}
	switch {
	case gpu:
		r.gpus = append(r.gpus, topology.GPU{
			PCI: pci, Minor: -1, NUMANode: id, Bridges: slices.Clone(bridges), Nodes: nodes, NodesFrom: from,
		})
	case nic:
		r.nics = append(r.nics, topology.NIC{PCI: pci, Names: netNames(e), NUMANode: id, Bridges: slices.Clone(bridges), Nodes: nodes})
	case class == "" && len(e.Children) == 0:
		r.unnamed = append(r.unnamed, pci)
	}
	return r.below(e, id, append([]topology.Bridge{{PCI: pci, NUMANode: id}}, bridges...))
}

// isGPU tells by the class: display controllers, and the accelerators that AMD
// makes. NVSwitches are bridges of class 0680.
func isGPU(class string) bool {
	return strings.HasPrefix(class, "03") || strings.HasPrefix(class, "1200")
}

func has(e *xmltree.Element, name string) bool {
	return slices.ContainsFunc(e.Children, func(child *xmltree.Element) bool { return child.Name == name })
}

func netNames(e *xmltree.Element) []string {
	var names []string
	for _, nic := range e.Children {
		if nic.Name != "nic" {
			continue
		}
		for _, net := range nic.Children {
			if name := net.Get("name"); net.Name == "net" && name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

func (r *reader) machine() *topology.Machine {
	m := &topology.Machine{
		Source: topology.KindNCCL, Nodes: []topology.Node{}, Packages: []topology.Package{}, Cores: []topology.Core{},
		L3: []topology.L3Group{}, GPUs: r.gpus, NICs: r.nics,
	}
	doubted := r.doubt(m)
	for id, node := range r.nodes {
		n := topology.Node{ID: id, MemoryMiB: topology.MemoryUnknown}
		if !doubted.Has(id) {
			n.CPUs = node.mask.cpus
		}
		m.Nodes = append(m.Nodes, n)
		m.CPUs = m.CPUs.Or(node.mask.cpus)
	}
	slices.SortFunc(m.Nodes, func(a, b topology.Node) int { return cmp.Compare(a.ID, b.ID) })
	m.SortDevices()
	var nowhere []string
	for i := range m.GPUs {
		gpu := &m.GPUs[i]
		if gpu.Nodes.Empty() {
			nowhere = append(nowhere, gpu.PCI)
			continue
		}
		gpu.CPUs = r.nodes[gpu.NUMANode].mask.cpus
		gpu.CPUsDoubted = doubted.Has(gpu.NUMANode) && !gpu.CPUs.Empty()
	}
	r.sayWhatIsMissing(m, nowhere)
	return m
}

func (r *reader) sayWhatIsMissing(m *topology.Machine, nowhere []string) {
	var silent idset.Set
	for id, node := range r.nodes {
		if !node.stated {
			silent.Add(id)
		}
	}
	if !silent.Empty() {
		r.say("The CPUs of node %s are not stated.", silent)
	}
	if len(nowhere) > 0 {
		r.say("The NUMA node of GPU %s is not stated.", strings.Join(nowhere, ", "))
	}
	if len(r.unnamed) > 0 {
		r.say("What PCI function %s is, is not stated: it has no class.", strings.Join(r.unnamed, ", "))
	}
	if len(m.GPUs) == 0 {
		r.say("GPUs are not stated.")
	}
	r.say("CPUs and nodes that are near no device of the file may be missing.")
	r.say("Memory, distances, packages, cores and caches are not stated.")
}
