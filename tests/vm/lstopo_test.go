//go:build vm

package vm

import (
	"encoding/xml"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gputune/internal/idset"
)

// layout is the machine as lstopo describes it.
type layout struct {
	cpus     idset.Set // all
	nodes    []node    // by id
	packages []idset.Set
	cores    []idset.Set
	l3       []idset.Set
	// local has for each PCI device, by its address, the nodes with CPUs that it
	// is near to; none where it is near to all of several.
	local map[string]idset.Set
}

type node struct {
	id        int
	cpus      idset.Set
	memory    int64       // bytes
	distances map[int]int // to other nodes
}

// object is hwloc's <object>, of which these are parts.
type object struct {
	Type    string   `xml:"type,attr"`
	OSIndex int      `xml:"os_index,attr"`
	CPUs    string   `xml:"cpuset,attr"`
	Nodes   string   `xml:"nodeset,attr"`
	Memory  int64    `xml:"local_memory,attr"`
	PCI     string   `xml:"pci_busid,attr"`
	Objects []object `xml:"object"`
}

type distances struct {
	Name    string   `xml:"name,attr"`
	Indexes []string `xml:"indexes"`
	Values  []string `xml:"u64values"`
}

// parseLstopo reads "lstopo-no-graphics --of xml", hwloc's format 2.0. hwloc hangs
// nodes of memory alone beside the nearest node with CPUs and gives them that
// node's; which those are, the machine was built with.
func parseLstopo(text string, memoryOnly idset.Set) (*layout, error) {
	var document struct {
		Objects   []object    `xml:"object"`
		Distances []distances `xml:"distances2"`
	}
	if err := xml.Unmarshal([]byte(text), &document); err != nil {
		return nil, fmt.Errorf("lstopo: %w", err)
	}
	if len(document.Objects) != 1 || document.Objects[0].Type != "Machine" {
		return nil, fmt.Errorf("lstopo: %d objects at the top: want one Machine", len(document.Objects))
	}
	l := &layout{local: map[string]idset.Set{}}
	near := map[string]idset.Set{}
	if err := l.walk(document.Objects[0], idset.Set{}, near); err != nil {
		return nil, fmt.Errorf("lstopo: %w", err)
	}
	slices.SortFunc(l.nodes, func(a, b node) int { return a.id - b.id })
	var placed idset.Set
	for i := range l.nodes {
		n := &l.nodes[i]
		if memoryOnly.Has(n.id) {
			n.cpus = idset.Set{}
		}
		if !n.cpus.And(placed).Empty() {
			return nil, fmt.Errorf("lstopo: CPUs %s are on several nodes", n.cpus.And(placed))
		}
		placed = placed.Or(n.cpus)
	}
	hosts := l.nodesWithCPUs()
	for pci, nodes := range near {
		if nodes = nodes.And(hosts); hosts.Len() > 1 && nodes.Equal(hosts) {
			nodes = idset.Set{}
		}
		l.local[pci] = nodes
	}
	return l, l.measure(document.Distances)
}

// walk collects the object and what is in it; nodes are those of the nearest
// object above that is no I/O device, which is where hwloc hangs devices.
func (l *layout) walk(o object, nodes idset.Set, near map[string]idset.Set) error {
	cpus, err := parseMask(o.CPUs)
	if err != nil {
		return err
	}
	switch o.Type {
	case "Machine":
		l.cpus = cpus
	case "NUMANode":
		l.nodes = append(l.nodes, node{id: o.OSIndex, cpus: cpus, memory: o.Memory, distances: map[int]int{}})
	case "Package":
		l.packages = append(l.packages, cpus)
	case "Core":
		l.cores = append(l.cores, cpus)
	case "L3Cache":
		l.l3 = append(l.l3, cpus)
	case "PCIDev":
		near[o.PCI] = nodes
	}
	if o.Nodes != "" {
		if nodes, err = parseMask(o.Nodes); err != nil {
			return err
		}
	}
	for _, child := range o.Objects {
		if err := l.walk(child, nodes, near); err != nil {
			return err
		}
	}
	return nil
}

func (l *layout) measure(all []distances) error {
	for _, d := range all {
		if d.Name != "NUMALatency" {
			continue
		}
		ids, values := strings.Fields(strings.Join(d.Indexes, " ")), strings.Fields(strings.Join(d.Values, " "))
		if len(ids) != len(l.nodes) || len(values) != len(ids)*len(ids) {
			return fmt.Errorf("lstopo: %d distances of %d nodes", len(values), len(ids))
		}
		for i, id := range ids {
			if id != strconv.Itoa(l.nodes[i].id) {
				return fmt.Errorf("lstopo: distances of node %s in place of %d", id, l.nodes[i].id)
			}
			for k, other := range l.nodes {
				value, err := strconv.Atoi(values[i*len(ids)+k])
				if err != nil {
					return fmt.Errorf("lstopo: distance: %w", err)
				}
				l.nodes[i].distances[other.id] = value
			}
		}
		return nil
	}
	return fmt.Errorf("lstopo: no distances between nodes")
}

// parseMask reads hwloc's masks: words of 32 bits in hexadecimal, the highest
// first, where an empty word is zero.
func parseMask(mask string) (idset.Set, error) {
	var set idset.Set
	if mask == "" {
		return set, nil
	}
	words := strings.Split(mask, ",")
	for i, text := range words {
		if text == "" {
			continue
		}
		word, err := strconv.ParseUint(strings.TrimPrefix(text, "0x"), 16, 32)
		if err != nil {
			return set, fmt.Errorf("mask %q: %w", mask, err)
		}
		for bit := range 32 {
			if word>>bit&1 != 0 {
				set.Add((len(words)-1-i)*32 + bit)
			}
		}
	}
	return set, nil
}

func (l *layout) node(id int) node {
	for _, n := range l.nodes {
		if n.id == id {
			return n
		}
	}
	panic(fmt.Sprintf("lstopo knows no node %d", id))
}

// nodesWithCPUs are the places for tasks.
func (l *layout) nodesWithCPUs() idset.Set {
	var ids idset.Set
	for _, n := range l.nodes {
		if !n.cpus.Empty() {
			ids.Add(n.id)
		}
	}
	return ids
}

// cpusOf returns all CPUs of the nodes.
func (l *layout) cpusOf(nodes idset.Set) idset.Set {
	var cpus idset.Set
	for id := range nodes.All() {
		cpus = cpus.Or(l.node(id).cpus)
	}
	return cpus
}

// nearestTo returns those of the CPUs that are on the node, or on the nodes that
// are equally near, with the smallest distance to any of the given ones.
func (l *layout) nearestTo(from, cpus idset.Set) idset.Set {
	var nearest idset.Set
	best := 0
	for _, n := range l.nodes {
		here := n.cpus.And(cpus)
		if here.Empty() {
			continue
		}
		for id := range from.All() {
			switch distance := l.node(id).distances[n.id]; {
			case best == 0 || distance < best:
				nearest, best = here, distance
			case distance == best:
				nearest = nearest.Or(here)
			}
		}
	}
	return nearest
}

// parts returns what lies in cpus of each of the sets, without empty ones.
func parts(sets []idset.Set, cpus idset.Set) []idset.Set {
	var in []idset.Set
	for _, set := range sets {
		if part := set.And(cpus); !part.Empty() {
			in = append(in, part)
		}
	}
	return in
}
