package smi

import "strings"

// assign finds out which of a row's values belongs to which column. Where one
// is missing its cell is empty, and its place in the line has to tell: tabs, or
// what a terminal made of them, or the title above it.
func (t *table) assign() {
	var incomplete []*row
	tabs, titles := true, true // whether rows with all values are laid out like that
	complete := 0
	for name, r := range t.rows {
		if t.isMarkdown() || !gpuName().MatchString(name) || len(r.words) == 0 {
			continue
		}
		if len(r.words) != len(t.columns) {
			incomplete = append(incomplete, r)
			continue
		}
		complete++
		for i, c := range t.columns {
			r.values[c] = r.words[i].text
		}
		byTabs, ok := t.byTabs(r)
		tabs = tabs && ok && byTabs == r.values
		byTitles, ok := t.byTitles(r)
		titles = titles && ok && byTitles == r.values
	}
	for _, r := range incomplete {
		byTabs, tabsOK := t.byTabs(r)
		byTitles, titlesOK := t.byTitles(r)
		tabsOK = tabsOK && tabs
		titlesOK = titlesOK && titles && !strings.Contains(r.tail, "\t")
		switch {
		case len(t.columns) == 0: // a remark beside the matrix
		case tabsOK && (!titlesOK || byTabs == byTitles):
			r.values = byTabs
		case titlesOK && !tabsOK:
			r.values = byTitles
		default:
			r.ambiguous = true
		}
	}
}

// byTabs reads "\tCPU\tNUMA\t\tID": each of the first two columns is one tab
// after the one before it, the third one or two. Where a terminal turned tabs
// into blanks, words begin at every eighth place.
func (t *table) byTabs(r *row) (values, bool) {
	var found values
	cells := strings.Split(r.tail, "\t")[1:]
	if !strings.Contains(r.tail, "\t") {
		cells = r.retab()
	}
	for i, cell := range cells {
		cell = strings.TrimSpace(cell)
		if cell == "" {
			continue
		}
		at := min(i, len(t.columns)-1)
		if at < 0 || i > len(t.columns) || strings.Contains(cell, " ") || found[t.columns[at]] != "" {
			return values{}, false
		}
		found[t.columns[at]] = cell
	}
	return found, len(cells) > 0
}

const tabWidth = 8

// retab finds the cells between the tabs that were there once; none if words
// begin elsewhere than after a tab.
func (r *row) retab() []string {
	first := r.words[0]
	// The last link is in the cell before; a tab leads from it to the first one.
	at := first.column - r.column
	before := at - (len(r.tail) - len(strings.TrimLeft(r.tail, " ")))
	var cells []string
	for _, word := range r.words {
		start := word.column - r.column
		if start%tabWidth != 0 {
			return nil
		}
		for tab := before/tabWidth + 1; tab < start/tabWidth; tab++ {
			cells = append(cells, "")
		}
		cells = append(cells, word.text)
		before = start + len(word.text)
	}
	return cells
}

// nearEnough is how far a value can be from where its column's title starts,
// less than half of the smallest column.
const nearEnough = 4

// byTitles takes each value for the column whose title is above it.
func (t *table) byTitles(r *row) (values, bool) {
	var found values
	for _, word := range r.words {
		taken := false
		for _, c := range t.columns {
			off := word.column - t.starts[c]
			if max(off, -off) < nearEnough && found[c] == "" {
				found[c], taken = word.text, true
				break
			}
		}
		if !taken {
			return values{}, false
		}
	}
	return found, true
}
