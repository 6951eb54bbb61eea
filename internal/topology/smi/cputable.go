package smi

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

// cpuTable is what "lscpu -p" prints: below "# CPU,Core,Socket,Node,,L1d,L1i,L2,L3"
// a line of numbers for each online CPU.
type cpuTable struct {
	line    int
	columns []string
	cpus    idset.Set
	groups  map[string]map[int]idset.Set // by column and number
}

const cpuTableHeader = "# CPU,Core,Socket,Node"

// lscpuTable reads a line of the table.
func (h *host) lscpuTable(line string, number int) error {
	if strings.HasPrefix(line, cpuTableHeader) {
		if h.table != nil {
			return fmt.Errorf("line %d: a second table of lscpu", number)
		}
		columns := strings.Split(strings.ReplaceAll(strings.TrimPrefix(line, "# "), ",,", ","), ",")
		h.table = &cpuTable{line: number, columns: columns, groups: make(map[string]map[int]idset.Set)}
		return nil
	}
	if h.table == nil || line == "" || !isDigit(line[0]) || strings.Count(line, ",") < 3 {
		return nil
	}
	values := strings.Split(line, ",")
	if len(values) == len(h.table.columns)+1 && values[4] == "" {
		values = slices.Delete(values, 4, 5) // the empty column that parts the caches
	}
	if len(values) != len(h.table.columns) {
		return nil
	}
	return h.addCPU(values, number)
}

func (h *host) addCPU(values []string, number int) error {
	t := h.table
	cpu := -1
	for i, text := range values {
		column := t.columns[i]
		if text == "" || text == "-" {
			continue
		}
		id, err := strconv.Atoi(text)
		if err != nil || id < 0 || id >= idset.Limit {
			return fmt.Errorf("line %d: %s %q: want a number below %d", number, column, text, idset.Limit)
		}
		if column == "CPU" {
			if t.cpus.Has(id) {
				return fmt.Errorf("line %d: CPU %d is there twice", number, id)
			}
			t.cpus.Add(id)
			cpu = id
			continue
		}
		if cpu < 0 {
			return fmt.Errorf("line %d: no number of a CPU", number)
		}
		if t.groups[column] == nil {
			t.groups[column] = make(map[int]idset.Set)
		}
		t.groups[column][id] = t.groups[column][id].Or(idset.Of(cpu))
	}
	return nil
}

// finish adds what the table says about nodes to what other lines said.
func (h *host) finish() error {
	if h.table == nil {
		return nil
	}
	if h.cpus.Empty() {
		h.cpus = h.table.cpus
	}
	for id, cpus := range h.table.groups["Node"] {
		if err := h.addNode(strconv.Itoa(id), cpus, h.table.line); err != nil {
			return err
		}
	}
	return nil
}

// parts adds cores, packages and L3 groups to the machine, and says which of
// them are not stated.
func (b *builder) parts(m *topology.Machine) {
	table := b.host.table
	switch {
	case table != nil:
		for id, cpus := range table.groups["Socket"] {
			m.Packages = append(m.Packages, topology.Package{ID: id, CPUs: cpus.And(m.CPUs)})
		}
		for _, cpus := range table.groups["Core"] {
			m.Cores = append(m.Cores, topology.Core{CPUs: cpus.And(m.CPUs)})
		}
		for _, cpus := range table.groups["L3"] {
			m.L3 = append(m.L3, topology.L3Group{CPUs: cpus.And(m.CPUs)})
		}
	case b.host.single:
		for cpu := range m.CPUs.All() {
			m.Cores = append(m.Cores, topology.Core{CPUs: idset.Of(cpu)})
		}
	}
	m.Packages = slices.DeleteFunc(m.Packages, func(p topology.Package) bool { return p.CPUs.Empty() })
	m.Cores = slices.DeleteFunc(m.Cores, func(c topology.Core) bool { return c.CPUs.Empty() })
	m.L3 = slices.DeleteFunc(m.L3, func(l topology.L3Group) bool { return l.CPUs.Empty() })
	slices.SortFunc(m.Packages, func(a, b topology.Package) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(m.Cores, func(a, b topology.Core) int { return cmp.Compare(a.CPUs.Min(), b.CPUs.Min()) })
	slices.SortFunc(m.L3, func(a, b topology.L3Group) int { return cmp.Compare(a.CPUs.Min(), b.CPUs.Min()) })
	if len(m.Packages) == 0 {
		b.say("Packages are not stated.")
	}
	if len(m.Cores) == 0 {
		b.say("Cores are not stated.")
	}
	if len(m.L3) == 0 {
		b.say("L3 caches are not stated.")
	}
}
