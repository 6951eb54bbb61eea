package hwloc

import (
	"math"
	"strconv"
	"strings"

	"gputune/internal/topology/xmltree"
)

// distances2 reads a matrix of hwloc 2 and 3. The firmware's, which the kernel
// reports, is called NUMALatency; hwloc has others of its own.
func (r *reader) distances2(e *xmltree.Element) error {
	if e.Get("type") != "NUMANode" || e.Get("name") != "NUMALatency" || e.Get("indexing") != "os" {
		return nil
	}
	var ids, values []string
	for _, child := range e.Children {
		switch child.Name {
		case "indexes":
			ids = append(ids, strings.Fields(child.Text)...)
		case "u64values":
			values = append(values, strings.Fields(child.Text)...)
		}
	}
	nodes := make([]int, len(ids))
	for i, text := range ids {
		id, err := strconv.Atoi(text)
		if err != nil || id < 0 || id >= maxNodes {
			return e.Errorf("index %q: want the number of a node", clip(text))
		}
		nodes[i] = id
	}
	distances := make([]int, len(values))
	for i, text := range values {
		distance, err := strconv.Atoi(text)
		if err != nil || distance < 0 || distance > maxDistance {
			return e.Errorf("distance %q: want a number up to %d", clip(text), maxDistance)
		}
		distances[i] = distance
	}
	return r.setDistances(e, nodes, distances)
}

// maxDistance is far above the firmware's largest, 255.
const maxDistance = 1 << 15

// distances1 reads a matrix of hwloc 1: multiples of a base, between the nodes
// in the order of the file.
func (r *reader) distances1(e *xmltree.Element) error {
	count, err := number(e, "nbobjs", maxNodes)
	if err != nil {
		return err
	}
	if int(count) != len(r.order) {
		return nil // between other objects than nodes
	}
	base, err := strconv.ParseFloat(e.Get("latency_base"), 64)
	if err != nil {
		return e.Errorf("latency_base %q: want a number", clip(e.Get("latency_base")))
	}
	var distances []int
	for _, child := range e.Children {
		if child.Name != "latency" {
			continue
		}
		value, err := strconv.ParseFloat(child.Get("value"), 64)
		distance := math.Round(value * base)
		if err != nil || !(distance >= 0 && distance <= maxDistance) {
			return child.Errorf("value %q: want a number up to %d when multiplied by %g", clip(child.Get("value")), maxDistance, base)
		}
		distances = append(distances, int(distance))
	}
	return r.setDistances(e, r.order, distances)
}

func (r *reader) setDistances(e *xmltree.Element, nodes, distances []int) error {
	if len(distances) != len(nodes)*len(nodes) {
		return e.Errorf("%d distances between %d nodes: want %d", len(distances), len(nodes), len(nodes)*len(nodes))
	}
	for i, from := range nodes {
		for k := range r.m.Nodes {
			if node := &r.m.Nodes[k]; node.ID == from {
				node.Distances = make(map[int]int, len(nodes))
				for j, to := range nodes {
					node.Distances[to] = distances[i*len(nodes)+j]
				}
			}
		}
	}
	return nil
}
