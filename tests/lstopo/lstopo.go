// Package lstopo asks hwloc's lstopo about a machine, for tests: it reads the
// same files, and where it says otherwise one of the two is wrong.
package lstopo

import (
	"encoding/xml"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

const program = "lstopo-no-graphics"

// Need skips the test where hwloc is not installed.
func Need(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skip("hwloc is not installed")
	}
}

// object is an object of hwloc's XML (hwloc2.dtd).
type object struct {
	Type    string   `xml:"type,attr"`
	OSIndex int      `xml:"os_index,attr"`
	CPUSet  string   `xml:"cpuset,attr"`
	Memory  int64    `xml:"local_memory,attr"`
	BusID   string   `xml:"pci_busid,attr"`
	PCIType string   `xml:"pci_type,attr"`
	Name    string   `xml:"name,attr"`
	Objects []object `xml:"object"`
}

// View is a machine reduced to what both readers know, as lines of text by
// kind of fact.
type View map[string][]string

func (v View) add(kind, format string, args ...any) {
	v[kind] = append(v[kind], fmt.Sprintf(format, args...))
}

// distances is a matrix between the nodes with the ids in Indexes.
type distances struct {
	Name    string   `xml:"name,attr"`
	Type    string   `xml:"type,attr"`
	Indexes []string `xml:"indexes"`
	Values  []string `xml:"u64values"`
}

func (v View) addDistances(t *testing.T, d distances) {
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

// Ask asks about the machine in a folder, format "fsroot", or a file of hwloc's
// own, format "xml". It skips the test where hwloc is not installed.
func Ask(t *testing.T, input, format string) View {
	t.Helper()
	Need(t)
	// --disallowed: with what the cgroup of the copied machine forbids.
	out, err := exec.Command(program, "--input", input, "--if", format, "--disallowed", "--of", "xml", "-").Output()
	if err != nil {
		t.Fatalf("%s: %v", program, err)
	}
	var parsed struct {
		Object    object      `xml:"object"`
		Distances []distances `xml:"distances2"`
	}
	if err := xml.Unmarshal(out, &parsed); err != nil {
		t.Fatalf("hwloc's XML: %v", err)
	}
	view := View{}
	view.walk(t, parsed.Object, "")
	for _, d := range parsed.Distances {
		// The firmware's table, which has no name in files of hwloc 1; hwloc
		// makes others up.
		if d.Name == "NUMALatency" || (d.Name == "" && d.Type == "NUMANode") {
			view.addDistances(t, d)
		}
	}
	return view
}

func (v View) walk(t *testing.T, o object, near string) {
	if o.CPUSet != "" {
		near = o.CPUSet
	}
	if o.Type != "NUMANode" && o.CPUSet != "" && bitmap(t, o.CPUSet).Empty() {
		o.Type = "" // hwloc keeps objects all of whose CPUs are left out
	}
	switch o.Type {
	case "PU":
		v.add("CPU", "%d", o.OSIndex)
	case "Core":
		v.add("core", "%s", bitmap(t, o.CPUSet))
	case "L3Cache":
		v.add("L3", "%s", bitmap(t, o.CPUSet))
	case "Package":
		v.add("package", "%d: %s", o.OSIndex, bitmap(t, o.CPUSet))
	case "NUMANode":
		v.add("node", "%d: %d MiB", o.OSIndex, o.Memory>>20)
		v.add("node CPUs", "%d: %s", o.OSIndex, bitmap(t, o.CPUSet))
	case "PCIDev":
		if isDevice(o.PCIType) {
			v.add(Locality, "%s: %s", o.BusID, bitmap(t, near))
		}
		if strings.HasPrefix(o.PCIType, "02") {
			var names []string
			for _, child := range o.Objects {
				names = append(names, child.Name)
			}
			slices.Sort(names)
			v.add("NIC", "%s %q", o.BusID, names)
		}
	}
	for _, child := range o.Objects {
		v.walk(t, child, near)
	}
}

// hwlocSet reads hwloc's form of a bitmap, "0x00000003,0xffffffff".
// isDevice tells which PCI devices the readers know: NICs, and the GPUs of NVIDIA
// and AMD.
func isDevice(pciType string) bool {
	class, ids, _ := strings.Cut(pciType, " ")
	gpu := strings.HasPrefix(class, "03") && (strings.HasPrefix(ids, "[10de:") || strings.HasPrefix(ids, "[1002:"))
	return gpu || strings.HasPrefix(class, "02")
}

func bitmap(t *testing.T, text string) idset.Set {
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

// Of returns what a reader found out.
func Of(m *topology.Machine) View {
	view := View{}
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
	for _, gpu := range m.GPUs {
		view.add(Locality, "%s: %s", gpu.PCI, gpu.LocalCPUs)
	}
	for _, nic := range m.NICs {
		view.add(Locality, "%s: %s", nic.PCI, nic.LocalCPUs)
	}
	return view
}

// Locality is the kind of fact that Compare leaves out unless it is told to
// compare it too: hwloc works out the locality of devices itself where it reads
// sysfs, and states it in its files.
const Locality = "PCI locality"

var kinds = []string{"CPU", "core", "L3", "package", "node", "node CPUs", "distance", "NIC"}

// Compare reports where the views differ; kinds in except are those for which
// they are known to, with the reason.
func Compare(t *testing.T, m *topology.Machine, hwloc View, except map[string]string, also ...string) {
	t.Helper()
	ours := Of(m)
	// hwloc hangs a node without CPUs below the CPUs nearest to it.
	withoutCPUs := func(line string) bool {
		id, _, _ := strings.Cut(line, ":")
		return slices.ContainsFunc(m.Nodes, func(n topology.Node) bool { return strconv.Itoa(n.ID) == id && n.CPUs.Empty() })
	}
	for _, view := range []View{ours, hwloc} {
		view["node CPUs"] = slices.DeleteFunc(view["node CPUs"], withoutCPUs)
		for kind := range view {
			slices.Sort(view[kind])
		}
	}
	for _, kind := range append(slices.Clone(kinds), also...) {
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
