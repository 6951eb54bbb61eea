package draw

import (
	"fmt"
	"slices"
	"strings"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

// device is a GPU or a NIC by its position.
type device struct {
	nic   bool
	index int
}

func (p *painter) nodesOf(d device) idset.Set {
	if d.nic {
		return p.m.NICs[d.index].Nodes
	}
	return p.m.GPUs[d.index].Nodes
}

func (p *painter) bridgesOf(d device) []topology.Bridge {
	if d.nic {
		return p.m.NICs[d.index].Bridges
	}
	return p.m.GPUs[d.index].Bridges
}

// devicesOf returns the devices that are not drawn yet and whose nodes are wanted.
func (p *painter) devicesOf(wanted func(nodes idset.Set) bool) []device {
	var all []device
	for i := range p.m.GPUs {
		all = append(all, device{false, i})
	}
	for i := range p.m.NICs {
		all = append(all, device{true, i})
	}
	return slices.DeleteFunc(all, func(d device) bool { return p.hung[d] || !wanted(p.nodesOf(d)) })
}

// hang draws devices below what they are near to, with a line to each row.
func (p *painter) hang(devices []device, width int) group {
	if len(devices) == 0 {
		return group{}
	}
	const rail, indent = 6, 18
	ports := p.ports(devices)
	var all group
	y := gap
	rows := [][]group{nil}
	used := 0
	for _, port := range ports {
		if used > 0 && indent+used+gap+port.w > width {
			rows = append(rows, nil)
			used = 0
		}
		rows[len(rows)-1] = append(rows[len(rows)-1], port)
		used += port.w + gap
	}
	var lines []Shape
	for i, row := range rows {
		x, height, middle := indent, 0, y+20
		from := rail
		for _, port := range row {
			lines = append(lines, Shape{Kind: Line, X: from, Y: middle, W: x - from, Stroke: ink})
			all.put(x, y, port)
			from = x + port.w
			x = from + gap
			height = max(height, port.h)
		}
		if i == len(rows)-1 {
			lines = append(lines, Shape{Kind: Line, X: rail, W: 0, H: middle, Stroke: ink})
		}
		y += height + gap
	}
	for _, s := range lines {
		all.add(s)
	}
	return all
}

// chips draws devices that hang nowhere.
func (p *painter) chips(devices []device, width int) group {
	return flow(p.ports(devices), width, gap)
}

// ports draws devices, those below one root port in a box.
func (p *painter) ports(devices []device) []group {
	var all []group
	for len(devices) > 0 {
		port := p.portOf(devices[0])
		var mates, rest []device
		for i, d := range devices {
			if i == 0 || port != "" && p.portOf(d) == port {
				mates = append(mates, d)
			} else {
				rest = append(rest, d)
			}
		}
		devices = rest
		// Those below one switch beside each other, its GPUs first.
		slices.SortStableFunc(mates, func(a, b device) int {
			return strings.Compare(p.switchOf(a), p.switchOf(b))
		})
		var chips []group
		for _, d := range mates {
			p.hung[d] = true
			chips = append(chips, p.chip(d))
		}
		if len(chips) == 1 {
			all = append(all, chips[0])
			continue
		}
		label := paragraph("PCIe port "+port, small, nodeWidth, 1, Shape{Fill: faint})
		all = append(all, frame(stack(4, label, flow(chips, nodeWidth-40, 6)), 6, Shape{Stroke: edge, Dashed: true}))
	}
	return all
}

func (p *painter) portOf(d device) string {
	if bridges := p.bridgesOf(d); len(bridges) > 0 {
		return bridges[len(bridges)-1].PCI
	}
	return ""
}

func (p *painter) switchOf(d device) string {
	if bridges := p.bridgesOf(d); len(bridges) > 0 {
		return bridges[0].PCI
	}
	return ""
}

// chip draws one device.
func (p *painter) chip(d device) group {
	if d.nic {
		nic := &p.m.NICs[d.index]
		names := strings.Join(nic.Names, " ")
		if names == "" {
			names = "NIC"
		}
		return p.box(Shape{Fill: nicBG, Stroke: edge, Title: "NIC " + nic.PCI + " " + names}, nil, names, nic.PCI)
	}
	gpu := &p.m.GPUs[d.index]
	box := Shape{Fill: gpuBG, Stroke: edge, Title: strings.TrimSpace(fmt.Sprintf("GPU %s %s %s", gpu.PCI, gpu.Model, gpu.UUID))}
	lines := []string{fmt.Sprintf("GPU %d", gpu.Index), gpu.PCI, strings.TrimPrefix(gpu.Model, "NVIDIA ")}
	switch {
	case gpu.Nodes.Empty():
		box.Stroke, box.Dashed = alarm, true
	case gpu.NodesFrom != "":
		lines = append(lines, gpu.NodesFrom)
	}
	if len(gpu.MIG) > 0 {
		lines = append(lines, fmt.Sprintf("MIG: %d instances", len(gpu.MIG)))
	}
	var owners []int
	for i, t := range p.tasks {
		if slices.Contains(t.binding.GPUs, d.index) {
			owners = append(owners, i)
		}
	}
	if len(owners) > 0 {
		lines = append(lines, p.names(owners))
	}
	return p.box(box, owners, lines...)
}

// box writes lines into a box, the first one bold, under the colours of tasks.
func (p *painter) box(box Shape, owners []int, lines ...string) group {
	var parts []group
	for i, text := range lines {
		size := small
		if i == 0 {
			size = normal
		}
		parts = append(parts, paragraph(text, size, 150, 2, Shape{Bold: i == 0}))
	}
	inside := stack(1, parts...)
	inside.w = max(inside.w, 90)
	if len(owners) > 0 {
		inside = stack(4, p.stripes(owners, 0, 0, inside.w, 8, p.names(owners)), inside)
	}
	return frame(inside, 5, box)
}
