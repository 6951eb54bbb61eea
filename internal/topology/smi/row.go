package smi

import (
	"fmt"
	"slices"
	"strings"
)

// row is one device's line of a matrix.
type row struct {
	line      int
	name      string
	links     []string // to each of the header's devices
	values    values
	ambiguous bool // some values are missing, and the places of the others do not tell which

	column int     // of its name
	tail   string  // what is beside the matrix
	words  []token // the words of that
}

// values are what is beside the matrix, by column; "" for an empty cell.
type values [columnCount]string

// parseRow recognises the row of one of the header's devices. It returns nil
// for any other line, and an error for a row that does not fit the header.
func (h *header) parseRow(line string, number int) (*row, error) {
	if h.isMarkdown() {
		return h.parseMarkdownRow(line, number)
	}
	text := strings.ReplaceAll(line, "|", " ")
	words := tokens(text)
	var bad error
	for i, word := range words {
		if !slices.Contains(h.devices, word.text) {
			continue
		}
		links, rest, end := splitLinks(words[i+1:], len(h.devices))
		if len(links) == len(h.devices) && (len(rest) == 0 || !isLink(rest[0].text)) {
			return &row{line: number, name: word.text, links: links, column: word.column, tail: text[end:], words: rest}, nil
		}
		if len(links) > 0 && bad == nil && (len(rest) == 0 || isLink(rest[0].text) || isValue(rest[0].text)) {
			bad = fmt.Errorf("line %d: row %s: %d links to other devices: the header in line %d names %d devices",
				number, word.text, len(links)+countLinks(rest), h.line, len(h.devices))
		}
	}
	return nil, bad
}

// isValue tells what can stand beside a matrix from what other matrices have
// in it ("OK", "CNS" of topo -p2p).
func isValue(word string) bool { return isDigit(word[0]) || word == "N/A" }

func countLinks(words []token) int {
	links, _, _ := splitLinks(words, maxDevices)
	return len(links)
}

func (h *header) parseMarkdownRow(line string, number int) (*row, error) {
	cells := splitCells(line)
	if len(cells) <= h.name || !slices.Contains(h.devices, cells[h.name]) {
		return nil, nil //nolint:nilnil // no row, and nothing wrong with that
	}
	r := &row{line: number, name: cells[h.name]}
	for _, i := range h.links {
		if i >= len(cells) || !isLink(cells[i]) {
			return nil, fmt.Errorf("line %d: row %s: %d links to other devices: the header in line %d names %d devices",
				number, r.name, len(r.links), h.line, len(h.devices))
		}
		r.links = append(r.links, cells[i])
	}
	for i, c := range h.cells {
		if i < len(cells) {
			r.values[c] = cells[i]
		}
	}
	return r, nil
}
