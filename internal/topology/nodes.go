package topology

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"gputune/internal/idset"
)

const nodeFolder = "sys/devices/system/node/"

// nodes reads the online NUMA nodes. A kernel without NUMA support has none.
func (r *reader) nodes(m *Machine) {
	online, err := r.list(nodeFolder + "online")
	if err != nil {
		r.warnError(nodeFolder+"online", err)
		if online, err = r.ids(nodeFolder, "node"); err != nil {
			return
		}
	}
	ids := slices.Collect(online.All())
	var covered idset.Set
	for _, id := range ids {
		folder := nodeFolder + "node" + strconv.Itoa(id) + "/"
		node := Node{ID: id, MemoryMiB: r.nodeMemory(folder), Distances: r.nodeDistances(folder, ids)}
		if cpus, ok := r.set(folder, &r.nodeCPUs); ok {
			node.CPUs = cpus.And(m.CPUs)
		}
		if taken := node.CPUs.And(covered); !taken.Empty() {
			r.warn(folder+r.nodeCPUs.names[r.nodeCPUs.known], "CPUs %s belong to another node already", clip(taken.String()))
		}
		covered = covered.Or(node.CPUs)
		m.Nodes = append(m.Nodes, node)
	}
	if left := m.CPUs.AndNot(covered); len(ids) > 0 && !left.Empty() {
		r.warn(strings.TrimSuffix(nodeFolder, "/"), "CPUs %s are in no node", clip(left.String()))
	}
}

// nodeMemory reads "Node 0 MemTotal:       263856908 kB" out of meminfo.
func (r *reader) nodeMemory(folder string) int64 {
	path := folder + "meminfo"
	content, err := r.Read(path)
	if err != nil {
		r.warnError(path, err)
		return 0
	}
	_, rest, ok := bytes.Cut(content, []byte("MemTotal:"))
	if !ok {
		r.warn(path, "%q: want a line with MemTotal", clip(string(content)))
		return 0
	}
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	text, ok := strings.CutSuffix(strings.TrimSpace(string(line)), " kB")
	kib, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if !ok || err != nil || kib < 0 {
		r.warn(path, "%q: want MemTotal in kB", clip(string(line)))
		return 0
	}
	return kib / 1024
}

// nodeDistances reads the distances from a node to all online ones, which the
// kernel lists by ascending id.
func (r *reader) nodeDistances(folder string, ids []int) map[int]int {
	path := folder + "distance"
	content, err := r.Read(path)
	if err != nil {
		r.warnError(path, err)
		return nil
	}
	fields := strings.Fields(string(content))
	if len(fields) != len(ids) {
		r.warn(path, "%q: want %d distances, one for each online node", clip(string(content)), len(ids))
		return nil
	}
	distances := make(map[int]int, len(ids))
	for i, field := range fields {
		distance, err := strconv.ParseUint(field, 10, 15)
		if err != nil {
			r.warn(path, "%q: want distances from 0 to 32767", clip(field))
			return nil
		}
		distances[ids[i]] = int(distance)
	}
	return distances
}
