package step

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gputune/internal/idset"
	"gputune/internal/placement"
)

// noticeable is the part of what a node is to give that has to be page cache for
// the user to hear of it.
const noticeable = 20

// nodeMemory is what a NUMA node has, in MiB.
type nodeMemory struct {
	free  uint64
	cache uint64 // files that the kernel keeps in memory
}

// lookAtMemory says of each node that mem=bind takes memory from whether files in
// memory leave less free there than the step was given. The step's memory counts
// as its tasks' in equal parts, and a task's as its nodes'.
func (s *Step) lookAtMemory(memoryMiB uint64, result *Result) {
	if s.Option.Policy.Mem != placement.MemBind || s.KeepMems != "" || memoryMiB == 0 {
		return
	}
	wants := map[int]uint64{}
	var nodes idset.Set
	for _, outcome := range result.Tasks {
		mems := outcome.Binding.Mems
		if outcome.ByEnvironment {
			mems = idset.Set{}
			for _, share := range result.Shares {
				mems = mems.Or(share.Mems)
			}
		}
		for node := range mems.All() {
			wants[node] += memoryMiB / uint64(len(result.Tasks)) / uint64(mems.Len())
			nodes.Add(node)
		}
	}
	for node := range nodes.All() {
		has, err := readNodeMemory(s.machineRoot, node)
		if err != nil {
			s.log("%v", err)
			continue
		}
		if line := has.lacks(wants[node]); line != "" {
			result.Cautions = append(result.Cautions, fmt.Sprintf("mem=bind: node %d has %s", node, line))
		}
	}
}

// lacks returns what is to be said where a node is to give so many MiB, "" for
// nothing: what is neither free nor cache, nothing here frees.
func (m nodeMemory) lacks(want uint64) string {
	reachable := min(want, m.free+m.cache)
	if reachable <= m.free || (reachable-m.free)*noticeable < want {
		return ""
	}
	return fmt.Sprintf("%d MiB free for the %d MiB that tasks were given there: %d MiB hold files, which the kernel drops first, slowly; --drop-caches does it before a job",
		m.free, want, m.cache)
}

// readNodeMemory reads a node's meminfo below root: "Node 0 MemFree: 22735116 kB".
// Documentation/ABI/stable/sysfs-devices-node; the fields are those of
// Documentation/filesystems/proc.rst.
func readNodeMemory(root string, node int) (nodeMemory, error) {
	file := filepath.Join(root, "sys/devices/system/node", fmt.Sprintf("node%d", node), "meminfo")
	text, err := os.ReadFile(file)
	if err != nil {
		return nodeMemory{}, err
	}
	kib := map[string]uint64{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 4 {
			continue
		}
		if n, err := strconv.ParseUint(fields[3], 10, 54); err == nil {
			kib[strings.TrimSuffix(fields[2], ":")] = n
		}
	}
	free, has := kib["MemFree"]
	if !has {
		return nodeMemory{}, fmt.Errorf("%s: no MemFree", file)
	}
	return nodeMemory{free: free >> 10, cache: (kib["Active(file)"] + kib["Inactive(file)"]) >> 10}, nil
}
