package nccl

import (
	"fmt"
	"slices"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

// doubt finds the nodes whose masks cannot all be right, and warns of them:
// masks that overlap, as placeholders in vendors' files do, and a mask that has
// not as many digits as the others, where they are padded with zeros to the
// same length.
func (r *reader) doubt(m *topology.Machine) idset.Set {
	ids := make([]int, 0, len(r.nodes))
	for id := range r.nodes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	var doubted idset.Set
	for i, a := range ids {
		for _, b := range ids[i+1:] {
			if shared := r.nodes[a].mask.cpus.And(r.nodes[b].mask.cpus); !shared.Empty() {
				m.Warnings = append(m.Warnings, fmt.Sprintf("line %d: CPUs %s are on node %d and, in line %d, on node %d: both masks are not used",
					r.nodes[a].line, shared, a, r.nodes[b].line, b))
				doubted.Add(a)
				doubted.Add(b)
			}
		}
	}
	width := r.commonWidth(ids)
	for _, id := range ids {
		if n := r.nodes[id]; width > 0 && n.mask.digits > 0 && n.mask.digits != width {
			m.Warnings = append(m.Warnings, fmt.Sprintf("line %d: the mask of node %d has %d digits, the others have %d: it is not used",
				n.line, id, n.mask.digits, width))
			doubted.Add(id)
		}
	}
	return doubted
}

// commonWidth returns how many digits most masks have, 0 if they are not padded
// or no number is that of more than half of them.
func (r *reader) commonWidth(ids []int) int {
	count := make(map[int]int)
	padded, masks := false, 0
	for _, id := range ids {
		if n := r.nodes[id]; n.mask.digits > 0 {
			masks++
			count[n.mask.digits]++
			padded = padded || n.mask.padded
		}
	}
	for digits, n := range count {
		if padded && 2*n > masks {
			return digits
		}
	}
	return 0
}
