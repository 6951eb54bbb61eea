package draw

import (
	"slices"

	"gputune/internal/idset"
)

const (
	cell     = 12 // side of a core
	cellStep = 14 // from one core to the next
	cellRow  = 18 // most cores in a row

	leastCache = 70 // width of an L3 group, for its CPUs in two lines
)

// caches draws CPUs as cores, those of each L3 group together.
func (p *painter) caches(cpus idset.Set) group {
	if cpus.Empty() {
		return group{}
	}
	var groups []group
	rest := cpus
	for _, l3 := range p.m.L3 {
		if in := l3.CPUs.And(rest); !in.Empty() {
			name := "L3 "
			if !in.Equal(l3.CPUs.And(p.m.CPUs)) {
				name = "part of L3, " // the rest is another node's
			}
			groups = append(groups, p.cache(name, in))
			rest = rest.AndNot(in)
		}
	}
	if !rest.Empty() {
		groups = append(groups, p.cache("", rest))
	}
	return flow(groups, nodeWidth-2*pad, 6)
}

// cache draws the cores of one L3 group, with its CPUs below if they are one.
func (p *painter) cache(name string, cpus idset.Set) group {
	var cores []idset.Set
	rest := cpus
	for _, core := range p.m.Cores {
		if in := core.CPUs.And(cpus); !in.Empty() {
			cores = append(cores, in)
			rest = rest.AndNot(in)
		}
	}
	for cpu := range rest.All() {
		cores = append(cores, idset.Of(cpu))
	}
	rows := (len(cores) + cellRow - 1) / cellRow
	columns := (len(cores) + rows - 1) / rows
	var grid group
	for i, core := range cores {
		grid.put(i%columns*cellStep, i/columns*cellStep, p.core(core))
	}
	if name != "" {
		text := name + cpus.String()
		width := max(grid.w, leastCache)
		grid = stack(3, grid, paragraph(text, small, width, 2, Shape{Fill: faint, Title: text}))
		grid.w = max(grid.w, width)
	}
	return frame(grid, 4, Shape{Fill: cacheBG})
}

// core draws one core: grey if nobody's, white if not granted, else in the colours
// of its tasks, a row for each hardware thread where they differ.
func (p *painter) core(cpus idset.Set) group {
	var rows []thread
	same := true
	for cpu := range cpus.All() {
		row := thread{granted: p.granted.Has(cpu)}
		for i, t := range p.tasks {
			if t.binding.CPUs.Has(cpu) {
				row.owners = append(row.owners, i)
			}
		}
		same = same && (len(rows) == 0 || row.equal(rows[0]))
		rows = append(rows, row)
	}
	title := "cpus " + cpus.String()
	if same {
		rows = rows[:1]
		switch {
		case len(rows[0].owners) > 0:
			title += ", " + p.names(rows[0].owners)
		case !rows[0].granted:
			title += ", not granted"
		}
	}
	var g group
	g.add(Shape{Kind: Box, W: cell, H: cell, Fill: paper, Stroke: coreBG, Title: title})
	for i, row := range rows {
		top, bottom := i*cell/len(rows), (i+1)*cell/len(rows)
		switch {
		case len(row.owners) > 0:
			g.put(0, 0, p.stripes(row.owners, 0, top, cell, bottom-top, title))
		case row.granted:
			g.add(Shape{Kind: Area, Y: top, W: cell, H: bottom - top, Fill: coreBG, Title: title})
		}
	}
	return g
}

// thread is one hardware thread of a core.
type thread struct {
	granted bool
	owners  []int // tasks
}

func (t thread) equal(other thread) bool {
	return t.granted == other.granted && slices.Equal(t.owners, other.owners)
}

const mostStripes = 6

// stripes fills a place with the colours of tasks beside each other; of many, with
// some of theirs.
func (p *painter) stripes(owners []int, x, y, w, h int, title string) group {
	var g group
	count := min(len(owners), max(mostStripes, w/4))
	for i := range count {
		left, right := i*w/count, (i+1)*w/count
		g.add(Shape{Kind: Area, X: x + left, Y: y, W: right - left, H: h, Fill: taskColour(owners[i*len(owners)/count]), Title: title})
	}
	return g
}
