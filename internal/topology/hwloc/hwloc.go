// Package hwloc reads hwloc's XML, what "lstopo file.xml" writes, in the forms
// of hwloc 1, 2 and 3 (hwloc.dtd, hwloc2.dtd, hwloc3.dtd).
package hwloc

import (
	"fmt"
	"strings"

	"gputune/internal/idset"
	"gputune/internal/topology"
	"gputune/internal/topology/xmltree"
)

// Detect tells whether a text begins as these files do.
func Detect(text []byte) bool { return xmltree.Root(text) == "topology" }

// Parse reads a file. It returns with the machine what the file leaves unknown,
// one sentence each. An error names the line and what is wrong in it.
//
// What hwloc was told to leave out when it wrote the file is not in it: the
// CPUs that the calling process may not use, or PCI devices without drivers.
func Parse(text []byte) (*topology.Machine, []string, error) {
	root, err := xmltree.Parse(text)
	if err != nil {
		return nil, nil, err
	}
	if root.Name != "topology" {
		return nil, nil, root.Errorf("want <topology> as the root of hwloc's XML")
	}
	version := root.Get("version") // hwloc 1 wrote none
	if major, _, _ := strings.Cut(version, "."); version != "" && major != "1" && major != "2" && major != "3" {
		return nil, nil, root.Errorf("version %q: want 1, 2 or 3", version)
	}
	r := &reader{
		m: &topology.Machine{
			Source: topology.KindHwloc, Nodes: []topology.Node{}, Packages: []topology.Package{}, Cores: []topology.Core{},
			L3: []topology.L3Group{}, GPUs: []topology.GPU{}, NICs: []topology.NIC{},
		},
		subtype: make(map[int]string),
		seen:    make(map[string]int),
	}
	for _, child := range root.Children {
		switch child.Name {
		case "object":
			err = r.object(child, place{})
		case "distances2":
			err = r.distances2(child)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	if r.m.CPUs.Empty() {
		return nil, nil, root.Errorf("no PU in it")
	}
	if err := r.finish(); err != nil {
		return nil, nil, err
	}
	if r.m.CPUs.Empty() {
		return nil, nil, root.Errorf("no PU that is online")
	}
	return r.m, r.unknown, nil
}

// place is where in the tree an object is.
type place struct {
	cpus    idset.Set // of the nearest object above that has CPUs
	bridges []topology.Bridge
}

type reader struct {
	m       *topology.Machine
	order   []int          // nodes in the order of the file, which hwloc 1's distances have
	subtype map[int]string // of nodes: "MCDRAM", "GPUMemory"
	seen    map[string]int // lines of PCI devices
	memory  int64          // MiB of a machine without nodes
	online  *idset.Set     // hwloc 1 lists those
	old     []*xmltree.Element
	unknown []string
}

// object reads an object and those below it.
func (r *reader) object(e *xmltree.Element, at place) error {
	if text, ok := e.Attribute("cpuset"); ok {
		cpus, err := parseBitmap(text)
		if err != nil {
			return e.Errorf("cpuset: %w", err)
		}
		at = place{cpus: cpus}
	}
	var err error
	switch kind := e.Get("type"); kind {
	case "Machine", "System":
		err = r.machine(e)
	case "PU":
		err = r.pu(e)
	case "Core":
		if !at.cpus.Empty() {
			r.m.Cores = append(r.m.Cores, topology.Core{CPUs: at.cpus})
		}
	case "Package", "Socket":
		err = r.pkg(e, at)
	case "NUMANode", "Node":
		err = r.node(e, at)
	case "L3Cache":
		r.l3(at)
	case "Cache":
		if e.Get("depth") == "3" && e.Get("cache_type") != "2" { // 2: instructions
			r.l3(at)
		}
	case "Bridge":
		at, err = r.bridge(e, at)
	case "PCIDev":
		at, err = r.pci(e, at)
	}
	if err != nil {
		return err
	}
	for _, child := range e.Children {
		switch child.Name {
		case "object":
			if err := r.object(child, at); err != nil {
				return err
			}
		case "distances": // of hwloc 1, for objects below this one
			r.old = append(r.old, child)
		}
	}
	return nil
}

func (r *reader) machine(e *xmltree.Element) error {
	if text, ok := e.Attribute("online_cpuset"); ok {
		online, err := parseBitmap(text)
		if err != nil {
			return e.Errorf("online_cpuset: %w", err)
		}
		r.online = &online
	}
	var err error
	r.memory, err = number(e, "local_memory", 1<<62)
	r.memory >>= 20
	return err
}

func (r *reader) pu(e *xmltree.Element) error {
	cpu, err := number(e, "os_index", idset.Limit-1)
	if err != nil {
		return err
	}
	if cpu < 0 {
		return e.Errorf("a PU without os_index")
	}
	if r.m.CPUs.Has(int(cpu)) {
		return e.Errorf("PU %d is there twice", cpu)
	}
	r.m.CPUs.Add(int(cpu))
	return nil
}

func (r *reader) pkg(e *xmltree.Element, at place) error {
	id, err := number(e, "os_index", 1<<31-1)
	if err != nil {
		return err
	}
	if !at.cpus.Empty() {
		r.m.Packages = append(r.m.Packages, topology.Package{ID: int(id), CPUs: at.cpus})
	}
	return nil
}

// maxNodes is the kernel's largest MAX_NUMNODES.
const maxNodes = 1024

func (r *reader) node(e *xmltree.Element, at place) error {
	id, err := number(e, "os_index", maxNodes-1)
	if err != nil {
		return err
	}
	if id < 0 {
		return e.Errorf("a node without os_index")
	}
	for _, other := range r.m.Nodes {
		if other.ID == int(id) {
			return e.Errorf("node %d is there twice", id)
		}
	}
	memory, err := number(e, "local_memory", 1<<62)
	if err != nil {
		return err
	}
	r.m.Nodes = append(r.m.Nodes, topology.Node{ID: int(id), CPUs: at.cpus, MemoryMiB: max(memory, 0) >> 20})
	r.order = append(r.order, int(id))
	r.subtype[int(id)] = e.Get("subtype")
	return nil
}

func (r *reader) l3(at place) {
	if !at.cpus.Empty() {
		r.m.L3 = append(r.m.L3, topology.L3Group{CPUs: at.cpus})
	}
}

func (r *reader) say(format string, args ...any) {
	r.unknown = append(r.unknown, fmt.Sprintf(format, args...))
}
