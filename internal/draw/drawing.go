// Package draw makes pictures of machines and of plans: packages, NUMA nodes, L3
// groups, cores, and the GPUs and NICs where they hang. A picture is a list of
// shapes with places, which can be checked, and is written as SVG. The package
// does no I/O of its own.
package draw

// Drawing is a picture. Lengths are in pixels, from the upper left corner.
type Drawing struct {
	Width, Height int
	Title         string // what it shows, for those who cannot see it
	Shapes        []Shape
}

// Kind is what a shape is.
type Kind int

// The kinds of shapes.
const (
	Box  Kind = iota // encloses or keeps apart: boxes are inside one another or do not touch
	Area             // a coloured part of a box
	Text             // one line
	Line             // from (X, Y) to (X+W, Y+H)
)

// Shape is one thing drawn. Later ones cover earlier ones.
type Shape struct {
	Kind       Kind
	X, Y, W, H int
	Fill       string // colour, "": none; of a Text its own
	Stroke     string // colour of the border or line, "": none
	Dashed     bool
	Text       string // of a Text
	Size       int    // of a Text: height of the font
	Bold       bool
	Title      string // shown when pointed at
}

// group is shapes that keep their places to each other.
type group struct {
	w, h   int
	shapes []Shape
}

// add adds a shape and makes room for it.
func (g *group) add(s Shape) {
	g.shapes = append(g.shapes, s)
	g.w, g.h = max(g.w, s.X+s.W), max(g.h, s.Y+s.H)
}

// put adds the shapes of another group, moved to a place.
func (g *group) put(x, y int, other group) {
	for _, s := range other.shapes {
		s.X, s.Y = s.X+x, s.Y+y
		g.shapes = append(g.shapes, s)
	}
	g.w, g.h = max(g.w, x+other.w), max(g.h, y+other.h)
}

// stack puts groups below each other.
func stack(gap int, groups ...group) group {
	var all group
	for _, g := range groups {
		if g.h == 0 {
			continue
		}
		y := 0
		if all.h > 0 {
			y = all.h + gap
		}
		all.put(0, y, g)
	}
	return all
}

// flow puts groups beside each other in as few rows as fit the width, about the
// same number in each.
func flow(groups []group, width, gap int) group {
	rows := 1
	for rows < len(groups) {
		widest := 0
		for _, row := range inRows(groups, rows) {
			widest = max(widest, rowWidth(row, gap))
		}
		if widest <= width {
			break
		}
		rows++
	}
	var all group
	for _, row := range inRows(groups, rows) {
		y := 0
		if all.h > 0 {
			y = all.h + gap
		}
		x := 0
		for _, g := range row {
			all.put(x, y, g)
			x += g.w + gap
		}
	}
	return all
}

func inRows(groups []group, rows int) [][]group {
	var split [][]group
	if len(groups) == 0 {
		return nil
	}
	each := (len(groups) + rows - 1) / rows
	for len(groups) > each {
		split = append(split, groups[:each])
		groups = groups[each:]
	}
	return append(split, groups)
}

func rowWidth(row []group, gap int) int {
	width := -gap
	for _, g := range row {
		width += g.w + gap
	}
	return width
}

// frame puts a box around a group.
func frame(g group, pad int, box Shape) group {
	box.Kind, box.X, box.Y, box.W, box.H = Box, 0, 0, g.w+2*pad, g.h+2*pad
	var framed group
	framed.add(box)
	framed.put(pad, pad, g)
	return framed
}
