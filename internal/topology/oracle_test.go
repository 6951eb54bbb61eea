package topology_test

import (
	"encoding/xml"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gputune/internal/idset"
	"gputune/internal/topology"
	"gputune/tests/machines"
)

// hwloc reads the same files; where it says otherwise one of the two is wrong.

const lstopo = "lstopo-no-graphics"

// hwlocObject is an object of hwloc's XML (hwloc2.dtd).
type hwlocObject struct {
	Type    string        `xml:"type,attr"`
	OSIndex int           `xml:"os_index,attr"`
	CPUSet  string        `xml:"cpuset,attr"`
	Memory  int64         `xml:"local_memory,attr"`
	BusID   string        `xml:"pci_busid,attr"`
	PCIType string        `xml:"pci_type,attr"`
	Name    string        `xml:"name,attr"`
	Objects []hwlocObject `xml:"object"`
}

// hwlocView is a machine reduced to what both readers know, as lines of text.
type hwlocView map[string][]string

func (v hwlocView) add(kind, format string, args ...any) {
	v[kind] = append(v[kind], fmt.Sprintf(format, args...))
}

// hwlocDistances is a matrix between the nodes with the ids in Indexes.
type hwlocDistances struct {
	Name    string   `xml:"name,attr"`
	Indexes []string `xml:"indexes"`
	Values  []string `xml:"u64values"`
}

func (v hwlocView) addDistances(t *testing.T, d hwlocDistances) {
	t.Helper()
	ids := strings.Fields(strings.Join(d.Indexes, " "))
	values := strings.Fields(strings.Join(d.Values, " "))
	if len(values) != len(ids)*len(ids) {
		t.Fatalf("hwloc has %d distances between %d nodes", len(values), len(ids))
	}
	for i, value := range values {
		v.add("distance", "%s to %s: %s", ids[i/len(ids)], ids[i%len(ids)], value)
	}
}

func askHwloc(t *testing.T, root string) hwlocView {
	t.Helper()
	// --disallowed: with what the cgroup of the copied machine forbids.
	out, err := exec.Command(lstopo, "--input", root, "--if", "fsroot", "--disallowed", "--of", "xml", "-").Output()
	if err != nil {
		t.Fatalf("%s: %v", lstopo, err)
	}
	var parsed struct {
		Object    hwlocObject      `xml:"object"`
		Distances []hwlocDistances `xml:"distances2"`
	}
	if err := xml.Unmarshal(out, &parsed); err != nil {
		t.Fatalf("hwloc's XML: %v", err)
	}
	view := hwlocView{}
	view.walk(t, parsed.Object)
	for _, d := range parsed.Distances {
		if d.Name == "NUMALatency" { // the firmware's table; hwloc makes others up
			view.addDistances(t, d)
		}
	}
	return view
}

func (v hwlocView) walk(t *testing.T, object hwlocObject) {
	switch object.Type {
	case "PU":
		v.add("CPU", "%d", object.OSIndex)
	case "Core":
		v.add("core", "%s", hwlocSet(t, object.CPUSet))
	case "L3Cache":
		v.add("L3", "%s", hwlocSet(t, object.CPUSet))
	case "Package":
		v.add("package", "%d: %s", object.OSIndex, hwlocSet(t, object.CPUSet))
	case "NUMANode":
		v.add("node", "%d: %d MiB", object.OSIndex, object.Memory>>20)
		v.add("node CPUs", "%d: %s", object.OSIndex, hwlocSet(t, object.CPUSet))
	case "PCIDev":
		if strings.HasPrefix(object.PCIType, "02") {
			var names []string
			for _, child := range object.Objects {
				names = append(names, child.Name)
			}
			slices.Sort(names)
			v.add("NIC", "%s %q", object.BusID, names)
		}
	}
	for _, child := range object.Objects {
		v.walk(t, child)
	}
}

// hwlocSet reads hwloc's form of a bitmap, "0x00000003,0xffffffff".
func hwlocSet(t *testing.T, text string) idset.Set {
	t.Helper()
	words := strings.Split(text, ",")
	var bits []uint64
	for i, word := range words {
		value, err := strconv.ParseUint(word, 0, 32)
		if word != "" && err != nil {
			t.Fatalf("hwloc's set %q: %v", text, err)
		}
		place := len(words) - 1 - i
		for len(bits) <= place/2 {
			bits = append(bits, make([]uint64, place/2+1)...)
		}
		bits[place/2] |= value << (place % 2 * 32)
	}
	return idset.FromWords(bits)
}

func ourView(m *topology.Machine) hwlocView {
	view := hwlocView{}
	for cpu := range m.CPUs.All() {
		view.add("CPU", "%d", cpu)
	}
	for _, core := range m.Cores {
		view.add("core", "%s", core.CPUs)
	}
	for _, group := range m.L3 {
		view.add("L3", "%s", group.CPUs)
	}
	for _, p := range m.Packages {
		view.add("package", "%d: %s", p.ID, p.CPUs)
	}
	for _, node := range m.Nodes {
		view.add("node", "%d: %d MiB", node.ID, node.MemoryMiB)
		view.add("node CPUs", "%d: %s", node.ID, node.CPUs)
		if len(m.Nodes) == 1 {
			continue // hwloc keeps no matrix of one
		}
		for to, distance := range node.Distances {
			view.add("distance", "%d to %d: %d", node.ID, to, distance)
		}
	}
	for _, nic := range m.NICs {
		view.add("NIC", "%s %q", nic.PCI, nic.Names)
	}
	return view
}

var viewKinds = []string{"CPU", "core", "L3", "package", "node", "node CPUs", "distance", "NIC"}

// compareViews reports where the views differ; kinds in except are those for
// which they are known to, with the reason.
func compareViews(t *testing.T, m *topology.Machine, hwloc hwlocView, except map[string]string) {
	t.Helper()
	ours := ourView(m)
	// hwloc hangs a node without CPUs below the CPUs nearest to it.
	withoutCPUs := func(line string) bool {
		id, _, _ := strings.Cut(line, ":")
		return slices.ContainsFunc(m.Nodes, func(n topology.Node) bool { return strconv.Itoa(n.ID) == id && n.CPUs.Empty() })
	}
	for _, view := range []hwlocView{ours, hwloc} {
		view["node CPUs"] = slices.DeleteFunc(view["node CPUs"], withoutCPUs)
		for kind := range view {
			slices.Sort(view[kind])
		}
	}
	for _, kind := range viewKinds {
		same := slices.Equal(ours[kind], hwloc[kind])
		reason, excepted := except[kind]
		switch {
		case excepted && same:
			t.Errorf("%s: hwloc agrees: the exception %q is not needed", kind, reason)
		case excepted:
			t.Logf("%s: %d here, %d in hwloc: %s", kind, len(ours[kind]), len(hwloc[kind]), reason)
		case !same:
			t.Errorf("%s differ:\n  here  %q\n  hwloc %q", kind, ours[kind], hwloc[kind])
		}
	}
}

// hwlocKnowsMore names what hwloc 2.9 makes of hwloc's own test machines that
// is not what their files say.
var hwlocKnowsMore = map[string]map[string]string{
	"256ppc-8n8s4t": {
		"package": "physical_package_id is -1 throughout; hwloc leaves the index out",
	},
	"40intel64-4n10c+pci-conflicts": {
		"L3":      "made to conflict with the group of a host bridge, which hwloc builds first",
		"package": "made to conflict with the group of a host bridge, which hwloc builds first",
	},
	"8em64t-2s2ca2c-buggynuma": {
		"node":      "all nodes list the same CPUs; hwloc takes them for one, here they are warned of",
		"node CPUs": "all nodes list the same CPUs; hwloc takes them for one, here they are warned of",
		"distance":  "all nodes list the same CPUs; hwloc takes them for one, here they are warned of",
	},
	"fakeheterocpunuma": {
		"node":      "nodes that contain others' CPUs do not fit into hwloc's tree; here they are warned of",
		"node CPUs": "nodes that contain others' CPUs do not fit into hwloc's tree; here they are warned of",
		"distance":  "nodes that contain others' CPUs do not fit into hwloc's tree; here they are warned of",
	},
}

// TestReadAgreesWithHwloc reads the copies of /sys and /proc of real machines
// that hwloc is tested with, where a folder with them lies beside the
// repository.
func TestReadAgreesWithHwloc(t *testing.T) {
	archives, err := filepath.Glob("../../../shared/topologies/hwloc/sysfs/*.tar.bz2")
	if err != nil {
		t.Fatal(err)
	}
	if len(archives) == 0 {
		t.Skip("no folder shared/topologies beside the repository")
	}
	if _, err := exec.LookPath(lstopo); err != nil {
		t.Skip("hwloc is not installed")
	}
	for _, archive := range archives {
		name := strings.TrimSuffix(filepath.Base(archive), ".tar.bz2")
		t.Run(name, func(t *testing.T) {
			folder := scratch(t)
			if out, err := exec.Command("tar", "-xjf", archive, "-C", folder).CombinedOutput(); err != nil {
				t.Fatalf("tar: %v: %s", err, out)
			}
			roots, err := filepath.Glob(filepath.Join(folder, "*", "sys"))
			if err != nil || len(roots) != 1 {
				t.Fatalf("%s: want one sys folder, have %q", archive, roots)
			}
			root := filepath.Dir(roots[0])
			m, err := topology.Read(root, topology.Options{NICs: true})
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range m.Warnings {
				t.Log("warning:", text)
			}
			compareViews(t, m, askHwloc(t, root), hwlocKnowsMore[name])
		})
	}
	t.Logf("read %d machines", len(archives))
}

// TestReadAgreesWithHwlocHere compares the two on the machine that the test
// runs on, whose sysfs is no copy.
func TestReadAgreesWithHwlocHere(t *testing.T) {
	if _, err := exec.LookPath(lstopo); err != nil {
		t.Skip("hwloc is not installed")
	}
	m, err := topology.Read("/", topology.Options{NICs: true})
	if err != nil {
		t.Fatal(err)
	}
	compareViews(t, m, askHwloc(t, "/"), nil)
}

// TestMachinesAgreeWithHwloc shows that what package machines renders is what
// others, too, take for the machine.
func TestMachinesAgreeWithHwloc(t *testing.T) {
	if _, err := exec.LookPath(lstopo); err != nil {
		t.Skip("hwloc is not installed")
	}
	for _, d := range machines.All() {
		t.Run(d.Name, func(t *testing.T) {
			root := scratch(t)
			m, err := d.Machine(root)
			if err != nil {
				t.Fatal(err)
			}
			compareViews(t, m, askHwloc(t, root), nil)
		})
	}
}
