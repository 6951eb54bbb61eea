// Package smi reads what people paste of a machine: the text of "nvidia-smi
// topo -m", by drivers of any age, and beside it, in the same text, that of
// "lscpu", "lscpu -p", "numactl --hardware", "nvidia-smi -L" and "nvidia-smi
// --query-gpu=index,pci.bus_id --format=csv,noheader".
//
// The matrix says, for each GPU, what NVML answers to nvmlDeviceGetCpuAffinity
// and nvmlDeviceGetMemoryAffinity. Some drivers leave out the CPUs that the
// asking process may not use, so inside a job it can tell less than the truth.
package smi

import (
	"errors"
	"strings"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

// ErrNoMatrix is returned for text in which there is neither a matrix nor a
// list of nodes.
var ErrNoMatrix = errors.New("no matrix of nvidia-smi topo -m and no NUMA nodes of lscpu or numactl")

// Parse reads the text. It returns with the machine what the text leaves
// unknown, one sentence each. An error names the line and what is wrong in it.
func Parse(text []byte) (*topology.Machine, []string, error) {
	lines := strings.Split(string(text), "\n")
	for i := range lines {
		if len(lines[i]) <= longestLine {
			lines[i] = clean(lines[i])
		}
	}
	table, err := findTable(lines)
	if err != nil {
		return nil, nil, err
	}
	host, err := findHost(lines)
	if err != nil {
		return nil, nil, err
	}
	if table == nil && len(host.nodes) == 0 {
		return nil, nil, ErrNoMatrix
	}
	b := builder{table: table, host: host, identities: identities(lines)}
	m, err := b.machine()
	if err != nil {
		return nil, nil, err
	}
	return m, b.unknown, nil
}

func findHost(lines []string) (*host, error) {
	h := &host{nodes: make(map[int]idset.Set), memory: make(map[int]int64), distances: make(map[int]map[int]int)}
	var columns []int
	for i, line := range lines {
		if len(line) > longestLine {
			continue
		}
		if err := h.lscpu(line, i+1); err != nil {
			return nil, err
		}
		if err := h.lscpuTable(line, i+1); err != nil {
			return nil, err
		}
		if err := h.numactl(line, i+1, &columns); err != nil {
			return nil, err
		}
	}
	if err := h.finish(); err != nil {
		return nil, err
	}
	return h, nil
}
