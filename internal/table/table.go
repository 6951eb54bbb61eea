// Package table writes text in columns that fit a width: what is too long for
// its column goes on in the next line, broken after a comma or at a blank.
package table

import (
	"io"
	"strings"
	"unicode/utf8"
)

// Width is the width that tables are written for, in columns of a terminal.
const Width = 100

// Style is how a cell looks on a terminal with colours.
type Style string

// The styles, as the numbers of ECMA-48's SGR sequence.
const (
	Plain Style = ""
	Head  Style = "1"  // bold
	Good  Style = "32" // green
	Bad   Style = "31" // red
	Odd   Style = "33" // yellow
)

// Cell is one cell.
type Cell struct {
	Text  string
	Style Style
}

// Text returns a plain cell.
func Text(text string) Cell { return Cell{Text: text} }

// Table is a head and rows of as many cells. Cells that are empty show as "-".
type Table struct {
	Head []string
	Rows [][]Cell
}

// Add adds a row.
func (t *Table) Add(cells ...Cell) { t.Rows = append(t.Rows, cells) }

const gap = 2

// Write writes the table, no line of it wider than Width unless a single word is,
// with colours or without.
func (t *Table) Write(w io.Writer, colours bool) error {
	widths := t.widths()
	var b strings.Builder
	head := make([]Cell, len(t.Head))
	for i, text := range t.Head {
		head[i] = Cell{text, Head}
	}
	for _, row := range append([][]Cell{head}, t.Rows...) {
		writeRow(&b, row, widths, colours)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// widths gives each column what its widest cell needs, and takes from the widest
// column until all fit.
func (t *Table) widths() []int {
	widths := make([]int, len(t.Head))
	least := make([]int, len(t.Head))
	for i, head := range t.Head {
		widths[i], least[i] = length(head), length(head)
		for _, row := range t.Rows {
			widths[i] = max(widths[i], length(shown(row[i].Text)))
			for _, piece := range pieces(shown(row[i].Text)) {
				least[i] = max(least[i], length(strings.TrimRight(piece, " ")))
			}
		}
	}
	for {
		total, widest := -gap, -1
		for i, width := range widths {
			total += width + gap
			if width > least[i] && (widest < 0 || width > widths[widest]) {
				widest = i
			}
		}
		if total <= Width || widest < 0 {
			return widths
		}
		widths[widest]--
	}
}

func writeRow(b *strings.Builder, row []Cell, widths []int, colours bool) {
	cells := make([][]string, len(row))
	lines := 1
	for i, cell := range row {
		cells[i] = Wrap(shown(cell.Text), widths[i])
		lines = max(lines, len(cells[i]))
	}
	for line := range lines {
		blanks := 0
		for i, cell := range row {
			text := ""
			if line < len(cells[i]) {
				text = cells[i][line]
			}
			if text != "" {
				b.WriteString(strings.Repeat(" ", blanks))
				b.WriteString(Paint(text, cell.Style, colours))
				blanks = 0
			}
			blanks += widths[i] - length(text) + gap
		}
		b.WriteByte('\n')
	}
}

// Paint puts the sequences for a style around text, if colours are wanted.
func Paint(text string, style Style, colours bool) string {
	if !colours || style == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(style) + "m" + text + "\x1b[0m"
}

// Wrap breaks text after commas and at blanks into lines of at most width
// columns; a piece that is longer has its own line. There is always a line.
func Wrap(text string, width int) []string {
	lines := []string{""}
	for _, piece := range pieces(text) {
		last := &lines[len(lines)-1]
		if *last != "" && length(strings.TrimRight(*last+piece, " ")) > width {
			lines = append(lines, "")
			last = &lines[len(lines)-1]
		}
		*last += piece
	}
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return lines
}

// pieces cuts text where a line may end.
func pieces(text string) []string {
	return strings.FieldsFunc(strings.NewReplacer(" ", " \x00", ",", ",\x00").Replace(text), func(r rune) bool { return r == 0 })
}

func shown(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func length(text string) int { return utf8.RuneCountInString(text) }
