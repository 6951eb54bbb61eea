// Package machines describes real GPU machines in a few lines each and writes
// the /sys and /proc trees that the kernel and the NVIDIA driver show on them,
// for tests and for the demonstration program.
package machines

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

// Description is one machine. CPU and node lists are in the kernel's list
// form.
type Description struct {
	Name string
	Met  string // where such a machine is met, and where its facts are from

	Nodes       []Node
	Packages    []Package
	Threads     int                    // hardware threads of a core, 0 means 1
	SiblingStep int                    // from one thread of a core to the next; 1: adjacent numbers
	L3Cores     int                    // cores per L3 cache, counted inside a package; 0: no L3
	Offline     string                 // present CPUs that are offline
	Distances   func(from, to int) int // between nodes; nil: one node, 10

	Driver  string // version of the NVIDIA driver, "": not loaded
	GPUs    []GPU
	NICs    []NIC
	Others  int  // PCI functions that are neither
	Virtual bool // NICs are virtio devices
}

// Node is one online NUMA node.
type Node struct {
	ID        int
	CPUs      string // "" for memory of a device or an expander
	MemoryMiB int64
}

// Package is one processor package; its CPUs include offline ones.
type Package struct {
	ID   int
	CPUs string
}

// GPU is one NVIDIA GPU.
type GPU struct {
	PCI     string
	Bridges []string // ancestors, from the root port downwards
	Model   string
	Minor   int
	Node    int // numa_node of the GPU and its bridges, -1: none

	// BridgeNodes, if there, are the bridges' numa_node instead of Node.
	BridgeNodes []int

	// What NVML answers: memory affinity (nodes), CPU affinity and the UUIDs
	// of MIG devices. All empty where there is no NVML.
	NVMLMemory string
	NVMLCPUs   string
	MIG        []string

	Unlisted bool // bound to another driver: only the PCI bus shows it
}

// NIC is one network or InfiniBand function.
type NIC struct {
	PCI        string
	Bridges    []string
	Node       int
	Interfaces []string // below net/
	InfiniBand []string // below infiniband/
}

// UUID returns the UUID that the driver gives the GPU at a PCI address: made
// up, but always the same for the same address.
func UUID(pci string) string {
	var hash uint64 = 14695981039346656037 // FNV-1a
	for _, c := range []byte(pci) {
		hash = (hash ^ uint64(c)) * 1099511628211
	}
	return fmt.Sprintf("GPU-%08x-%04x-%04x-%04x-%012x",
		uint32(hash>>32), uint16(hash>>16), uint16(hash), uint16(hash>>48), hash&0xffffffffffff)
}

// ErrUnknown is returned for a name that no description has.
var ErrUnknown = errors.New("unknown machine")

// Get returns the description of that name.
func Get(name string) (Description, error) {
	var names []string
	for _, d := range All() {
		if d.Name == name {
			return d, nil
		}
		names = append(names, d.Name)
	}
	return Description{}, fmt.Errorf("%w %q: want one of %q", ErrUnknown, name, names)
}

// Machine renders the description into the empty folder dir, reads it as a
// machine and adds what NVML says on it.
func (d Description) Machine(dir string) (*topology.Machine, error) {
	if err := d.Render(dir); err != nil {
		return nil, err
	}
	m, err := topology.Read(dir, topology.Options{NICs: true})
	if err != nil {
		return nil, err
	}
	m.AddNVML(d.NVML())
	return m, nil
}

// Scratch makes an empty folder to render into and returns it with a function
// that removes it. It is in memory where the machine has a tmpfs for that: a
// large machine is some ten thousand files, which take a disk file system
// seconds.
func Scratch() (dir string, remove func() error, err error) {
	for _, parent := range []string{"/dev/shm", os.TempDir()} {
		if dir, err = os.MkdirTemp(parent, "gputune-machine-"); err == nil {
			return dir, func() error { return os.RemoveAll(dir) }, nil
		}
	}
	return "", nil, fmt.Errorf("folder to render a machine into: %w", err)
}

// NVML returns what NVML answers on the machine; its GPUs come in reverse
// order, since nothing may depend on the order.
func (d Description) NVML() topology.NVML { return nvml{d} }

type nvml struct{ d Description }

// Facts implements topology.NVML.
func (n nvml) Facts(_, _ int) topology.NVMLFacts {
	facts := topology.NVMLFacts{Driver: n.d.Driver}
	for _, gpu := range n.d.GPUs {
		if gpu.Unlisted || gpu.NVMLMemory == "" && gpu.NVMLCPUs == "" && gpu.MIG == nil {
			continue
		}
		facts.GPUs = append(facts.GPUs, topology.NVMLGPU{
			PCI:    strings.Repeat("0", len("00000000:47:00.0")-len(gpu.PCI)) + gpu.PCI,
			UUID:   UUID(gpu.PCI),
			Model:  gpu.Model,
			Minor:  gpu.Minor,
			Memory: idset.MustParse(gpu.NVMLMemory),
			CPUs:   idset.MustParse(gpu.NVMLCPUs),
			MIG:    gpu.MIG,
		})
	}
	slices.Reverse(facts.GPUs)
	return facts
}
