package topology_test

import (
	"slices"
	"strings"
	"testing"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

// twoNodes is a machine with CPUs 0-7 on node 0, 8-15 on node 1, and the
// memory of a device on nodes 2, near 1, and 3, of which no distance is known.
func twoNodes(gpus ...topology.GPU) *topology.Machine {
	m := &topology.Machine{
		CPUs: idset.Range(0, 15),
		Nodes: []topology.Node{
			{ID: 0, CPUs: idset.Range(0, 7), MemoryMiB: 1024, Distances: map[int]int{0: 10, 1: 20, 2: 80}},
			{ID: 1, CPUs: idset.Range(8, 15), MemoryMiB: 1024, Distances: map[int]int{0: 20, 1: 10, 2: 40}},
			{ID: 2, MemoryMiB: 512, Distances: map[int]int{0: 80, 1: 40, 2: 10}},
			{ID: 3, MemoryMiB: 512},
		},
		GPUs: gpus,
	}
	for i := range m.GPUs {
		m.GPUs[i].Index = i
		if m.GPUs[i].PCI == "" {
			m.GPUs[i].PCI = []string{"0000:17:00.0", "0000:85:00.0", "0000:b5:00.0"}[i]
		}
	}
	return m
}

func TestResolve(t *testing.T) {
	set := idset.MustParse
	all := set("0-15")
	for _, test := range []struct {
		name        string
		gpu         topology.GPU
		nodes, cpus string
		from        string
		warning     string // a part of one; "": none at all
	}{
		{
			"NVML's memory affinity comes first",
			topology.GPU{NVMLMemory: set("1"), NVMLCPUs: set("8-15"), NUMANode: 1, LocalCPUs: set("8-15")},
			"1", "8-15", topology.FromNVMLMemory, "",
		},
		{
			"its CPU affinity can be narrower than the node",
			topology.GPU{NVMLMemory: set("1"), NVMLCPUs: set("8-11"), NUMANode: 1, LocalCPUs: set("8-15")},
			"1", "8-11", topology.FromNVMLMemory, "",
		},
		{
			"memory affinity that names the GPU's own memory too",
			topology.GPU{NVMLMemory: set("1-3"), NVMLCPUs: set("8-15"), NUMANode: 1, LocalCPUs: set("8-15")},
			"1", "8-15", topology.FromNVMLMemory, "",
		},
		{
			"memory affinity that names nothing else: the nearest node with CPUs",
			topology.GPU{NVMLMemory: set("2"), NUMANode: -1, LocalCPUs: all},
			"1", "8-15", topology.FromNVMLMemory, "numa_node is -1: node 1 is from its nvml memory affinity",
		},
		{
			"memory affinity of a node at unknown distance: the next source",
			topology.GPU{NVMLMemory: set("3"), NVMLCPUs: set("0-7"), NUMANode: 0, LocalCPUs: set("0-7")},
			"0", "0-7", topology.FromNVMLCPUs, "",
		},
		{
			"memory affinity of nodes that are not there",
			topology.GPU{NVMLMemory: set("9"), NUMANode: 0, LocalCPUs: set("0-7")},
			"0", "0-7", topology.FromNUMANode, "nvml memory affinity names nodes 9, which this machine does not have",
		},
		{
			"memory affinity to every node says nothing",
			topology.GPU{NVMLMemory: set("0-1"), NVMLCPUs: set("8-15"), NUMANode: 1, LocalCPUs: set("8-15")},
			"1", "8-15", topology.FromNVMLCPUs, "",
		},
		{
			"so does CPU affinity to every node",
			topology.GPU{NVMLMemory: set("0-1"), NVMLCPUs: all, NUMANode: 1, LocalCPUs: set("8-15")},
			"1", "8-15", topology.FromNUMANode, "",
		},
		{
			"NVML and sysfs contradict each other",
			topology.GPU{NVMLMemory: set("0"), NVMLCPUs: set("0-7"), NUMANode: 1, LocalCPUs: set("8-15")},
			"0", "0-7", topology.FromNVMLMemory, "nvml memory affinity says node 0, numa_node says node 1: the first is used",
		},
		{
			"numa_node without NVML",
			topology.GPU{NUMANode: 0, LocalCPUs: set("0-7")},
			"0", "0-7", topology.FromNUMANode, "",
		},
		{
			"numa_node and local_cpulist contradict each other",
			topology.GPU{NUMANode: 0, LocalCPUs: set("8-15")},
			"0", "0-7", topology.FromNUMANode, "numa_node says node 0, local_cpulist says node 1: the first is used",
		},
		{
			"numa_node without list: the node's CPUs",
			topology.GPU{NUMANode: 1},
			"1", "8-15", topology.FromNUMANode, "",
		},
		{
			"numa_node without CPUs: the nearest that has some",
			topology.GPU{NUMANode: 2},
			"1", "8-15", topology.FromNUMANode, "",
		},
		{
			"numa_node at unknown distance: the list",
			topology.GPU{NUMANode: 3, LocalCPUs: set("0-7")},
			"0", "0-7", topology.FromLocalCPUs, "",
		},
		{
			"-1 is not 0: the list",
			topology.GPU{NUMANode: -1, LocalCPUs: set("8-15")},
			"1", "8-15", topology.FromLocalCPUs, "numa_node is -1: node 1 is from its local_cpulist",
		},
		{
			"list with CPUs that are not online",
			topology.GPU{NUMANode: 1, LocalCPUs: set("8-15,24-31")},
			"1", "8-15", topology.FromNUMANode, "",
		},
		{
			"bridge, the nearest that knows",
			topology.GPU{NUMANode: -1, LocalCPUs: all, Bridges: []topology.Bridge{
				{PCI: "0000:16:00.0", NUMANode: -1, LocalCPUs: all},
				{PCI: "0000:15:00.0", NUMANode: 1, LocalCPUs: set("8-15")},
				{PCI: "0000:14:00.0", NUMANode: 0, LocalCPUs: set("0-7")},
			}},
			"1", "8-15", topology.FromBridgeNUMANode, "numa_node is -1",
		},
		{
			"bridge's list, of a nearer one before a farther one's node",
			topology.GPU{NUMANode: -1, LocalCPUs: all, Bridges: []topology.Bridge{
				{PCI: "0000:16:00.0", NUMANode: -1, LocalCPUs: set("0-3")},
				{PCI: "0000:15:00.0", NUMANode: 1, LocalCPUs: set("8-15")},
			}},
			"0", "0-3", topology.FromBridgeCPUs, "numa_node is -1",
		},
		{
			"nobody knows: everywhere",
			topology.GPU{NUMANode: -1, LocalCPUs: all, Bridges: []topology.Bridge{{PCI: "0000:16:00.0", NUMANode: -1, LocalCPUs: all}}},
			"", "0-15", "", "no source tells its NUMA node (numa_node is -1)",
		},
		{
			"nobody says anything",
			topology.GPU{NUMANode: -1},
			"", "", "", "no source tells its NUMA node",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := twoNodes(test.gpu)
			m.Resolve()
			gpu := m.GPUs[0]
			if gpu.Nodes.String() != test.nodes || gpu.CPUs.String() != test.cpus || gpu.NodesFrom != test.from {
				t.Errorf("node %q, CPUs %q from %q, want %q, %q from %q", gpu.Nodes, gpu.CPUs, gpu.NodesFrom, test.nodes, test.cpus, test.from)
			}
			got := strings.Join(m.Warnings, "\n")
			if test.warning == "" && got != "" || !strings.Contains(got, test.warning) {
				t.Errorf("warnings %q, want %q", got, test.warning)
			}
			before := slices.Clone(m.Warnings)
			m.Resolve()
			if !slices.Equal(m.Warnings, before) || !m.GPUs[0].Nodes.Equal(gpu.Nodes) {
				t.Errorf("resolved again: node %s, warnings %q", m.GPUs[0].Nodes, m.Warnings)
			}
		})
	}
}

// TestResolveOnASingleNode shows that where CPUs are on one node only, it is
// local, whatever the sources say or leave out.
func TestResolveOnASingleNode(t *testing.T) {
	set := idset.MustParse
	for _, test := range []struct {
		name string
		gpu  topology.GPU
		from string
	}{
		{"virtual machine, NVML asked", topology.GPU{NUMANode: -1, LocalCPUs: set("0-31"), NVMLMemory: set("0"), NVMLCPUs: set("0-31")}, topology.FromNVMLMemory},
		{"virtual machine, NVML not asked", topology.GPU{NUMANode: -1, LocalCPUs: set("0-31")}, topology.FromLocalCPUs},
		{"no list", topology.GPU{NUMANode: -1}, topology.FromSingleNode},
		{"node of the GPU's own memory", topology.GPU{NUMANode: 1}, topology.FromSingleNode},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := &topology.Machine{
				CPUs:  set("0-31"),
				Nodes: []topology.Node{{ID: 0, CPUs: set("0-31")}, {ID: 1}},
				GPUs:  []topology.GPU{test.gpu},
				NICs:  []topology.NIC{{PCI: "0000:00:03.0", NUMANode: -1}},
			}
			m.Resolve()
			if gpu := m.GPUs[0]; gpu.Nodes.String() != "0" || gpu.CPUs.String() != "0-31" || gpu.NodesFrom != test.from {
				t.Errorf("node %q, CPUs %q from %q", gpu.Nodes, gpu.CPUs, gpu.NodesFrom)
			}
			if m.NICs[0].Nodes.String() != "0" {
				t.Errorf("NIC's node %q", m.NICs[0].Nodes)
			}
			if len(m.Warnings) != 0 {
				t.Errorf("warnings %q", m.Warnings)
			}
		})
	}
}

func TestResolveWithoutNodes(t *testing.T) {
	m := &topology.Machine{CPUs: idset.Range(0, 3), GPUs: []topology.GPU{{PCI: "0000:01:00.0", NUMANode: 0, LocalCPUs: idset.Range(0, 3)}}}
	m.Resolve()
	if gpu := m.GPUs[0]; !gpu.Nodes.Empty() || gpu.CPUs.String() != "0-3" || gpu.NodesFrom != "" {
		t.Errorf("%+v", gpu)
	}
}

// TestResolveNearestTie takes the lowest of nodes that are equally far, as on
// Power9, where GPU memory is as far from both processors.
func TestResolveNearestTie(t *testing.T) {
	m := &topology.Machine{
		CPUs: idset.Range(0, 3),
		Nodes: []topology.Node{
			{ID: 0, CPUs: idset.Range(0, 1)},
			{ID: 8, CPUs: idset.Range(2, 3)},
			{ID: 255, Distances: map[int]int{8: 80, 0: 80, 255: 10}},
		},
		GPUs: []topology.GPU{{PCI: "0004:04:00.0", NUMANode: 255}},
	}
	m.Resolve()
	if got := m.GPUs[0].Nodes.String(); got != "0" {
		t.Errorf("node %q, want 0", got)
	}
}

// TestResolveNVMLOfAJob replays what NVML says inside a job whose cpuset is
// narrower than the machine.
func TestResolveNVMLOfAJob(t *testing.T) {
	set := idset.MustParse
	gpu := func(pci string, numaNode int, memory, cpus string) topology.GPU {
		return topology.GPU{PCI: pci, NUMANode: numaNode, NVMLMemory: set(memory), NVMLCPUs: set(cpus)}
	}
	eight := func(gpus ...topology.GPU) *topology.Machine {
		m := &topology.Machine{CPUs: set("0-255"), GPUs: gpus}
		for id := range 8 {
			m.Nodes = append(m.Nodes, topology.Node{ID: id, CPUs: idset.Range(16*id, 16*id+15).Or(idset.Range(16*id+128, 16*id+143))})
		}
		return m
	}
	const suspected = "NVML says node "
	for _, test := range []struct {
		name      string
		machine   *topology.Machine
		want      []string
		from      string
		suspected bool
	}{
		{
			"two K80 pairs, a job on CPUs 0-3",
			twoNodes(gpu("0000:04:00.0", 0, "0", "0-3"), gpu("0000:84:00.0", 1, "0", "0-3")),
			[]string{"0", "1"},
			topology.FromNUMANode, true,
		},
		{
			"DGX A100, a job on 112-127 and 240-255",
			eight(gpu("0000:07:00.0", 3, "6-7", "112-127,240-255"), gpu("0000:47:00.0", 1, "6-7", "112-127,240-255"), gpu("0000:87:00.0", 7, "6-7", "112-127,240-255")),
			[]string{"3", "1", "7"},
			topology.FromNUMANode, true,
		},
		{
			"the same, sysfs does not know",
			eight(gpu("0000:07:00.0", -1, "6-7", "112-127,240-255"), gpu("0000:47:00.0", -1, "6-7", "112-127,240-255")),
			[]string{"", ""},
			"", true,
		},
		{
			"all GPUs on one socket of two nodes, sysfs names one of them",
			eight(gpu("0000:07:00.0", 0, "0-1", "0-31,128-159"), gpu("0000:47:00.0", 0, "0-1", "0-31,128-159")),
			[]string{"0-1", "0-1"},
			topology.FromNVMLMemory, false,
		},
		{
			"all GPUs on one node, sysfs does not know",
			eight(gpu("0000:07:00.0", -1, "5", "80-95"), gpu("0000:47:00.0", -1, "5", "80-95")),
			[]string{"5", "5"},
			topology.FromNVMLMemory, false,
		},
		{
			"one GPU, nothing to compare",
			eight(gpu("0000:07:00.0", 3, "6-7", "112-127,240-255")),
			[]string{"6-7"},
			topology.FromNVMLMemory, false,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.machine.Resolve()
			for i, gpu := range test.machine.GPUs {
				if gpu.Nodes.String() != test.want[i] || gpu.NodesFrom != test.from {
					t.Errorf("GPU %s: node %q from %q, want %q from %q", gpu.PCI, gpu.Nodes, gpu.NodesFrom, test.want[i], test.from)
				}
			}
			if got := strings.Contains(strings.Join(test.machine.Warnings, "\n"), suspected); got != test.suspected {
				t.Errorf("warnings %q", test.machine.Warnings)
			}
		})
	}
}

// answers is an NVML with fixed answers.
type answers struct {
	facts       topology.NVMLFacts
	cpus, nodes *int
}

func (a answers) Facts(cpus, nodes int) topology.NVMLFacts {
	*a.cpus, *a.nodes = cpus, nodes
	return a.facts
}

func TestAddNVML(t *testing.T) {
	set := idset.MustParse
	m := twoNodes(
		topology.GPU{NUMANode: -1, Minor: -1, LocalCPUs: set("0-15")},
		topology.GPU{NUMANode: 1, Minor: 4, UUID: "GPU-old", Model: "old"},
		topology.GPU{NUMANode: 0, Minor: 2, UUID: "GPU-silent"},
	)
	m.Offline = set("16-19")
	m.Warnings = []string{"from before"}
	m.Resolve()
	if len(m.Warnings) != 2 {
		t.Fatalf("warnings %q", m.Warnings)
	}
	var cpus, nodes int
	m.AddNVML(answers{topology.NVMLFacts{
		Driver:   "580.159.04",
		Warnings: []string{"NVML: something"},
		GPUs: []topology.NVMLGPU{
			{PCI: "00000000:99:00.0", UUID: "GPU-strange", Minor: 9},
			{PCI: "nonsense", UUID: "GPU-nonsense"},
			{PCI: "00000000:85:00.0", UUID: "GPU-new", Minor: -1, Memory: set("1"), CPUs: set("8-15"), MIG: []string{"MIG-1"}},
			{PCI: "00000000:17:00.0", UUID: "GPU-first", Minor: 0, Model: "H200", Memory: set("0"), CPUs: set("0-7")},
		},
	}, &cpus, &nodes})
	if cpus != 20 || nodes != 4 {
		t.Errorf("asked for %d CPUs and %d nodes, want 20 and 4", cpus, nodes)
	}
	first, second, third := m.GPUs[0], m.GPUs[1], m.GPUs[2]
	if first.UUID != "GPU-first" || first.Minor != 0 || first.Model != "H200" || first.Nodes.String() != "0" || first.NodesFrom != topology.FromNVMLMemory {
		t.Errorf("first %+v", first)
	}
	if second.UUID != "GPU-new" || second.Minor != 4 || second.Model != "old" || second.Nodes.String() != "1" || !slices.Equal(second.MIG, []string{"MIG-1"}) {
		t.Errorf("second %+v", second)
	}
	if third.UUID != "GPU-silent" || third.Minor != 2 || third.Nodes.String() != "0" || third.NodesFrom != topology.FromNUMANode {
		t.Errorf("third %+v", third)
	}
	if m.Driver != "580.159.04" {
		t.Errorf("driver %q", m.Driver)
	}
	want := []string{
		"from before",
		"NVML: something",
		"NVML: GPU 0000:99:00.0 is not among those that sysfs and the driver list",
		`NVML: PCI address "nonsense": want DOMAIN:BUS:DEVICE.FUNCTION in hexadecimal, such as 0000:47:00.0`,
		"GPU 0000:85:00.0: the driver's information file says GPU-old, NVML says GPU-new",
		"NVML: says nothing about GPU 0000:b5:00.0",
		"GPU 0000:17:00.0: numa_node is -1: node 0 is from its nvml memory affinity",
	}
	if !slices.Equal(m.Warnings, want) {
		t.Errorf("warnings\n%s\nwant\n%s", strings.Join(m.Warnings, "\n"), strings.Join(want, "\n"))
	}
}

// TestAddNVMLWithoutLibrary changes nothing.
func TestAddNVMLWithoutLibrary(t *testing.T) {
	m := twoNodes(topology.GPU{NUMANode: 1, Minor: 4, UUID: "GPU-old"})
	m.Driver = "580.159.04"
	var cpus, nodes int
	m.AddNVML(answers{topology.NVMLFacts{}, &cpus, &nodes})
	if gpu := m.GPUs[0]; gpu.UUID != "GPU-old" || gpu.Minor != 4 || gpu.Nodes.String() != "1" || m.Driver != "580.159.04" || len(m.Warnings) != 0 {
		t.Errorf("%+v, driver %q, warnings %q", gpu, m.Driver, m.Warnings)
	}
}
