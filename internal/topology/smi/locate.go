package smi

import (
	"strings"

	"gputune/internal/idset"
)

// memoryNodes is how many nodes without CPUs the driver brings online for each
// GPU whose memory the kernel manages (Grace): one for each MIG instance that
// there can be.
const memoryNodes = 8

// locate finds the local nodes of each GPU, those that have CPUs, and says for
// which GPUs nothing tells them.
func (b *builder) locate(gpus []gpu) {
	for i := range gpus {
		gpus[i].nodes = b.nodesWithCPUs(gpus[i], gpus)
	}
	if len(b.host.nodes) > 0 {
		b.locateByCPUs(gpus)
	}
	b.dropTheAskers(gpus)
	var lost, cut, empty []string
	for _, g := range gpus {
		if !g.stated {
			continue
		}
		name := gpuLabel(g.number)
		if g.nodes.Empty() {
			lost = append(lost, name)
		}
		if g.cut {
			cut = append(cut, name)
		} else if !g.hasCPU {
			empty = append(empty, name)
		}
	}
	if len(lost) > 0 {
		b.say("The NUMA node of %s is not stated.", strings.Join(lost, ", "))
	}
	if len(cut) > 0 {
		b.say("The list of CPUs of %s ends after %d items, where nvidia-smi cuts longer ones: it is not used.", strings.Join(cut, ", "), cutAfter)
	}
	if len(empty) > 0 {
		b.say("The CPUs of %s are not stated: a process that may use none of them is shown none.", strings.Join(empty, ", "))
	}
}

// nodesWithCPUs leaves of a GPU's NUMA Affinity those that can have CPUs. On
// Grace it also has the nodes with GPUs' memory, which can be told by lscpu,
// by the column GPU NUMA ID, and by how many there are: one for the CPUs, which
// is the lowest since the others come online later, and memoryNodes for each of
// the GPUs that share it.
func (b *builder) nodesWithCPUs(g gpu, gpus []gpu) idset.Set {
	nodes := g.numa
	if len(b.host.nodes) > 0 {
		var with idset.Set
		for id, cpus := range b.host.nodes {
			if !cpus.Empty() {
				with.Add(id)
			}
		}
		return nodes.And(with)
	}
	sharing := 0
	all := nodes
	for _, other := range gpus {
		if other.numa.Equal(g.numa) {
			sharing++
			all = all.Or(other.memory)
		}
	}
	for _, other := range gpus {
		nodes = nodes.AndNot(other.memory)
	}
	if all.Len() == memoryNodes*sharing+1 {
		return nodes.And(idset.Of(all.Min()))
	}
	return nodes
}

// locateByCPUs finds the nodes of GPUs without NUMA Affinity through their
// lists of CPUs, where those are whole nodes: parts of one are what the process
// that asked was given, and say nothing about the GPU.
func (b *builder) locateByCPUs(gpus []gpu) {
	for i := range gpus {
		g := &gpus[i]
		if g.hasNUMA || g.cpus.Empty() {
			continue
		}
		var nodes, cpus idset.Set
		for id, of := range b.host.nodes {
			if !of.And(g.cpus).Empty() {
				nodes.Add(id)
				cpus = cpus.Or(of)
			}
		}
		if cpus.Equal(g.cpus) {
			g.nodes = nodes
		}
	}
}

// dropTheAskers forgets nodes that are the same for every GPU and more than
// one: they are those of the process that asked, or of the whole machine.
func (b *builder) dropTheAskers(gpus []gpu) {
	several := false
	for _, g := range gpus {
		if !g.stated || g.nodes.Empty() {
			continue
		}
		if !g.nodes.Equal(gpus[0].nodes) {
			return
		}
		several = g.nodes.Len() > 1
	}
	if !several {
		return
	}
	b.say("Every GPU has the same NUMA Affinity %s: that is the process that asked, or the whole machine, and not where the GPUs are.", gpus[0].nodes)
	for i := range gpus {
		gpus[i].nodes = idset.Set{}
	}
}
