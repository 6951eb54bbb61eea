package smi

import (
	"fmt"
	"strconv"
	"strings"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

// host is what lscpu and "numactl --hardware" say about the machine.
type host struct {
	cpus      idset.Set         // lscpu's on-line list, empty unknown
	offline   idset.Set         // lscpu's off-line list
	nodes     map[int]idset.Set // CPUs of each node
	memory    map[int]int64     // MiB of each node
	distances map[int]map[int]int
	single    bool // one thread per core
	table     *cpuTable
}

// lscpuLine matches "On-line CPU(s) list: 0-255" and "NUMA node3 CPU(s): 48-63".
var lscpuLine = pattern(`(On-line CPU\(s\) list|Off-line CPU\(s\) list|NUMA node([0-9]{1,4}) CPU\(s\)):[ \t]*([^ \t]*)[ \t]*$`)

// oneThread matches "Thread(s) per core:  1": then each CPU is a core.
var oneThread = pattern(`^\s*Thread\(s\) per core:\s*1\s*$`)

func (h *host) lscpu(line string, number int) error {
	if oneThread().MatchString(line) {
		h.single = true
	}
	if !strings.Contains(line, "CPU(s)") {
		return nil
	}
	found := lscpuLine().FindStringSubmatch(line)
	if found == nil {
		return nil
	}
	cpus, err := topology.ParseList(found[3])
	if err != nil {
		return fmt.Errorf("line %d: %s: %w", number, found[1], err)
	}
	switch {
	case strings.HasPrefix(found[1], "On-line"):
		h.cpus = cpus
	case strings.HasPrefix(found[1], "Off-line"):
		h.offline = cpus
	default:
		return h.addNode(found[2], cpus, number)
	}
	return nil
}

// addNode takes the CPUs of a node. Both programs can be in a text, and agree.
func (h *host) addNode(name string, cpus idset.Set, number int) error {
	id, err := nodeID(name, number)
	if err != nil {
		return err
	}
	if known, ok := h.nodes[id]; ok && !known.Equal(cpus) {
		return fmt.Errorf("line %d: node %d has CPUs %q here and %q further up", number, id, cpus, known)
	}
	for other, theirs := range h.nodes {
		if shared := theirs.And(cpus); other != id && !shared.Empty() {
			return fmt.Errorf("line %d: node %d: CPUs %s are on node %d already", number, id, shared, other)
		}
	}
	h.nodes[id] = cpus
	return nil
}

func nodeID(name string, number int) (int, error) {
	id, err := strconv.Atoi(name)
	if err != nil || id < 0 || id >= maxNodes {
		return 0, fmt.Errorf("line %d: node %q: want a number below %d", number, name, maxNodes)
	}
	return id, nil
}

// maxNodes is the kernel's largest MAX_NUMNODES.
const maxNodes = 1024
