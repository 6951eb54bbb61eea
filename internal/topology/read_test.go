package topology_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"gputune/internal/topology"
)

const (
	cpuFolder  = "sys/devices/system/cpu/"
	nodeFolder = "sys/devices/system/node/"
	pciFolder  = "sys/bus/pci/devices/"
	gpuFolder  = "proc/driver/nvidia/gpus/"
)

// tree is a rendered machine whose files a test changes.
type tree struct {
	*testing.T
	root string
}

func (t tree) write(path, content string) {
	t.Helper()
	at := filepath.Join(t.root, path)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (t tree) remove(pattern string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(t.root, pattern))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s: nothing to remove: %v", pattern, err)
	}
	for _, path := range paths {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
}

func (t tree) read() *topology.Machine {
	t.Helper()
	m, err := topology.Read(t.root, topology.Options{NICs: true})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func cores(m *topology.Machine) string {
	var lists []string
	for _, c := range m.Cores {
		lists = append(lists, c.CPUs.String())
	}
	return strings.Join(lists, " ")
}

func packages(m *topology.Machine) string {
	var lists []string
	for _, p := range m.Packages {
		lists = append(lists, fmt.Sprintf("%d=%s", p.ID, p.CPUs))
	}
	return strings.Join(lists, " ")
}

func l3(m *topology.Machine) string {
	var lists []string
	for _, g := range m.L3 {
		lists = append(lists, g.CPUs.String())
	}
	return strings.Join(lists, " ")
}

func nodes(m *topology.Machine) string {
	var lists []string
	for _, n := range m.Nodes {
		lists = append(lists, fmt.Sprintf("%d=%s/%d/%d", n.ID, n.CPUs, n.MemoryMiB, len(n.Distances)))
	}
	return strings.Join(lists, " ")
}

func gpus(m *topology.Machine) string {
	var lists []string
	for _, g := range m.GPUs {
		lists = append(lists, fmt.Sprintf("%d@%s/%d/%d/%s", g.Index, g.PCI, g.Minor, g.NUMANode, g.Nodes))
	}
	return strings.Join(lists, " ")
}

// TestReadOddFiles changes one thing of gpu-at-minus-one, 16 cores with two
// threads in two packages, and looks at what becomes of it. Each warning that
// is expected names the file and the value.
func TestReadOddFiles(t *testing.T) {
	const (
		goodPackages = "0=0-7,16-23 1=8-15,24-31"
		goodNodes    = "0=0-7,16-23/64214/2 1=8-15,24-31/64508/2"
		goodGPUs     = "0@0000:17:00.0/0/0/0 1@0000:b1:00.0/1/-1/"
	)
	for _, test := range []struct {
		name    string
		change  func(tree)
		fact    func(*topology.Machine) string
		want    string
		warning string // a part of one; "": there is none beside those of the unchanged machine
	}{
		{
			"online malformed: the folders tell",
			func(t tree) { t.write(cpuFolder+"online", "0-zz\n"); t.write(cpuFolder+"cpu5/online", "0\n") },
			func(m *topology.Machine) string { return m.CPUs.String() }, "0-4,6-31",
			`/sys/devices/system/cpu/online: list "0-zz"`,
		},
		{
			"online missing, as before Linux 2.6.28",
			func(t tree) { t.remove(cpuFolder + "online") },
			func(m *topology.Machine) string { return m.CPUs.String() }, "0-31",
			"/sys/devices/system/cpu/online: no such file",
		},
		{
			"online empty",
			func(t tree) { t.write(cpuFolder+"online", "\n") },
			func(m *topology.Machine) string { return m.CPUs.String() }, "0-31",
			"/sys/devices/system/cpu/online: no online CPU",
		},
		{
			"online with huge numbers",
			func(t tree) { t.write(cpuFolder+"online", "0-99999999999999999999\n") },
			func(m *topology.Machine) string { return m.CPUs.String() }, "0-31",
			"/sys/devices/system/cpu/online: list",
		},
		{
			"online ends in a null byte",
			func(t tree) { t.write(cpuFolder+"online", "0-31\n\x00") },
			func(m *topology.Machine) string { return m.CPUs.String() }, "0-31", "",
		},
		{
			"present missing",
			func(t tree) { t.remove(cpuFolder + "present") },
			func(m *topology.Machine) string { return m.Offline.String() }, "",
			"/sys/devices/system/cpu/present: no such file",
		},
		{
			"siblings malformed: the CPU counts as a core, its sibling too",
			func(t tree) {
				t.write(cpuFolder+"cpu0/topology/core_cpus_list", "0,,16\n")
				t.write(cpuFolder+"cpu16/topology/core_cpus_list", "junk\n")
			},
			cores, "0 1,17 2,18 3,19 4,20 5,21 6,22 7,23 8,24 9,25 10,26 11,27 12,28 13,29 14,30 15,31 16",
			`/sys/devices/system/cpu/cpu16/topology/core_cpus_list: list "junk"`,
		},
		{
			"siblings empty",
			func(t tree) {
				t.write(cpuFolder+"cpu0/topology/core_cpus_list", "\n")
				t.write(cpuFolder+"cpu16/topology/core_cpus_list", "\n")
			},
			cores, "0 1,17 2,18 3,19 4,20 5,21 6,22 7,23 8,24 9,25 10,26 11,27 12,28 13,29 14,30 15,31 16",
			"/sys/devices/system/cpu/cpu0/topology/core_cpus_list: empty",
		},
		{
			"package empty for one CPU: the next one tells",
			func(t tree) { t.write(cpuFolder+"cpu0/topology/package_cpus_list", "") },
			packages, goodPackages, "/sys/devices/system/cpu/cpu0/topology/package_cpus_list: empty",
		},
		{
			"siblings without the CPU itself",
			func(t tree) { t.write(cpuFolder+"cpu3/topology/core_cpus_list", "19\n") },
			cores, "0,16 1,17 2,18 3,19 4,20 5,21 6,22 7,23 8,24 9,25 10,26 11,27 12,28 13,29 14,30 15,31",
			`/sys/devices/system/cpu/cpu3/topology/core_cpus_list: "19": the core of CPU 3 does not have CPU 3`,
		},
		{
			"a core claims another's thread",
			func(t tree) { t.write(cpuFolder+"cpu1/topology/core_cpus_list", "1,16-17\n") },
			cores, "0,16 1,17 2,18 3,19 4,20 5,21 6,22 7,23 8,24 9,25 10,26 11,27 12,28 13,29 14,30 15,31",
			`/sys/devices/system/cpu/cpu1/topology/core_cpus_list: "1,16-17": CPUs 16 belong to another core already`,
		},
		{
			"siblings that are offline",
			func(t tree) { t.write(cpuFolder+"cpu0/topology/core_cpus_list", "0,16,4000\n") },
			func(m *topology.Machine) string { return m.Cores[0].CPUs.String() }, "0,16", "",
		},
		{
			"kernel older than 5.3: the old names",
			func(t tree) {
				t.remove(cpuFolder + "cpu*/topology/core_cpus*")
				t.remove(cpuFolder + "cpu*/topology/package_cpus*")
			},
			func(m *topology.Machine) string { return cores(m)[:9] + " " + packages(m) }, "0,16 1,17 " + goodPackages, "",
		},
		{
			"kernel with masks only",
			func(t tree) {
				t.remove(cpuFolder + "cpu*/topology/*_list")
				t.remove(cpuFolder + "cpu*/cache/index*/*_list")
				t.remove(nodeFolder + "node*/cpulist")
			},
			func(m *topology.Machine) string {
				return cores(m)[:9] + " " + packages(m) + " " + l3(m) + " " + nodes(m)
			},
			"0,16 1,17 " + goodPackages + " 0-7,16-23 8-15,24-31 " + goodNodes, "",
		},
		{
			"no lists of packages: their numbers tell",
			func(t tree) {
				t.remove(cpuFolder + "cpu*/topology/package_cpus*")
				t.remove(cpuFolder + "cpu*/topology/core_siblings*")
			},
			packages, goodPackages, "/sys/devices/system/cpu/cpu0/topology/package_cpus_list: no such file",
		},
		{
			"package number malformed",
			func(t tree) { t.write(cpuFolder+"cpu8/topology/physical_package_id", "4294967296\n") },
			packages, "-1=8-15,24-31 0=0-7,16-23",
			`/sys/devices/system/cpu/cpu8/topology/physical_package_id: "4294967296": want a number from -1`,
		},
		{
			"no topology at all",
			func(t tree) { t.remove(cpuFolder + "cpu*/topology") },
			func(m *topology.Machine) string { return fmt.Sprint(len(m.Cores), len(m.Packages)) }, "32 0",
			"/sys/devices/system/cpu/cpu0/topology/core_cpus_list: no such file",
		},
		{
			"L3 under another index",
			func(t tree) {
				for cpu := range 32 {
					folder := fmt.Sprintf("%s/%scpu%d/cache/", t.root, cpuFolder, cpu)
					if err := os.Rename(folder+"index3", folder+"index7"); err != nil {
						t.Fatal(err)
					}
					for _, index := range []string{"index3", "index4", "index5", "index6"} {
						if err := os.MkdirAll(folder+index, 0o755); err != nil {
							t.Fatal(err)
						}
						if err := os.WriteFile(folder+index+"/level", []byte("2\n"), 0o644); err != nil {
							t.Fatal(err)
						}
					}
				}
			},
			l3, "0-7,16-23 8-15,24-31", "",
		},
		{
			"cores of two kinds with L3 under different indexes",
			func(t tree) {
				for _, cpu := range []int{8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31} {
					folder := fmt.Sprintf("%s/%scpu%d/cache/", t.root, cpuFolder, cpu)
					if err := os.Rename(folder+"index0", folder+"aside"); err != nil {
						t.Fatal(err)
					}
					for i := range 3 {
						if err := os.Rename(fmt.Sprintf("%sindex%d", folder, i+1), fmt.Sprintf("%sindex%d", folder, i)); err != nil {
							t.Fatal(err)
						}
					}
				}
			},
			l3, "0-7,16-23 8-15,24-31", "",
		},
		{
			"cores without L3 on one package",
			func(t tree) {
				for _, cpu := range []int{8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31} {
					t.remove(fmt.Sprintf("%scpu%d/cache/index3", cpuFolder, cpu))
				}
			},
			l3, "0-7,16-23", "",
		},
		{
			"first core without L3",
			func(t tree) {
				t.remove(cpuFolder + "cpu0/cache/index3")
				t.remove(cpuFolder + "cpu16/cache/index3")
				for _, cpu := range []int{1, 2, 3, 4, 5, 6, 7, 17, 18, 19, 20, 21, 22, 23} {
					t.write(fmt.Sprintf("%scpu%d/cache/index3/shared_cpu_list", cpuFolder, cpu), "1-7,17-23\n")
				}
			},
			l3, "1-7,17-23 8-15,24-31", "",
		},
		{
			"level 3 that is no unified cache",
			func(t tree) {
				for cpu := range 32 {
					t.write(fmt.Sprintf("%scpu%d/cache/index3/type", cpuFolder, cpu), "Instruction\n")
				}
			},
			l3, "", "",
		},
		{
			"node list malformed: the folders tell",
			func(t tree) { t.write(nodeFolder+"online", "a\n") },
			nodes, goodNodes, `/sys/devices/system/node/online: list "a"`,
		},
		{
			"node offline",
			func(t tree) {
				t.write(nodeFolder+"online", "0\n")
				t.write(nodeFolder+"node0/distance", "10\n")
			},
			nodes, "0=0-7,16-23/64214/1", "/sys/devices/system/node: CPUs 8-15,24-31 are in no node",
		},
		{
			"kernel without NUMA",
			func(t tree) { t.remove("sys/devices/system/node") },
			func(m *topology.Machine) string { return nodes(m) + gpus(m) }, "0@0000:17:00.0/0/0/ 1@0000:b1:00.0/1/-1/",
			"/sys/devices/system/node/online: no such file",
		},
		{
			"node CPUs malformed",
			func(t tree) { t.write(nodeFolder+"node1/cpulist", "8-\n") },
			nodes, "0=0-7,16-23/64214/2 1=/64508/2", `/sys/devices/system/node/node1/cpulist: list "8-"`,
		},
		{
			"nodes overlap",
			func(t tree) { t.write(nodeFolder+"node1/cpulist", "7-15,24-31\n") },
			nodes, "0=0-7,16-23/64214/2 1=7-15,24-31/64508/2", "/sys/devices/system/node/node1/cpulist: CPUs 7 belong to another node already",
		},
		{
			"memory malformed",
			func(t tree) { t.write(nodeFolder+"node0/meminfo", "Node 0 MemTotal: 99999999999999999999 kB\n") },
			nodes, "0=0-7,16-23/0/2 1=8-15,24-31/64508/2", `/sys/devices/system/node/node0/meminfo: "99999999999999999999 kB": want MemTotal in kB`,
		},
		{
			"memory negative",
			func(t tree) { t.write(nodeFolder+"node0/meminfo", "Node 0 MemTotal: -5 kB\n") },
			nodes, "0=0-7,16-23/0/2 1=8-15,24-31/64508/2", "/sys/devices/system/node/node0/meminfo: ",
		},
		{
			"memory without total",
			func(t tree) { t.write(nodeFolder+"node0/meminfo", "Node 0 MemFree: 5 kB\n") },
			nodes, "0=0-7,16-23/0/2 1=8-15,24-31/64508/2", "want a line with MemTotal",
		},
		{
			"too few distances",
			func(t tree) { t.write(nodeFolder+"node1/distance", "21\n") },
			nodes, "0=0-7,16-23/64214/2 1=8-15,24-31/64508/0", `/sys/devices/system/node/node1/distance: "21": want 2 distances`,
		},
		{
			"distance malformed",
			func(t tree) { t.write(nodeFolder+"node1/distance", "21 -10\n") },
			nodes, "0=0-7,16-23/64214/2 1=8-15,24-31/64508/0", `/sys/devices/system/node/node1/distance: "-10": want distances`,
		},
		{
			"numa_node malformed",
			func(t tree) { t.write(pciFolder+"0000:17:00.0/numa_node", "one\n") },
			gpus, "0@0000:17:00.0/0/-1/0 1@0000:b1:00.0/1/-1/", `/sys/bus/pci/devices/0000:17:00.0/numa_node: "one": want a number from -1 to 8191`,
		},
		{
			"numa_node huge",
			func(t tree) { t.write(pciFolder+"0000:17:00.0/numa_node", "99999999999999999999\n") },
			gpus, "0@0000:17:00.0/0/-1/0 1@0000:b1:00.0/1/-1/", `/sys/bus/pci/devices/0000:17:00.0/numa_node: "99999999999999999999"`,
		},
		{
			"numa_node of a node that is not there",
			func(t tree) { t.write(pciFolder+"0000:17:00.0/numa_node", "7\n") },
			gpus, "0@0000:17:00.0/0/7/0 1@0000:b1:00.0/1/-1/", "GPU 0000:17:00.0: numa_node is 7, which this machine does not have",
		},
		{
			"no driver: vendor and class tell",
			func(t tree) { t.remove("proc/driver") },
			gpus, "0@0000:17:00.0/-1/0/0 1@0000:b1:00.0/-1/-1/", "",
		},
		{
			"no driver: other vendors and other functions are no GPUs",
			func(t tree) {
				t.remove("proc/driver")
				t.write(pciFolder+"0000:17:00.0/vendor", "0x1002\n")
				t.write(pciFolder+"0000:b1:00.0/class", "0x040300\n")
			},
			gpus, "", "",
		},
		{
			"the driver's list counts, whatever vendor and class are",
			func(t tree) {
				t.write(pciFolder+"0000:17:00.0/vendor", "0x1234\n")
				t.write(pciFolder+"0000:17:00.0/class", "0x088000\n")
			},
			gpus, goodGPUs, "",
		},
		{
			"a GPU that another driver has",
			func(t tree) { t.remove(gpuFolder + "0000:17:00.0") },
			gpus, "0@0000:b1:00.0/1/-1/", "",
		},
		{
			"a driver without GPUs",
			func(t tree) { t.remove(gpuFolder + "*") },
			gpus, "", "",
		},
		{
			"a GPU that the bus does not show",
			func(t tree) { t.write(gpuFolder+"0000:c1:00.0/information", "Device Minor: 2\n") },
			gpus, goodGPUs + " 2@0000:c1:00.0/2/-1/", "/sys/bus/pci/devices/0000:c1:00.0/numa_node: no such file",
		},
		{
			"a GPU that is excluded",
			func(t tree) { t.write(gpuFolder+"0000:17:00.0/information", "GPU Excluded:\t Yes\n") },
			gpus, "0@0000:b1:00.0/1/-1/", "/proc/driver/nvidia/gpus/0000:17:00.0/information: the driver is told",
		},
		{
			"a GPU that nobody has opened yet",
			func(t tree) {
				t.write(gpuFolder+"0000:17:00.0/information", "Model: \t\t Unknown\nGPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: \t 0\n")
			},
			func(m *topology.Machine) string { return gpus(m) + m.GPUs[0].UUID + m.GPUs[0].Model }, goodGPUs, "",
		},
		{
			"information missing",
			func(t tree) { t.remove(gpuFolder + "0000:17:00.0/information") },
			gpus, "0@0000:17:00.0/-1/0/0 1@0000:b1:00.0/1/-1/", "/proc/driver/nvidia/gpus/0000:17:00.0/information: no such file",
		},
		{
			"minor malformed",
			func(t tree) { t.write(gpuFolder+"0000:17:00.0/information", "Device Minor: 1000000\n") },
			gpus, "0@0000:17:00.0/-1/0/0 1@0000:b1:00.0/1/-1/", `information: Device Minor "1000000": want`,
		},
		{
			"an entry that is no address",
			func(t tree) { t.write(gpuFolder+"power", "on\n") },
			gpus, goodGPUs, `/proc/driver/nvidia/gpus: PCI address "power"`,
		},
		{
			"an address twice",
			func(t tree) { t.write(gpuFolder+"00000000:17:00.0/information", "Device Minor: 9\n") },
			func(m *topology.Machine) string { return fmt.Sprint(len(m.GPUs)) }, "2", "/proc/driver/nvidia/gpus: 0000:17:00.0 is listed twice",
		},
		{
			"a device that is no link",
			func(t tree) {
				t.remove(pciFolder + "0000:17:00.0")
				t.write(pciFolder+"0000:17:00.0/numa_node", "1\n")
				t.write(pciFolder+"0000:17:00.0/local_cpulist", "8-15,24-31\n")
				t.write(pciFolder+"0000:17:00.0/class", "0x030200\n")
			},
			gpus, "0@0000:17:00.0/0/1/1 1@0000:b1:00.0/1/-1/", "/sys/bus/pci/devices/0000:17:00.0: want a symbolic link",
		},
		{
			"driver version malformed",
			func(t tree) { t.write("proc/driver/nvidia/version", "NVRM version: unknown\n") },
			func(m *topology.Machine) string { return m.Driver }, "", "/proc/driver/nvidia/version: want a line with NVRM version",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			tree := tree{t, rendered(t, "gpu-at-minus-one")}
			usual := tree.read().Warnings
			test.change(tree)
			m := tree.read()
			if got := test.fact(m); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
			fresh := slices.DeleteFunc(m.Warnings, func(text string) bool { return slices.Contains(usual, text) })
			if test.warning == "" {
				// Without NUMA facts a GPU can become unknown; that is not about the file.
				fresh = slices.DeleteFunc(fresh, func(text string) bool { return strings.HasPrefix(text, "GPU ") })
				if len(fresh) != 0 {
					t.Errorf("warnings %q, want none", fresh)
				}
			} else if !strings.Contains(strings.Join(fresh, "\n"), test.warning) {
				t.Errorf("warnings %q, want %q", fresh, test.warning)
			}
		})
	}
}

func TestReadNeedsACPU(t *testing.T) {
	root := t.TempDir()
	for _, path := range []string{root, filepath.Join(root, "none")} {
		_, err := topology.Read(path, topology.Options{})
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want an error that names it", path, err)
		}
	}
	if _, err := topology.Read(root, topology.Options{}); !errors.Is(err, topology.ErrNoCPUs) {
		t.Errorf("%v, want ErrNoCPUs", err)
	}
	if _, err := topology.Read(filepath.Join(root, "none"), topology.Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want fs.ErrNotExist", err)
	}
}

// TestReadIsNotHeldUp replaces files by what a copied tree can hold instead.
func TestReadIsNotHeldUp(t *testing.T) {
	tree := tree{t, rendered(t, "demo-dual")}
	for _, path := range []string{cpuFolder + "present", nodeFolder + "node0/meminfo", pciFolder + "0000:17:00.0/numa_node"} {
		tree.remove(path)
		if err := syscall.Mkfifo(filepath.Join(tree.root, path), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tree.remove(nodeFolder + "node1/distance")
	if err := os.Symlink("distance", filepath.Join(tree.root, nodeFolder+"node1/distance")); err != nil {
		t.Fatal(err)
	}
	tree.remove(nodeFolder + "node1/cpulist")
	tree.write(nodeFolder+"node1/cpulist/folder", "")
	tree.write(cpuFolder+"cpu1/topology/core_cpus_list", strings.Repeat("1,", 1<<20))
	m := tree.read()
	if m.CPUs.String() != "0-1" || len(m.GPUs) != 4 || len(m.Nodes) != 2 {
		t.Errorf("CPUs %s, %d GPUs, %d nodes", m.CPUs, len(m.GPUs), len(m.Nodes))
	}
	all := strings.Join(m.Warnings, "\n")
	for _, want := range []string{"meminfo", "distance: too many levels", "cpulist: is a directory", "core_cpus_list: longer than 32768 bytes"} {
		if !strings.Contains(all, want) {
			t.Errorf("no warning about %q in\n%s", want, all)
		}
	}
}

// TestReadBoundsWarnings fills every file of a large machine with rubbish.
func TestReadBoundsWarnings(t *testing.T) {
	root := rendered(t, "dgx-a100")
	rubbish := []byte(strings.Repeat("rubbish ", 4000))
	err := filepath.WalkDir(filepath.Join(root, "sys"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		return os.WriteFile(path, rubbish, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	m, err := topology.Read(root, topology.Options{NICs: true})
	if err != nil {
		t.Fatal(err)
	}
	if m.CPUs.Len() != 256 || len(m.Cores) != 256 || len(m.GPUs) != 8 {
		t.Errorf("%d CPUs, %d cores, %d GPUs", m.CPUs.Len(), len(m.Cores), len(m.GPUs))
	}
	length := 0
	for _, text := range m.Warnings {
		length += len(text)
	}
	if len(m.Warnings) > 2*topology.MaxWarnings+1 || length > 64<<10 {
		t.Errorf("%d warnings, %d bytes", len(m.Warnings), length)
	}
}

// TestReadLeavesNothingOpen matters in slurmstepd, whose children inherit what
// is not closed.
func TestReadLeavesNothingOpen(t *testing.T) {
	open := func() []string {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		var targets []string
		for _, entry := range entries {
			if target, err := os.Readlink("/proc/self/fd/" + entry.Name()); err == nil && !strings.HasSuffix(target, "/fd") {
				targets = append(targets, entry.Name()+" "+target)
			}
		}
		return targets
	}
	tree := tree{t, rendered(t, "vm-partial-nodes")}
	tree.remove(cpuFolder + "cpu3/topology")
	before := open()
	tree.read()
	if after := open(); !slices.Equal(before, after) {
		t.Errorf("open before %q, after %q", before, after)
	}
}

// TestPackageCanBeLoadedNow guards what the package must not link: go-nvml's
// undefined symbols make dlopen with RTLD_NOW fail, which is how slurmstepd
// loads plugins.
func TestPackageCanBeLoadedNow(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Skipf("go list: %v", err)
	}
	for _, name := range strings.Fields(string(out)) {
		if strings.Contains(name, "go-nvml") || name == "runtime/cgo" {
			t.Errorf("depends on %s", name)
		}
	}
}
