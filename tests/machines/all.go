package machines

import (
	"fmt"
	"strconv"
)

// All returns every description.
func All() []Description {
	return []Description{
		dgxA100(), dgxH100(), gb200(), graceHopper(), graceHopperX4(), power9AC922(),
		gpuAtMinusOne(), bridgeKnows(), sncTwoNodes(), workstation(), smtOff(), offlineCPUs(),
		epycNPS1(), demoDual(), h200VM(), vmPartialNodes(), deepDomain(), jobCpuset(), bench512(),
	}
}

// DGX A100: 2 AMD EPYC 7742 in NPS4, eight A100 behind four pairs of PCIe
// switches, eight ConnectX-6 for computing. The order of the nodes, 3,3,1,1,
// 7,7,5,5, is the one nvidia-smi topo -m prints on every such machine.
func dgxA100() Description {
	d := Description{
		Name: "dgx-a100", Met: "NVIDIA DGX A100, HPE Apollo 6500, DKRZ Levante and other HGX A100 with NPS4",
		Threads: 2, SiblingStep: 128, L3Cores: 4, Driver: "535.183.06",
		Packages:  []Package{{0, "0-63,128-191"}, {1, "64-127,192-255"}},
		Distances: sockets(4, 12, 32),
	}
	for n := range 8 {
		d.Nodes = append(d.Nodes, Node{n, fmt.Sprintf("%d-%d,%d-%d", 16*n, 16*n+15, 16*n+128, 16*n+143), 128921})
	}
	for i, at := range []struct {
		root, up, left, right string
		gpu, nic              [2]string
		node                  int
	}{
		{"0000:00:01.1", "0000:01:00.0", "0000:03:00.0", "0000:0a:00.0", [2]string{"0000:07:00.0", "0000:0f:00.0"}, [2]string{"0000:12:00.0", "0000:0c:00.0"}, 3},
		{"0000:40:01.1", "0000:41:00.0", "0000:43:00.0", "0000:49:00.0", [2]string{"0000:47:00.0", "0000:4e:00.0"}, [2]string{"0000:54:00.0", "0000:4b:00.0"}, 1},
		{"0000:80:01.1", "0000:81:00.0", "0000:83:00.0", "0000:8b:00.0", [2]string{"0000:87:00.0", "0000:90:00.0"}, [2]string{"0000:94:00.0", "0000:8d:00.0"}, 7},
		{"0000:b0:01.1", "0000:b1:00.0", "0000:b3:00.0", "0000:b8:00.0", [2]string{"0000:b7:00.0", "0000:bd:00.0"}, [2]string{"0000:cc:00.0", "0000:ba:00.0"}, 5},
	} {
		for j, bridge := range []string{at.left, at.right} {
			above := []string{at.root, at.up, bridge}
			d.GPUs = append(d.GPUs, GPU{
				PCI: at.gpu[j], Bridges: above, Model: "NVIDIA A100-SXM4-40GB", Minor: 2*i + j, Node: at.node,
				NVMLMemory: strconv.Itoa(at.node), NVMLCPUs: d.Nodes[at.node].CPUs,
			})
			d.NICs = append(d.NICs, NIC{
				PCI: at.nic[j], Bridges: above, Node: at.node,
				Interfaces: []string{fmt.Sprintf("ib%d", 2*i+j)}, InfiniBand: []string{fmt.Sprintf("mlx5_%d", 2*i+j)},
			})
		}
	}
	return d
}

// DGX H100: 2 Xeon 8480C with 56 cores, SMT, one NUMA node per package.
func dgxH100() Description {
	d := Description{
		Name: "dgx-h100", Met: "NVIDIA DGX H100, Lenovo SR680a V3, most 8-GPU H100 servers",
		Threads: 2, SiblingStep: 112, L3Cores: 56, Driver: "550.90.07",
		Packages:  []Package{{0, "0-55,112-167"}, {1, "56-111,168-223"}},
		Nodes:     []Node{{0, "0-55,112-167", 1031517}, {1, "56-111,168-223", 1032189}},
		Distances: sockets(1, 12, 21),
	}
	for i, bus := range []int{0x1b, 0x43, 0x52, 0x61, 0x9d, 0xc3, 0xd1, 0xdf} {
		node := i / 4
		above := []string{pci(0, bus-3, 1, 0), pci(0, bus-2, 0, 0), pci(0, bus-1, 0, 0)}
		d.GPUs = append(d.GPUs, GPU{
			PCI: pci(0, bus, 0, 0), Bridges: above, Model: "NVIDIA H100 80GB HBM3", Minor: i, Node: node,
			NVMLMemory: strconv.Itoa(node), NVMLCPUs: d.Nodes[node].CPUs,
		})
		d.NICs = append(d.NICs, NIC{
			PCI: pci(0, bus-1, 1, 0), Bridges: above[:2], Node: node,
			Interfaces: []string{fmt.Sprintf("ibp%ds0", bus-1)}, InfiniBand: []string{fmt.Sprintf("mlx5_%d", i)},
		})
	}
	return d
}

// GB200 compute tray: two Grace CPUs, four Blackwell GPUs. Each GPU has eight
// node ids of its own, of which only the first has memory (the others are for
// MIG); NVML counts the empty ones as memory near the GPU.
func gb200() Description {
	d := Description{
		Name: "gb200", Met: "NVIDIA GB200 NVL72, one compute tray",
		L3Cores: 72, Driver: "570.124.06",
		Packages: []Package{{0, "0-71"}, {1, "72-143"}},
		Nodes:    []Node{{0, "0-71", 490070}, {1, "72-143", 490530}},
		Distances: func(from, to int) int {
			owner := func(node int) int {
				if node < 2 {
					return node
				}
				return (node - 2) / 16
			}
			switch {
			case from == to:
				return 10
			case from < 2 && to < 2:
				return 40
			case owner(from) != owner(to):
				return 160
			case from < 2 || to < 2:
				return 80
			default:
				return 120
			}
		},
	}
	for id := 2; id < 34; id++ {
		node := Node{ID: id}
		if id%8 == 2 {
			node.MemoryMiB = 188416
		}
		d.Nodes = append(d.Nodes, node)
	}
	for i, domain := range []int{0x8, 0x9, 0x18, 0x19} {
		node := i / 2
		d.GPUs = append(d.GPUs, GPU{
			PCI: pci(domain, 1, 0, 0), Bridges: []string{pci(domain, 0, 0, 0)}, Model: "NVIDIA GB200", Minor: i, Node: node,
			NVMLMemory: []string{"0,3-9,11-17", "1,19-25,27-33"}[node], NVMLCPUs: d.Packages[node].CPUs,
		})
	}
	for i, domain := range []int{0x0, 0x2, 0x10, 0x12} {
		d.NICs = append(d.NICs, NIC{
			PCI: pci(domain, 3, 0, 0), Bridges: []string{pci(domain, 0, 0, 0), pci(domain, 1, 0, 0), pci(domain, 2, 0, 0)}, Node: i / 2,
			Interfaces: []string{fmt.Sprintf("ibp%ds0", 3+i)}, InfiniBand: []string{fmt.Sprintf("mlx5_%d", i)},
		})
	}
	return d
}

// GH200: one Grace Hopper superchip, nine nodes of which one has CPUs.
func graceHopper() Description { return hopper("grace-hopper", "GH200 480GB server", 1) }

// GH200 quad: four superchips in one machine, 36 nodes.
func graceHopperX4() Description {
	return hopper("grace-hopper-x4", "quad GH200: CSCS Alps, JUPITER, Olivia", 4)
}

func hopper(name, met string, chips int) Description {
	d := Description{
		Name: name, Met: met, L3Cores: 72, Driver: "565.57.01",
		Distances: func(from, to int) int {
			owner := func(node int) int {
				if node < chips {
					return node
				}
				return (node - chips) / 8
			}
			switch {
			case from == to:
				return 10
			case from < chips && to < chips:
				return 40
			case from >= chips && to >= chips:
				return 255
			case owner(from) != owner(to):
				return 120
			default:
				return 80
			}
		},
	}
	for chip := range chips {
		cpus := fmt.Sprintf("%d-%d", 72*chip, 72*chip+71)
		d.Packages = append(d.Packages, Package{chip, cpus})
		d.Nodes = append(d.Nodes, Node{chip, cpus, 122880})
		d.GPUs = append(d.GPUs, GPU{
			PCI: pci(0x9+0x10*chip, 1, 0, 0), Bridges: []string{pci(0x9+0x10*chip, 0, 0, 0)},
			Model: "NVIDIA GH200 120GB", Minor: chip, Node: chip,
			NVMLMemory: strconv.Itoa(chip), NVMLCPUs: cpus,
		})
	}
	for id := chips; id < 9*chips; id++ {
		node := Node{ID: id}
		if (id-chips)%8 == 0 {
			node.MemoryMiB = 97280
		}
		d.Nodes = append(d.Nodes, node)
	}
	return d
}

// IBM AC922: two POWER9 with four threads per core and four V100. The nodes
// have sparse ids; those of the GPUs' memory are numbered down from 255 and
// are equally far from both processors.
func power9AC922() Description {
	return Description{
		Name: "power9-ac922", Met: "IBM AC922: Summit, Sierra, Lassen, Princeton Traverse",
		Threads: 4, SiblingStep: 1, L3Cores: 2, Driver: "470.199.02",
		Packages: []Package{{0, "0-63"}, {8, "64-127"}},
		Nodes: []Node{
			{0, "0-63", 127835},
			{8, "64-127", 130772},
			{252, "", 16128},
			{253, "", 16128},
			{254, "", 16128},
			{255, "", 16128},
		},
		Distances: func(from, to int) int {
			switch {
			case from == to:
				return 10
			case from <= 8 && to <= 8:
				return 40
			default:
				return 80
			}
		},
		GPUs: []GPU{
			{PCI: "0004:04:00.0", Bridges: []string{"0004:00:00.0", "0004:01:00.0", "0004:02:02.0"}, Model: "Tesla V100-SXM2-16GB", Minor: 0, Node: 0, NVMLMemory: "0", NVMLCPUs: "0-63"},
			{PCI: "0004:05:00.0", Bridges: []string{"0004:00:00.0", "0004:01:00.0", "0004:02:0a.0"}, Model: "Tesla V100-SXM2-16GB", Minor: 1, Node: 0, NVMLMemory: "0", NVMLCPUs: "0-63"},
			{PCI: "0035:03:00.0", Bridges: []string{"0035:00:00.0", "0035:01:00.0", "0035:02:04.0"}, Model: "Tesla V100-SXM2-16GB", Minor: 2, Node: 8, NVMLMemory: "8", NVMLCPUs: "64-127"},
			{PCI: "0035:04:00.0", Bridges: []string{"0035:00:00.0", "0035:01:00.0", "0035:02:05.0"}, Model: "Tesla V100-SXM2-16GB", Minor: 3, Node: 8, NVMLMemory: "8", NVMLCPUs: "64-127"},
		},
		NICs: []NIC{
			{PCI: "0003:01:00.0", Bridges: []string{"0003:00:00.0"}, Node: 0, Interfaces: []string{"ib0"}, InfiniBand: []string{"mlx5_0"}},
			{PCI: "0033:01:00.0", Bridges: []string{"0033:00:00.0"}, Node: 8, Interfaces: []string{"ib2"}, InfiniBand: []string{"mlx5_2"}},
		},
	}
}

// Firmware that gives one root port no proximity domain: the kernel says -1
// and, for want of a node, lists all CPUs.
func gpuAtMinusOne() Description {
	return Description{
		Name: "gpu-at-minus-one", Met: "two-socket servers with incomplete ACPI tables, before NVML is asked",
		Threads: 2, SiblingStep: 16, L3Cores: 8, Driver: "535.183.06",
		Packages:  []Package{{0, "0-7,16-23"}, {1, "8-15,24-31"}},
		Nodes:     []Node{{0, "0-7,16-23", 64214}, {1, "8-15,24-31", 64508}},
		Distances: sockets(1, 12, 21),
		GPUs: []GPU{
			{PCI: "0000:17:00.0", Bridges: []string{"0000:16:00.0"}, Model: "NVIDIA A40", Minor: 0, Node: 0},
			{PCI: "0000:b1:00.0", Bridges: []string{"0000:b0:00.0"}, Model: "NVIDIA A40", Minor: 1, Node: -1},
		},
	}
}

// The same, but the root port above the GPU has a node.
func bridgeKnows() Description {
	return Description{
		Name: "bridge-knows", Met: "external GPU boxes and PCIe expanders, whose own bridges have no node",
		Threads: 1, L3Cores: 8, Driver: "535.183.06",
		Packages:  []Package{{0, "0-7"}, {1, "8-15"}},
		Nodes:     []Node{{0, "0-7", 64214}, {1, "8-15", 64508}},
		Distances: sockets(1, 12, 21),
		GPUs: []GPU{
			{PCI: "0000:85:00.0", Bridges: []string{"0000:80:02.0", "0000:81:00.0", "0000:82:08.0"}, BridgeNodes: []int{1, -1, -1}, Model: "NVIDIA L40S", Minor: 0, Node: -1},
			{PCI: "0000:86:00.0", Bridges: []string{"0000:80:02.0", "0000:81:00.0", "0000:82:10.0"}, BridgeNodes: []int{1, -1, -1}, Model: "NVIDIA L40S", Minor: 1, Node: -1},
		},
	}
}

// Sub-NUMA clustering: a package is two nodes, the GPUs hang off the package
// and NVML calls both nodes near, while sysfs can name one only.
func sncTwoNodes() Description {
	d := Description{
		Name: "snc-two-nodes", Met: "two-socket Xeon with SNC2 and H100",
		Threads: 2, SiblingStep: 96, L3Cores: 48, Driver: "550.90.07",
		Packages:  []Package{{0, "0-47,96-143"}, {1, "48-95,144-191"}},
		Distances: sockets(2, 12, 21),
	}
	for n := range 4 {
		d.Nodes = append(d.Nodes, Node{n, fmt.Sprintf("%d-%d,%d-%d", 24*n, 24*n+23, 24*n+96, 24*n+119), 257611})
	}
	for i, bus := range []int{0x19, 0x3b, 0x4c, 0x5d, 0x9b, 0xbb, 0xcb, 0xdb} {
		socket := i / 4
		d.GPUs = append(d.GPUs, GPU{
			PCI: pci(0, bus, 0, 0), Bridges: []string{pci(0, bus-2, 1, 0), pci(0, bus-1, 0, 0)},
			Model: "NVIDIA H100 80GB HBM3", Minor: i, Node: 2 * socket,
			NVMLMemory: []string{"0-1", "2-3"}[socket], NVMLCPUs: d.Packages[socket].CPUs,
		})
	}
	return d
}

// A workstation: one node, firmware that states no proximity at all, a third
// GPU handed to a virtual machine.
func workstation() Description {
	return Description{
		Name: "workstation", Met: "Threadripper Pro desktop with two RTX 5090",
		Threads: 2, SiblingStep: 32, L3Cores: 4, Driver: "575.57.08",
		Packages: []Package{{0, "0-63"}},
		Nodes:    []Node{{0, "0-63", 257674}},
		GPUs: []GPU{
			{PCI: "0000:01:00.0", Bridges: []string{"0000:00:01.1"}, Model: "NVIDIA GeForce RTX 5090", Minor: 0, Node: -1},
			{PCI: "0000:21:00.0", Bridges: []string{"0000:20:01.1"}, Model: "NVIDIA GeForce RTX 5090", Unlisted: true, Node: -1},
			{PCI: "0000:41:00.0", Bridges: []string{"0000:40:01.1"}, Model: "NVIDIA GeForce RTX 5090", Minor: 1, Node: -1},
		},
		NICs: []NIC{{PCI: "0000:44:00.0", Bridges: []string{"0000:40:03.2"}, Node: -1, Interfaces: []string{"enp68s0"}}},
	}
}

// SMT switched off at run time (/sys/devices/system/cpu/smt/control): the
// second threads are still present.
func smtOff() Description {
	return Description{
		Name: "smt-off", Met: "HPC sites that boot with nosmt or switch SMT off in a Prolog",
		Threads: 2, SiblingStep: 24, L3Cores: 12, Driver: "535.183.06", Offline: "24-47",
		Packages:  []Package{{0, "0-11,24-35"}, {1, "12-23,36-47"}},
		Nodes:     []Node{{0, "0-11", 128624}, {1, "12-23", 128992}},
		Distances: sockets(1, 12, 21),
		GPUs: []GPU{
			{PCI: "0000:04:00.0", Bridges: []string{"0000:00:02.0"}, Model: "Tesla P100-PCIE-16GB", Minor: 0, Node: 0, NVMLMemory: "0", NVMLCPUs: "0-11"},
			{PCI: "0000:82:00.0", Bridges: []string{"0000:80:02.0"}, Model: "Tesla P100-PCIE-16GB", Minor: 1, Node: 1, NVMLMemory: "1", NVMLCPUs: "12-23"},
		},
	}
}

// Some CPUs taken offline: one thread of core 1, all of core 3, all but one
// core of the last L3 group.
func offlineCPUs() Description {
	return Description{
		Name: "offline-cpus", Met: "machines with faulty cores switched off by the administrator",
		Threads: 2, SiblingStep: 16, L3Cores: 4, Driver: "535.183.06", Offline: "3,13-15,17,19,29-31",
		Packages:  []Package{{0, "0-7,16-23"}, {1, "8-15,24-31"}},
		Nodes:     []Node{{0, "0-2,4-7,16,18,20-23", 64214}, {1, "8-12,24-28", 64508}},
		Distances: sockets(1, 12, 32),
		GPUs: []GPU{
			{PCI: "0000:21:00.0", Bridges: []string{"0000:20:01.1"}, Model: "NVIDIA A30", Minor: 1, Node: 0},
			{PCI: "0000:81:00.0", Bridges: []string{"0000:80:01.1"}, Model: "NVIDIA A30", Minor: 0, Node: 1},
		},
	}
}

// Dual EPYC with NPS1: one node per package and many L3 groups in it.
func epycNPS1() Description {
	return Description{
		Name: "epyc-nps1", Met: "2x EPYC 7713 with NPS1 and without SMT: Princeton Della",
		L3Cores: 8, Driver: "525.85.12",
		Packages:  []Package{{0, "0-63"}, {1, "64-127"}},
		Nodes:     []Node{{0, "0-63", 515813}, {1, "64-127", 516080}},
		Distances: sockets(1, 12, 32),
		GPUs: []GPU{
			{PCI: "0000:21:00.0", Bridges: []string{"0000:20:01.1"}, Model: "NVIDIA A100-PCIE-40GB", Minor: 0, Node: 0, NVMLMemory: "0", NVMLCPUs: "0-63"},
			{PCI: "0000:81:00.0", Bridges: []string{"0000:80:01.1"}, Model: "NVIDIA A100-PCIE-40GB", Minor: 1, Node: 1, NVMLMemory: "1", NVMLCPUs: "64-127"},
		},
		NICs: []NIC{
			{PCI: "0000:01:00.0", Bridges: []string{"0000:00:03.1"}, Node: 0, Interfaces: []string{"ib0"}, InfiniBand: []string{"mlx5_0"}},
			{PCI: "0000:a1:00.0", Bridges: []string{"0000:a0:03.1"}, Node: 1, Interfaces: []string{"ib1"}, InfiniBand: []string{"mlx5_1"}},
		},
	}
}

// The smallest machine on which binding is visible: it needs no more than the
// two CPUs of a small virtual machine, so a demonstration can really bind.
func demoDual() Description {
	d := Description{
		Name: "demo-dual", Met: "nowhere: a demonstration of a dual-socket machine on two CPUs",
		L3Cores: 1, Driver: "580.159.04",
		Packages:  []Package{{0, "0"}, {1, "1"}},
		Nodes:     []Node{{0, "0", 16384}, {1, "1", 16384}},
		Distances: sockets(1, 12, 21),
	}
	for i, bus := range []int{0x17, 0x3d, 0x97, 0xbd} {
		node := i / 2
		d.GPUs = append(d.GPUs, GPU{
			PCI: pci(0, bus, 0, 0), Bridges: []string{pci(0, bus-1, 1, 0)}, Model: "NVIDIA H100 PCIe", Minor: i, Node: node,
			NVMLMemory: strconv.Itoa(node), NVMLCPUs: strconv.Itoa(node),
		})
	}
	return d
}

// A virtual machine with a GPU passed through: the firmware states no node,
// and there is one only.
func h200VM() Description {
	return Description{
		Name: "h200-vm", Met: "virtual machine with one passed-through H200, 16 CPUs",
		L3Cores: 16, Driver: "580.159.04", Virtual: true,
		Packages: []Package{{0, "0-15"}},
		Nodes:    []Node{{0, "0-15", 128721}},
		GPUs: []GPU{{
			PCI: "0000:00:06.0", Model: "NVIDIA H200", Minor: 0, Node: -1, NVMLMemory: "0", NVMLCPUs: "0-15",
		}},
		NICs: []NIC{{PCI: "0000:00:03.0", Node: -1, Interfaces: []string{"eth0"}}},
	}
}

// A virtual machine whose firmware puts only half of the CPUs into nodes.
func vmPartialNodes() Description {
	return Description{
		Name: "vm-partial-nodes", Met: "hand-made virtual machines whose NUMA settings were not kept up with their CPUs",
		L3Cores: 0, Driver: "535.183.06", Virtual: true,
		Packages:  []Package{{0, "0-3"}, {1, "4-7"}},
		Nodes:     []Node{{0, "0-1", 16002}, {1, "2-3", 16124}},
		Distances: sockets(1, 20, 20),
		GPUs: []GPU{
			{PCI: "0000:05:00.0", Bridges: []string{"0000:00:02.4"}, Model: "Tesla T4", Minor: 0, Node: 1},
			{PCI: "0000:06:00.0", Bridges: []string{"0000:00:02.5"}, Model: "Tesla T4", Minor: 1, Node: -1},
		},
		NICs: []NIC{{PCI: "0000:01:00.0", Bridges: []string{"0000:00:02.0"}, Node: -1, Interfaces: []string{"enp1s0"}}},
	}
}

// A GPU behind an Intel VMD or a Hyper-V bridge: its PCI domain has more than
// four digits, and /sys/devices nests one host bridge below another's device.
// Without the driver only the PCI bus shows it.
func deepDomain() Description {
	return Description{
		Name: "deep-domain", Met: "VMD on Xeon, Hyper-V and Azure: PCI domains above ffff; no NVIDIA driver loaded",
		L3Cores:   4,
		Packages:  []Package{{0, "0-3"}, {1, "4-7"}},
		Nodes:     []Node{{0, "0-3", 32108}, {1, "4-7", 32253}},
		Distances: sockets(1, 20, 21),
		GPUs: []GPU{
			{PCI: "10000:e1:00.0", Bridges: []string{"0000:e0:05.5", "10000:e0:06.0"}, Node: 1},
			{PCI: "0000:3b:00.0", Bridges: []string{"0000:3a:00.0"}, Node: 0},
		},
	}
}

// What NVML says to a process inside a job that has been given four CPUs of
// one socket: the process's own CPUs for every GPU.
func jobCpuset() Description {
	return Description{
		Name: "job-cpuset", Met: "2x 12 cores and 4 K80 under Slurm, as seen from a job that owns CPUs 0-3",
		L3Cores: 12, Driver: "460.32.03",
		Packages:  []Package{{0, "0-11"}, {1, "12-23"}},
		Nodes:     []Node{{0, "0-11", 32086}, {1, "12-23", 32253}},
		Distances: sockets(1, 12, 21),
		GPUs: []GPU{
			{PCI: "0000:04:00.0", Bridges: []string{"0000:00:02.0"}, Model: "Tesla K80", Minor: 0, Node: 0, NVMLMemory: "0", NVMLCPUs: "0-3"},
			{PCI: "0000:05:00.0", Bridges: []string{"0000:00:02.0"}, Model: "Tesla K80", Minor: 1, Node: 0, NVMLMemory: "0", NVMLCPUs: "0-3"},
			{PCI: "0000:84:00.0", Bridges: []string{"0000:80:02.0"}, Model: "Tesla K80", Minor: 2, Node: 1, NVMLMemory: "0", NVMLCPUs: "0-3"},
			{PCI: "0000:85:00.0", Bridges: []string{"0000:80:02.0"}, Model: "Tesla K80", Minor: 3, Node: 1, NVMLMemory: "0", NVMLCPUs: "0-3"},
		},
	}
}

// The largest machine that a launch has to be quick on.
func bench512() Description {
	d := Description{
		Name: "bench-512", Met: "nowhere yet: 2x EPYC 9755 in NPS4 with 16 GPUs and 300 PCI functions, for benchmarks",
		Threads: 2, SiblingStep: 256, L3Cores: 8, Driver: "580.159.04", Others: 240,
		Packages:  []Package{{0, "0-127,256-383"}, {1, "128-255,384-511"}},
		Distances: sockets(4, 12, 32),
	}
	for n := range 8 {
		d.Nodes = append(d.Nodes, Node{n, fmt.Sprintf("%d-%d,%d-%d", 32*n, 32*n+31, 32*n+256, 32*n+287), 193024})
	}
	for i := range 16 {
		node, bus := i/2, 0x10*(i/2)
		above := []string{pci(0, bus, 1, 1), pci(0, bus+1, 0, 0), pci(0, bus+2, i%2, 0)}
		d.GPUs = append(d.GPUs, GPU{
			PCI: pci(0, bus+4+i%2, 0, 0), Bridges: above, Model: "NVIDIA B200", Minor: i, Node: node,
			NVMLMemory: strconv.Itoa(node), NVMLCPUs: d.Nodes[node].CPUs,
		})
		d.NICs = append(d.NICs, NIC{
			PCI: pci(0, bus+6+i%2, 0, 0), Bridges: above, Node: node,
			Interfaces: []string{fmt.Sprintf("ib%d", i)}, InfiniBand: []string{fmt.Sprintf("mlx5_%d", i)},
		})
	}
	return d
}

func pci(domain, bus, device, function int) string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", domain, bus, device, function)
}

// sockets returns ACPI distances of a machine with several nodes per socket:
// 10 to itself, inside a socket, and between two.
func sockets(nodesPerSocket, inside, across int) func(from, to int) int {
	return func(from, to int) int {
		switch {
		case from == to:
			return 10
		case from/nodesPerSocket == to/nodesPerSocket:
			return inside
		default:
			return across
		}
	}
}
