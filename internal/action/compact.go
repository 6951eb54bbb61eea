package action

import (
	"context"
	"fmt"
	"time"

	"gputune/internal/idset"
)

// Compacted is how long compacting memory took.
type Compacted struct {
	Nodes idset.Set     `json:"nodes"`
	Took  time.Duration `json:"took"`
}

// Compact makes the kernel move pages of NUMA nodes together, so that hugepages
// can be made of what is free. Nodes that have no memory are left out.
//
// Documentation/ABI/stable/sysfs-devices-node, compact. Between two nodes the
// context is looked at; one that was begun cannot be stopped.
func (h Host) Compact(ctx context.Context, nodes idset.Set) (Compacted, error) {
	began := h.Now()
	has, err := h.nodes()
	if err != nil {
		return Compacted{}, fmt.Errorf("compact memory: %w", err)
	}
	var result Compacted
	for node := range nodes.And(has).All() {
		if err := ctx.Err(); err != nil {
			return result, fmt.Errorf("compact memory: node %d: %w", node, err)
		}
		if err := h.trigger(fmt.Sprintf("%s/node%d/compact", nodesFolder, node), "1"); err != nil {
			return result, fmt.Errorf("compact memory: %w", err)
		}
		result.Nodes.Add(node)
	}
	result.Took = h.Now().Sub(began)
	return result, nil
}
