package smi

import (
	"fmt"
	"strings"
)

// table is one matrix of "nvidia-smi topo -m".
type table struct {
	*header
	rows   map[string]*row
	legend map[string]string // "NIC0": "mlx5_0"
}

var legendLine = pattern(`\b(NIC[0-9]{1,4}): *([A-Za-z][A-Za-z0-9_.-]*)\s*$`)

// findTable returns the first matrix that says something about CPUs or nodes,
// or the first one; nil if there is none. Lines that belong to none, such as
// prompts and logs, are passed over.
func findTable(lines []string) (*table, error) {
	var first, current *table
	for i, line := range lines {
		if len(line) > longestLine {
			continue
		}
		if current != nil {
			r, err := current.parseRow(line, i+1)
			if err != nil {
				return nil, err
			}
			if r != nil {
				if current.rows[r.name] != nil {
					return nil, fmt.Errorf("line %d: row %s: is in line %d already", r.line, r.name, current.rows[r.name].line)
				}
				current.rows[r.name] = r
				continue
			}
			if found := legendLine().FindStringSubmatch(line); found != nil {
				if _, ok := current.legend[found[1]]; !ok {
					current.legend[found[1]] = found[2]
				}
				continue
			}
		}
		if !strings.Contains(line, "GPU") {
			continue
		}
		h := parseHeader(line, i+1)
		if h == nil || !followed(h, lines[i+1:]) {
			continue
		}
		if current != nil && len(current.columns) > 0 {
			break // one that says all is there, the second is of another kind
		}
		current = &table{header: h, rows: make(map[string]*row), legend: make(map[string]string)}
		if first == nil {
			first = current
		}
	}
	if current == nil || len(current.columns) == 0 {
		current = first
	}
	if current != nil {
		current.assign()
	}
	return current, nil
}

// followed tells whether the row of one of the header's devices comes next, but
// for blank lines and the rule below a Markdown header.
func followed(h *header, lines []string) bool {
	for i, line := range lines {
		if len(line) > longestLine {
			return false
		}
		if strings.Trim(line, " \t#>|:-") == "" {
			continue
		}
		r, err := h.parseRow(line, h.line+1+i)
		return r != nil || err != nil
	}
	return false
}
