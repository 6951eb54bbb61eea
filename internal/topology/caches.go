package topology

import (
	"strconv"

	"gputune/internal/idset"
)

// maxCacheIndex bounds the cache/indexN folders of a CPU; real ones have four
// or five.
const maxCacheIndex = 16

// l3 reads which CPUs share an L3 cache. A machine or a CPU without one is
// not reported: many virtual machines and the low-power cores of hybrid
// processors have none.
func (r *reader) l3(m *Machine) {
	coreOf := make(map[int]idset.Set, len(m.Cores))
	for _, core := range m.Cores {
		coreOf[core.CPUs.Min()] = core.CPUs
	}
	hint := 0
	var without idset.Set // siblings of CPUs that have no L3
	groups := r.partition(m.CPUs, "L3 group", func(cpu int) (idset.Set, string, bool) {
		if without.Has(cpu) {
			return idset.Set{}, "", false
		}
		folder, index := r.findL3(cpu, hint)
		if index < 0 {
			without = without.Or(coreOf[cpu])
			return idset.Set{}, "", false
		}
		hint = index
		return r.members(folder, &r.shared)
	})
	m.L3 = make([]L3Group, len(groups))
	for i, set := range groups {
		m.L3[i] = L3Group{CPUs: set}
	}
}

// findL3 returns the folder and the index of the unified level 3 cache of a
// CPU, -1 if it has none. The index depends on the processor (3 where L1 is
// split and L2 is not) and can differ between the kinds of core of a hybrid
// one, so hint is only where to look first.
func (r *reader) findL3(cpu, hint int) (folder string, index int) {
	caches := cpuPath(cpu) + "cache/index"
	for step := range maxCacheIndex {
		index := step
		switch {
		case step == 0:
			index = hint
		case step <= hint:
			index = step - 1
		}
		folder := caches + strconv.Itoa(index) + "/"
		level, err := r.text(folder + "level")
		if err != nil {
			if isMissing(err) && index != hint {
				return "", -1
			}
			continue
		}
		if level != "3" {
			continue
		}
		if kind, err := r.text(folder + "type"); err == nil && kind == "Unified" {
			return folder, index
		}
	}
	return "", -1
}
