package action

import (
	"context"
	"fmt"
	"strings"
	"time"

	"gputune/internal/option"
)

// NodeFreed is what became free on one NUMA node.
type NodeFreed struct {
	Node int   `json:"node"`
	MiB  int64 `json:"mib"` // negative where programs took more meanwhile
}

// Dropped is what dropping caches did.
type Dropped struct {
	Nodes []NodeFreed   `json:"nodes"`
	Took  time.Duration `json:"took"` // all of it
	// Synced says that everything was on the disks before. If not, what was still
	// to be written could not be dropped.
	Synced bool `json:"synced"`
}

// String is the line for people: "dropped 1830 MiB (node 0: 1024, node 1: 806) in 1.2s".
func (d Dropped) String() string {
	var sum int64
	parts := make([]string, len(d.Nodes))
	for i, n := range d.Nodes {
		sum += n.MiB
		parts[i] = fmt.Sprintf("node %d: %d", n.Node, n.MiB)
	}
	text := fmt.Sprintf("dropped %d MiB (%s) in %v", sum, strings.Join(parts, ", "), d.Took.Round(time.Millisecond))
	if !d.Synced {
		text += "; the disks were not done writing in time"
	}
	return text
}

// DropCaches writes what waits for the disks, for at most the time given, and
// makes the kernel forget files and, as asked, directory entries and inodes that
// it keeps in memory.
//
// Documentation/admin-guide/sysctl/vm.rst, drop_caches: 1 is the page cache, 2
// the objects of slab, 3 both; only what needs no writing can go. The kernel
// cannot be stopped once it has begun; the context is looked at before.
func (h Host) DropCaches(ctx context.Context, what option.Caches, syncFor time.Duration) (Dropped, error) {
	value, ok := map[option.Caches]string{option.CachesPage: "1", option.CachesSlab: "2", option.CachesAll: "3"}[what]
	if !ok {
		return Dropped{}, fmt.Errorf("drop caches: %q: want %s", what, option.DropCachesForms)
	}
	began := h.Now()
	nodes, err := h.nodes()
	if err != nil {
		return Dropped{}, fmt.Errorf("drop caches: %w", err)
	}
	var result Dropped
	if result.Synced, err = h.sync(ctx, syncFor); err != nil {
		return Dropped{}, fmt.Errorf("drop caches: %w", err)
	}
	before := map[int]int64{}
	for node := range nodes.All() {
		if before[node], err = h.free(node); err != nil {
			return Dropped{}, fmt.Errorf("drop caches: %w", err)
		}
	}
	if err := h.trigger("/proc/sys/vm/drop_caches", value); err != nil {
		return Dropped{}, fmt.Errorf("drop caches: %w", err)
	}
	for node := range nodes.All() {
		after, err := h.free(node)
		if err != nil {
			return Dropped{}, fmt.Errorf("drop caches: %w", err)
		}
		result.Nodes = append(result.Nodes, NodeFreed{node, (after - before[node]) >> 10})
	}
	result.Took = h.Now().Sub(began)
	return result, nil
}
