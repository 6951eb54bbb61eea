package hwloc_test

import (
	"fmt"
	"strings"
	"testing"

	"gputune/internal/topology"
	"gputune/internal/topology/hwloc"
)

// summary is a machine in one line per kind of fact.
func summary(m *topology.Machine) string {
	var b strings.Builder
	fmt.Fprintf(&b, "cpus %s offline %s\n", m.CPUs, m.Offline)
	for _, n := range m.Nodes {
		fmt.Fprintf(&b, "node %d: %s, %d MiB, %v\n", n.ID, n.CPUs, n.MemoryMiB, n.Distances)
	}
	for _, p := range m.Packages {
		fmt.Fprintf(&b, "package %d: %s\n", p.ID, p.CPUs)
	}
	fmt.Fprintf(&b, "cores %v L3 %v\n", m.Cores, m.L3)
	for _, g := range m.GPUs {
		fmt.Fprintf(&b, "gpu %d %s %q %q: node %s of %s, cpus %s, bridges %d\n", g.Index, g.PCI, g.UUID, g.Model, g.Nodes, g.NodesFrom, g.CPUs, len(g.Bridges))
	}
	for _, n := range m.NICs {
		fmt.Fprintf(&b, "nic %s %q: node %s\n", n.PCI, n.Names, n.Nodes)
	}
	for _, w := range m.Warnings {
		fmt.Fprintf(&b, "warning %s\n", w)
	}
	return b.String()
}

func TestParse(t *testing.T) {
	for version, want := range map[string]string{
		"version 1": `cpus 0-2 offline 3
node 0: 0-1, 1024 MiB, map[0:10 1:21]
node 1: 2, 2048 MiB, map[0:21 1:10]
package 0: 0-1
cores [{0-1} {2}] L3 [{0-1}]
gpu 0 0000:02:00.0 "" "": node 0 of local_cpulist, cpus 0-1, bridges 1
`,
		"version 2": `cpus 0,64 offline 
node 0: 0, 1024 MiB, map[0:10 1:21 2:80]
node 1: 64, 1024 MiB, map[0:21 1:10 2:90]
node 2: , 1024 MiB, map[0:80 1:90 2:10]
package 0: 0
package 1: 64
cores [{0} {64}] L3 [{0}]
gpu 0 0000:02:00.0 "GPU-00000000-0000-0000-0000-000000000001" "NVIDIA A100": node 0 of local_cpulist, cpus 0, bridges 0
nic 0000:03:00.0 ["ib0" "mlx5_0"]: node 0
`,
		"version 3": `cpus 0-1 offline 
node 0: 0-1, 1024 MiB, map[]
package 0: 0-1
cores [{0-1}] L3 []
gpu 0 0000:34:00.0 "" "": node 0 of local_cpulist, cpus 0-1, bridges 0
gpu 1 0000:35:00.0 "" "": node 0 of local_cpulist, cpus 0-1, bridges 0
`,
	} {
		t.Run(version, func(t *testing.T) {
			m, unknown, err := hwloc.Parse([]byte(samples[version]))
			if err != nil {
				t.Fatal(err)
			}
			if got := summary(m); got != want {
				t.Errorf("is\n%swant\n%s", got, want)
			}
			t.Log(unknown)
		})
	}
}

// TestUnknown shows what is said of a file that has less than others.
func TestUnknown(t *testing.T) {
	const least = `<topology version="2.0"><object type="Machine" cpuset="0x3"><object type="PU" os_index="0" cpuset="0x1"/>` +
		`<object type="PU" os_index="1" cpuset="0x2"/></object></topology>`
	_, unknown, err := hwloc.Parse([]byte(least))
	if err != nil {
		t.Fatal(err)
	}
	const want = "PCI devices are not stated. NUMA nodes are not stated. Packages are not stated. Cores are not stated. L3 caches are not stated."
	if got := strings.Join(unknown, " "); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRefused(t *testing.T) {
	two := samples["version 2"]
	change := func(from, to string) string {
		if !strings.Contains(two, from) {
			t.Fatalf("the sample has no %q", from)
		}
		return strings.Replace(two, from, to, 1)
	}
	for name, c := range map[string]struct{ text, want string }{
		"cut":            {two[:len(two)/2], "line 15: "},
		"another root":   {"<a/>", "line 1: <a>: want <topology>"},
		"a new version":  {change(`version="2.0"`, `version="4.0"`), `line 3: <topology>: version "4.0": want 1, 2 or 3`},
		"no CPUs":        {`<topology version="2.0"/>`, "line 1: <topology>: no PU"},
		"a cpuset":       {change(`cpuset="0x00000001" local`, `cpuset="0-1" local`), `line 6: <object>: cpuset: "0-1": "0-1": want words such as 0x0000ffff`},
		"endless cpuset": {change(`cpuset="0x00000001" local`, `cpuset="0xf...f" local`), `line 6: <object>: cpuset: "0xf...f"`},
		"cpuset of 2^20": {change(`cpuset="0x00000001" local`, `cpuset="0x1`+strings.Repeat(",0x0", 256)+`" local`), "want ids from 0 to 8191"},
		"a CPU twice":    {change(`type="PU" os_index="64"`, `type="PU" os_index="0"`), "line 26: <object>: PU 0 is there twice"},
		"a node twice":   {change(`os_index="2"`, `os_index="0"`), "line 7: <object>: node 0 is there twice"},
		"a device twice": {change("0000:03:00.0", "0000:02:00.0"), "line 18: <object>: 0000:02:00.0 is in line 12 already"},
		"an address":     {change("0000:03:00.0", "03"), `line 18: <object>: pci_busid: PCI address "03"`},
		"a type":         {change("0302 [", "GPU ["), "line 12: <object>: pci_type "},
		"a number":       {change(`os_index="64"`, `os_index="x"`), `line 26: <object>: os_index "x": want a number from 0 to 8191`},
		"distances":      {change("10 21 80 21 ", "10 21 80 "), "line 29: <distances2>: 8 distances between 3 nodes: want 9"},
		"a distance":     {change("10 21 80 21 ", "10 x 80 21 "), `line 29: <distances2>: distance "x"`},
	} {
		t.Run(name, func(t *testing.T) {
			m, _, err := hwloc.Parse([]byte(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "line ") {
				t.Errorf("%v, %v: want %q", m, err, c.want)
			}
		})
	}
}
