package smi

import (
	"slices"
	"strings"
)

// column is one of the columns beside the matrix.
type column int

// In the order in which nvidia-smi prints them; drivers before 450 print no
// NUMA Affinity, those before 525 no GPU NUMA ID.
const (
	cpuAffinity column = iota
	numaAffinity
	gpuNUMAID
	columnCount
)

var columnNames = [columnCount]string{"CPU Affinity", "NUMA Affinity", "GPU NUMA ID"}

// header is the first line of a matrix.
type header struct {
	line    int
	devices []string // as they are named in the line, GPUs and NICs
	columns []column // beside the matrix, in their order
	starts  [columnCount]int

	cells map[int]column // of a Markdown table: which cell has which column
	links []int          // and which cells have the links
	name  int            // and which cell names the row
}

func (h *header) isMarkdown() bool { return h.cells != nil }

var gpuName = pattern(`^GPU(0|[1-9][0-9]{0,3})$`)

// maxDevices bounds the columns of a matrix.
const maxDevices = 1024

// parseHeader recognises the first line of a matrix: names of GPUs, then of
// NICs, which can have any form, then titles of columns.
func parseHeader(line string, number int) *header {
	if strings.Count(line, "|") > 2 {
		if h := parseMarkdownHeader(line, number); h != nil {
			return h
		}
	}
	words := tokens(strings.ReplaceAll(line, "|", " "))
	first := slices.IndexFunc(words, func(w token) bool { return gpuName().MatchString(w.text) })
	if first < 0 {
		return nil
	}
	h := &header{line: number}
	words = words[first:]
	for len(words) > 0 {
		if c, n := title(words); n > 0 {
			if slices.Contains(h.columns, c) {
				return nil
			}
			h.columns = append(h.columns, c)
			h.starts[c] = words[0].column
			words = words[n:]
			continue
		}
		if len(h.columns) > 0 {
			return nil // a device after the titles
		}
		h.devices = append(h.devices, words[0].text)
		words = words[1:]
	}
	if !h.plausible() {
		return nil
	}
	return h
}

// title recognises the title of a column at the start of words and tells how
// many of them it takes.
func title(words []token) (column, int) {
	for c, name := range columnNames {
		parts := strings.Fields(name)
		if len(words) < len(parts) {
			continue
		}
		same := true
		for i, part := range parts {
			same = same && words[i].text == part
		}
		if same {
			return column(c), len(parts)
		}
	}
	return 0, 0
}

// plausible tells a header from a sentence about GPU0: its names are distinct,
// none looks like a link, and without titles all are names of GPUs and NICs.
func (h *header) plausible() bool {
	if len(h.devices) == 0 || len(h.devices) > maxDevices {
		return false
	}
	seen := make(map[string]bool, len(h.devices))
	for _, name := range h.devices {
		if seen[name] {
			return false
		}
		seen[name] = true
		if isLink(name) {
			return false
		}
		if len(h.columns) == 0 && !gpuName().MatchString(name) && !strings.ContainsAny(name, "0123456789") {
			return false
		}
	}
	return true
}

// parseMarkdownHeader recognises "| | GPU0 | GPU1 | CPU Affinity |", with the
// columns in any order.
func parseMarkdownHeader(line string, number int) *header {
	h := &header{line: number, cells: make(map[int]column), name: -1}
	cells := splitCells(line)
	for i, cell := range cells {
		if gpuName().MatchString(cell) {
			h.name = i - 1
			break
		}
	}
	if h.name < 0 {
		return nil
	}
	for i, cell := range cells {
		words := tokens(cell)
		switch c, n := title(words); {
		case n > 0 && n == len(words):
			h.cells[i] = c
			h.columns = append(h.columns, c)
		case i <= h.name || cell == "":
		case len(words) != 1:
			return nil
		default:
			h.devices = append(h.devices, cell)
			h.links = append(h.links, i)
		}
	}
	if !h.plausible() {
		return nil
	}
	return h
}

func splitCells(line string) []string {
	cells := strings.Split(line, "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return cells
}
