package numavm

import (
	"fmt"
	"slices"
	"strings"
)

// Topology is what the machine consists of: 8 CPUs in 2 packages with 2 threads per core, memory nodes, and PCI devices on
// host bridges of those nodes. Its values are what the guest must show, so tests may compare with them.
type Topology struct {
	// Name is what ParseTopology takes.
	Name string
	// Nodes are in the order of their ids, which start at 0.
	Nodes []Node
	// Distances between nodes as ACPI's SLIT gives them, 10 is local.
	Distances [][]int
	// L3 has the CPUs that share an L3 cache, in the kernel's list form.
	L3 []string
	// Devices are in the order in which they are made.
	Devices []Device

	smp   string // QEMU's -smp
	intel bool   // with an Intel CPU on every suite
}

// Node is one NUMA node.
type Node struct {
	// CPUs in the kernel's list form, empty for a node of memory alone.
	CPUs string
	// MemoryMiB is its memory, in MiB.
	MemoryMiB int

	place string // the CPUs as QEMU's -numa cpu names them
}

// Kind is what a PCI device stands in for.
type Kind int

// The kinds of devices.
const (
	// GPU is an NVMe controller with 5 MSI-X vectors. Its serial number is its Name.
	GPU Kind = iota
	// NIC is a virtio network card with 4 MSI-X vectors, connected to nothing.
	NIC
)

// Device is one PCI device.
type Device struct {
	Kind Kind
	// Name is GPU0…GPU3 or NIC0….
	Name string
	// Node is its NUMA node, -1 if the firmware does not say: it then sits on the root bus, as devices passed through to
	// a virtual machine often do.
	Node int
}

// withoutNode is the suffix of a topology's name that takes the last GPU's node away.
const withoutNode = "-nonode"

// gpus is how many GPUs every topology has.
const gpus = 4

// baseTopologies are the topologies without their devices. Of the four-node ones each GPU has its own node; else two share one.
func baseTopologies() []Topology {
	far := [][]int{{10, 12, 32, 32}, {12, 10, 32, 32}, {32, 32, 10, 12}, {32, 32, 12, 10}}
	return []Topology{
		{ // one node per package
			Name: "n2", smp: "8,sockets=2,cores=2,threads=2",
			Nodes: []Node{
				{CPUs: "0-3", MemoryMiB: 1024, place: "socket-id=0"},
				{CPUs: "4-7", MemoryMiB: 1024, place: "socket-id=1"},
			},
			Distances: [][]int{{10, 21}, {21, 10}},
			L3:        []string{"0-3", "4-7"},
		},
		{ // one node per die, two dies per package, each with its own L3 cache: AMD's NPS2
			Name: "n4", smp: "8,sockets=2,dies=2,cores=1,threads=2",
			Nodes: []Node{
				{CPUs: "0-1", MemoryMiB: 512, place: "socket-id=0,die-id=0"},
				{CPUs: "2-3", MemoryMiB: 512, place: "socket-id=0,die-id=1"},
				{CPUs: "4-5", MemoryMiB: 512, place: "socket-id=1,die-id=0"},
				{CPUs: "6-7", MemoryMiB: 512, place: "socket-id=1,die-id=1"},
			},
			Distances: far,
			L3:        []string{"0-1", "2-3", "4-5", "6-7"},
		},
		{ // two nodes per package without dies: Intel's sub-NUMA clustering
			Name: "n4c", smp: "8,sockets=2,cores=2,threads=2", intel: true,
			Nodes: []Node{
				{CPUs: "0-1", MemoryMiB: 512, place: "socket-id=0,core-id=0"},
				{CPUs: "2-3", MemoryMiB: 512, place: "socket-id=0,core-id=1"},
				{CPUs: "4-5", MemoryMiB: 512, place: "socket-id=1,core-id=0"},
				{CPUs: "6-7", MemoryMiB: 512, place: "socket-id=1,core-id=1"},
			},
			Distances: far,
			L3:        []string{"0-3", "4-7"},
		},
		{ // nodes 2 and 3 have memory and no CPU, as the GPU memory of Grace Hopper has
			Name: "gh", smp: "8,sockets=2,cores=2,threads=2",
			Nodes: []Node{
				{CPUs: "0-3", MemoryMiB: 1024, place: "socket-id=0"},
				{CPUs: "4-7", MemoryMiB: 1024, place: "socket-id=1"},
				{MemoryMiB: 512},
				{MemoryMiB: 512},
			},
			Distances: [][]int{{10, 40, 80, 120}, {40, 10, 120, 80}, {80, 120, 10, 160}, {120, 80, 160, 10}},
			L3:        []string{"0-3", "4-7"},
		},
	}
}

// Topologies lists the names that ParseTopology takes.
func Topologies() []string {
	var names []string
	for _, t := range baseTopologies() {
		names = append(names, t.Name, t.Name+withoutNode)
	}
	return names
}

// ParseTopology returns the topology of that name:
//
//	n2     2 nodes, one per package
//	n4     4 nodes, two per package, each with an L3 cache of its own
//	n4c    4 nodes, two per package, which share the package's L3 cache
//	gh     2 nodes with CPUs and 2 of memory alone
//
// each with 4 GPUs spread evenly over the nodes with CPUs and one NIC per such node. With -nonode appended, GPU3 sits on
// the root bus and its numa_node reads -1.
func ParseTopology(name string) (Topology, error) {
	base, nonode := strings.CutSuffix(name, withoutNode)
	all := baseTopologies()
	i := slices.IndexFunc(all, func(t Topology) bool { return t.Name == base })
	if i < 0 {
		return Topology{}, fmt.Errorf("topology %q: want one of %s", name, strings.Join(Topologies(), ", "))
	}
	t := all[i]
	t.Name = name
	var local []int
	for id, n := range t.Nodes {
		if n.CPUs != "" {
			local = append(local, id)
		}
	}
	for g := range gpus {
		d := Device{Kind: GPU, Name: fmt.Sprintf("GPU%d", g), Node: local[g*len(local)/gpus]}
		if nonode && g == gpus-1 {
			d.Node = -1
		}
		t.Devices = append(t.Devices, d)
	}
	for i, node := range local {
		t.Devices = append(t.Devices, Device{Kind: NIC, Name: fmt.Sprintf("NIC%d", i), Node: node})
	}
	return t, nil
}

// MemoryMiB is the memory of all nodes, in MiB.
func (t Topology) MemoryMiB() int {
	sum := 0
	for _, n := range t.Nodes {
		sum += n.MemoryMiB
	}
	return sum
}
