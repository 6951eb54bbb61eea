package placement

import (
	"cmp"
	"fmt"
	"slices"

	"gputune/internal/idset"
)

// chooseExclusive gives each GPU an equal, disjoint share of the cores of its
// pool. GPUs whose pools overlap are handled together.
func (p *planner) chooseExclusive(homes []home, cpus []idset.Set, warnings []Warning) {
	for _, group := range overlapping(homes) {
		pool := homes[group[0]].pool
		same := true
		union := pool
		for _, i := range group[1:] {
			same = same && homes[i].pool.Equal(pool)
			union = union.Or(homes[i].pool)
		}
		cores := p.coresIn(union)
		switch {
		case len(cores) < len(group):
			p.shareCores(homes, group, cpus, warnings)
		case same:
			for k, share := range p.split(cores, len(group)) {
				cpus[group[k]] = p.cpusOf(share, union)
			}
		default:
			p.deal(homes, group, cores, cpus, warnings)
		}
	}
}

// overlapping groups the positions of homes whose pools have CPUs in common,
// directly or through others.
func overlapping(homes []home) [][]int {
	var groups [][]int
	var unions []idset.Set
	for i, h := range homes {
		members, union := []int{i}, h.pool
		var keptGroups [][]int
		var keptUnions []idset.Set
		for k, other := range unions {
			if other.And(union).Empty() {
				keptGroups, keptUnions = append(keptGroups, groups[k]), append(keptUnions, other)
				continue
			}
			members, union = append(groups[k], members...), union.Or(other)
		}
		groups, unions = append(keptGroups, members), append(keptUnions, union)
	}
	for _, group := range groups {
		slices.Sort(group)
	}
	return groups
}

// coresIn returns the positions in p.cores of the cores that have CPUs in pool.
func (p *planner) coresIn(pool idset.Set) []int {
	var cores []int
	for i, core := range p.cores {
		if !core.And(pool).Empty() {
			cores = append(cores, i)
		}
	}
	return cores
}

func (p *planner) cpusOf(cores []int, pool idset.Set) idset.Set {
	var cpus idset.Set
	for _, core := range cores {
		cpus = cpus.Or(p.cores[core])
	}
	return cpus.And(pool)
}

// split divides cores into shares that differ by one core at most: whole L3
// groups where that is possible, or each L3 group among as many GPUs, else
// blocks of neighbours.
func (p *planner) split(cores []int, shares int) [][]int {
	groups := p.byL3(cores)
	if len(groups) > 1 {
		if len(groups) >= shares {
			if whole := wholeGroups(groups, shares); even(whole) {
				return whole
			}
		} else if shares%len(groups) == 0 {
			var parts [][]int
			for _, group := range groups {
				parts = append(parts, blocks(group, shares/len(groups))...)
			}
			if even(parts) {
				return parts
			}
		}
	}
	return blocks(cores, shares)
}

// byL3 cuts cores, which are ordered by L3 group, at the groups' borders.
func (p *planner) byL3(cores []int) [][]int {
	var groups [][]int
	for k, core := range cores {
		if k == 0 || p.l3Of[core] != p.l3Of[cores[k-1]] {
			groups = append(groups, nil)
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], core)
	}
	return groups
}

// wholeGroups hands out whole groups: neighbours together where all have the
// same size, else the largest first, each to the share that is smallest then.
func wholeGroups(groups [][]int, shares int) [][]int {
	parts := make([][]int, shares)
	if sameSize(groups) && len(groups)%shares == 0 {
		for k, group := range groups {
			part := k / (len(groups) / shares)
			parts[part] = append(parts[part], group...)
		}
		return parts
	}
	bySize := slices.Clone(groups)
	slices.SortStableFunc(bySize, func(a, b []int) int { return cmp.Compare(len(b), len(a)) })
	for _, group := range bySize {
		smallest := 0
		for k := range parts {
			if len(parts[k]) < len(parts[smallest]) {
				smallest = k
			}
		}
		parts[smallest] = append(parts[smallest], group...)
	}
	return parts
}

func sameSize(groups [][]int) bool {
	for _, group := range groups {
		if len(group) != len(groups[0]) {
			return false
		}
	}
	return true
}

// even tells whether no share is empty and none is more than one core larger
// than another.
func even(parts [][]int) bool {
	least, most := len(parts[0]), len(parts[0])
	for _, part := range parts {
		least, most = min(least, len(part)), max(most, len(part))
	}
	return least > 0 && most-least <= 1
}

// blocks cuts cores into blocks of neighbours, the first ones a core larger
// where the number does not divide.
func blocks(cores []int, shares int) [][]int {
	parts := make([][]int, shares)
	size, extra := len(cores)/shares, len(cores)%shares
	start := 0
	for k := range parts {
		end := start + size
		if k < extra {
			end++
		}
		parts[k] = cores[start:end]
		start = end
	}
	return parts
}

// deal hands out cores one by one where pools overlap without being equal: the
// GPU with the fewest cores chooses next, and takes what the fewest others
// could use. GPUs with equal pools end within one core of each other.
func (p *planner) deal(homes []home, group, cores []int, cpus []idset.Set, warnings []Warning) {
	wanted := make(map[int]int, len(cores)) // how many GPUs could use a core
	options := make(map[int][]int, len(group))
	for _, i := range group {
		for _, core := range cores {
			if !p.cores[core].And(homes[i].pool).Empty() {
				options[i] = append(options[i], core)
				wanted[core]++
			}
		}
	}
	for _, i := range group {
		slices.SortStableFunc(options[i], func(a, b int) int { return cmp.Compare(wanted[a], wanted[b]) })
	}
	taken := make(map[int]bool, len(cores))
	count := make(map[int]int, len(group))
	for {
		next := -1
		for _, i := range group {
			options[i] = slices.DeleteFunc(options[i], func(core int) bool { return taken[core] })
			if len(options[i]) == 0 {
				continue
			}
			if next < 0 || count[i] < count[next] || (count[i] == count[next] && len(options[i]) < len(options[next])) {
				next = i
			}
		}
		if next < 0 {
			break
		}
		core := options[next][0]
		taken[core] = true
		count[next]++
		cpus[next] = cpus[next].Or(p.cores[core].And(homes[next].pool))
	}
	var without []int
	for _, i := range group {
		if count[i] == 0 {
			without = append(without, i)
		}
	}
	p.shareCores(homes, without, cpus, warnings)
}

// shareCores gives each GPU one core of its pool, in turn, where there are not
// enough for all.
func (p *planner) shareCores(homes []home, group []int, cpus []idset.Set, warnings []Warning) {
	for k, i := range group {
		cores := p.coresIn(homes[i].pool)
		if len(cores) == 0 { // a machine whose CPUs its source does not state
			continue
		}
		cpus[i] = p.cpusOf(cores[k%len(cores):k%len(cores)+1], homes[i].pool)
		warnings[i] = Warning{SharedCores, fmt.Sprintf("fewer granted cores than GPUs, cpus %s are shared", cpus[i])}
	}
}
