package draw

import (
	"fmt"
	"slices"
	"strings"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

// The widths that rows of things are broken at.
const (
	machineWidth = 1280
	nodeWidth    = 330
	pad          = 8
	gap          = 10
)

// Machine draws a machine.
func Machine(m *topology.Machine) Drawing {
	p := painter{m: m, granted: m.CPUs}
	return p.drawing(p.summary(), group{})
}

// painter draws the parts of a machine.
type painter struct {
	m       *topology.Machine
	granted idset.Set
	tasks   []task // of a plan
	hung    map[device]bool
}

// drawing puts the whole picture together. legend is what stands above the
// machine.
func (p *painter) drawing(title string, legend group) Drawing {
	p.hung = make(map[device]bool)
	packages := p.packages()
	body := stack(gap*2, flow(packages, machineWidth, gap*2), p.spanning(), p.memoryOnly(), p.lost())
	width := max(body.w, legend.w, 560)
	picture := stack(gap*2,
		paragraph(title, large, width, 3, Shape{Bold: true}), legend, body, p.remarks(width))
	var all group
	all.put(gap*2, gap*2, picture)
	return Drawing{Width: all.w + gap*2, Height: all.h + gap*2, Title: title, Shapes: all.shapes}
}

func (p *painter) summary() string {
	var parts []string
	for _, count := range []struct {
		n    int
		word string
	}{
		{len(p.m.Packages), "package"},
		{len(p.m.Nodes), "NUMA node"},
		{len(p.m.Cores), "core"},
		{p.m.CPUs.Len(), "CPU"},
		{len(p.m.GPUs), "GPU"},
		{len(p.m.NICs), "NIC"},
	} {
		switch {
		case count.n == 1:
			parts = append(parts, "1 "+count.word)
		case count.n > 1:
			parts = append(parts, fmt.Sprintf("%d %ss", count.n, count.word))
		}
	}
	return strings.Join(parts, ", ")
}

// packages draws each package with its nodes. Nodes that no package is stated for
// stand for themselves.
func (p *painter) packages() []group {
	var all []group
	drawn := make(map[int]bool)
	for _, pkg := range p.m.Packages {
		var nodes []group
		var ids idset.Set
		rest := pkg.CPUs // of no node
		for i := range p.m.Nodes {
			node := &p.m.Nodes[i]
			if cpus := node.CPUs.And(pkg.CPUs); !cpus.Empty() {
				nodes = append(nodes, p.node(node, cpus, !drawn[node.ID]))
				drawn[node.ID] = true
				ids.Add(node.ID)
				rest = rest.AndNot(cpus)
			}
		}
		if !rest.Empty() {
			nodes = append(nodes, p.node(nil, rest, false))
		}
		name := "package"
		if pkg.ID >= 0 {
			name = fmt.Sprintf("package %d", pkg.ID)
		}
		inside := stack(gap,
			paragraph(name, normal, nodeWidth, 1, Shape{Bold: true}),
			p.between(flow(nodes, machineWidth-2*pad, gap), ids))
		all = append(all, frame(inside, pad, Shape{Fill: packageBG, Stroke: edge}))
	}
	for i := range p.m.Nodes {
		node := &p.m.Nodes[i]
		if !drawn[node.ID] && (len(p.m.Packages) == 0 || !node.CPUs.Empty()) {
			all = append(all, p.node(node, node.CPUs, true))
		}
	}
	if len(p.m.Packages) == 0 && len(p.m.Nodes) == 0 && !p.m.CPUs.Empty() {
		all = append(all, p.node(nil, p.m.CPUs, false))
	}
	return all
}

// between draws below nodes what is near to several of them.
func (p *painter) between(nodes group, ids idset.Set) group {
	shared := p.hang(p.devicesOf(func(nodes idset.Set) bool { return nodes.Len() > 1 && nodes.SubsetOf(ids) }), machineWidth-2*pad)
	if shared.h == 0 {
		return nodes
	}
	var bar group
	bar.add(Shape{Kind: Line, W: nodes.w, Stroke: ink})
	bar.put(0, 0, shared)
	text := "near to nodes " + ids.String()
	return stack(0, stack(gap/2, nodes, paragraph(text, small, nodes.w, 2, Shape{Fill: faint})), bar)
}

// node draws a node, or the part of it that cpus are, and below it what hangs on
// it; nil is CPUs of no node.
func (p *painter) node(node *topology.Node, cpus idset.Set, first bool) group {
	name, memory := "NUMA nodes not stated", group{}
	if node != nil {
		name = fmt.Sprintf("node %d", node.ID)
		if !first {
			name += " (continued)"
		} else {
			memory = p.memory(node)
		}
	}
	cores := p.caches(cpus)
	width := max(cores.w, memory.w, 190)
	list := "cpus " + cpus.String()
	if cpus.Empty() {
		list = "cpus not stated"
		if node.MemoryMiB != topology.MemoryUnknown && len(p.m.Packages) > 0 {
			list = "no cpus"
		}
	}
	inside := stack(5,
		paragraph(name, normal, width, 1, Shape{Bold: true}),
		paragraph(list, small, width, 2, Shape{Fill: faint, Title: list}),
		memory, cores)
	inside.w = max(inside.w, width)
	box := frame(inside, pad, Shape{Fill: nodeBG, Stroke: edge})
	if node == nil || !first {
		return box
	}
	own := p.devicesOf(func(nodes idset.Set) bool { return nodes.Equal(idset.Of(node.ID)) })
	return stack(0, box, p.hang(own, max(box.w, nodeWidth)))
}

// memory draws a node's memory and which tasks take theirs from it.
func (p *painter) memory(node *topology.Node) group {
	text := "memory not stated"
	switch {
	case node.MemoryMiB == 0:
		text = "no memory"
	case node.MemoryMiB >= 10<<10:
		text = fmt.Sprintf("memory %d GiB", node.MemoryMiB>>10)
	case node.MemoryMiB > 0:
		text = fmt.Sprintf("memory %d MiB", node.MemoryMiB)
	}
	var owners []int
	for i, t := range p.tasks {
		if t.binding.Mems.Has(node.ID) {
			owners = append(owners, i)
		}
	}
	if len(owners) > 0 {
		text += ": " + p.names(owners)
	}
	style := Shape{}
	if node.MemoryMiB == 0 {
		style.Fill = alarm
	}
	g := paragraph(text, small, 300, 2, style)
	if len(owners) > 0 {
		g = stack(3, g, p.stripes(owners, 0, 0, max(g.w, 150), 6, text))
	}
	return g
}

// memoryOnly draws the nodes that have memory and no CPUs, and names those that
// have neither.
func (p *painter) memoryOnly() group {
	var boxes []group
	var empty idset.Set
	for i := range p.m.Nodes {
		node := &p.m.Nodes[i]
		switch {
		case !node.CPUs.Empty() || len(p.m.Packages) == 0:
		case node.MemoryMiB == 0:
			empty.Add(node.ID)
		default:
			inside := stack(5, paragraph(fmt.Sprintf("node %d", node.ID), normal, nodeWidth, 1, Shape{Bold: true}), p.memory(node))
			boxes = append(boxes, frame(inside, pad, Shape{Fill: packageBG, Stroke: edge, Dashed: true}))
		}
	}
	var all group
	if len(boxes) > 0 {
		all = stack(gap/2, paragraph("nodes without CPUs: memory of a GPU or an expander, never a place for tasks", small, machineWidth, 2,
			Shape{Fill: faint}), flow(boxes, machineWidth, gap))
	}
	if !empty.Empty() {
		all = stack(gap, all, paragraph("nodes with neither CPUs nor memory: "+empty.String(), small, machineWidth/2, 2, Shape{Fill: faint}))
	}
	return all
}

// spanning draws devices that are near to nodes of several packages.
func (p *painter) spanning() group {
	var all []group
	var sets []idset.Set
	for _, d := range p.devicesOf(func(nodes idset.Set) bool { return !nodes.Empty() }) {
		if nodes := p.nodesOf(d); !slices.ContainsFunc(sets, nodes.Equal) {
			sets = append(sets, nodes)
		}
	}
	for _, set := range sets {
		all = append(all, stack(gap/2, paragraph("near to nodes "+set.String(), small, nodeWidth, 2, Shape{Fill: faint}),
			p.chips(p.devicesOf(set.Equal), machineWidth)))
	}
	return stack(gap, all...)
}

// lost draws devices whose node nobody knows.
func (p *painter) lost() group {
	unknown := p.devicesOf(func(idset.Set) bool { return true })
	if len(unknown) == 0 {
		return group{}
	}
	return stack(gap/2, paragraph("at no known node: they count as near to every one", small, machineWidth/2, 2, Shape{Fill: alarm, Bold: true}),
		p.chips(unknown, machineWidth))
}

const mostRemarks = 8

// remarks writes what looks wrong.
func (p *painter) remarks(width int) group {
	odd := p.m.Odd()
	var lines []group
	for i, text := range odd {
		if i == mostRemarks && len(odd) > mostRemarks+1 {
			lines = append(lines, paragraph(fmt.Sprintf("and %d more", len(odd)-mostRemarks), small, width, 1, Shape{Fill: alarm}))
			break
		}
		lines = append(lines, paragraph("! "+text, small, width, 3, Shape{Fill: alarm}))
	}
	return stack(2, lines...)
}
