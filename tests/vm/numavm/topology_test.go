package numavm

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gputune/internal/idset"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestParseTopology(t *testing.T) {
	for _, c := range []struct {
		name  string
		nodes []int // of GPU0…GPU3
		nics  []int
	}{
		{"n2", []int{0, 0, 1, 1}, []int{0, 1}},
		{"n2-nonode", []int{0, 0, 1, -1}, []int{0, 1}},
		{"n4", []int{0, 1, 2, 3}, []int{0, 1, 2, 3}},
		{"n4-nonode", []int{0, 1, 2, -1}, []int{0, 1, 2, 3}},
		{"n4c", []int{0, 1, 2, 3}, []int{0, 1, 2, 3}},
		{"n4c-nonode", []int{0, 1, 2, -1}, []int{0, 1, 2, 3}},
		{"gh", []int{0, 0, 1, 1}, []int{0, 1}},
		{"gh-nonode", []int{0, 0, 1, -1}, []int{0, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			topo, err := ParseTopology(c.name)
			if err != nil {
				t.Fatal(err)
			}
			var nodes, nics []int
			for _, d := range topo.Devices {
				if d.Kind == GPU {
					nodes = append(nodes, d.Node)
				} else {
					nics = append(nics, d.Node)
				}
			}
			if topo.Name != c.name || !slices.Equal(nodes, c.nodes) || !slices.Equal(nics, c.nics) {
				t.Errorf("%s: GPUs on %v, NICs on %v; want %v, %v", topo.Name, nodes, nics, c.nodes, c.nics)
			}
			for what, lists := range map[string][]string{"nodes": nodeCPUs(topo), "L3 caches": topo.L3} {
				if all := union(t, lists); all != "0-7" {
					t.Errorf("CPUs of all %s: %s, want 0-7", what, all)
				}
			}
			if len(topo.Distances) != len(topo.Nodes) {
				t.Errorf("%d rows of distances for %d nodes", len(topo.Distances), len(topo.Nodes))
			}
			for i, row := range topo.Distances {
				for j := range row {
					if len(row) != len(topo.Nodes) || row[i] != 10 || row[j] != topo.Distances[j][i] {
						t.Errorf("distances %v: want a symmetric matrix with 10 on its diagonal, as QEMU fills in", topo.Distances)
					}
				}
			}
		})
	}
	if got := Topologies(); len(got) != 8 {
		t.Errorf("Topologies lists %v, which this test does not cover", got)
	}
}

func nodeCPUs(topo Topology) []string {
	lists := make([]string, 0, len(topo.Nodes))
	for _, n := range topo.Nodes {
		lists = append(lists, n.CPUs)
	}
	return lists
}

// union is the union of disjoint kernel lists.
func union(t *testing.T, lists []string) string {
	t.Helper()
	var all idset.Set
	for _, l := range lists {
		s, err := idset.Parse(l)
		if err != nil {
			t.Fatal(err)
		}
		if !all.And(s).Empty() {
			t.Errorf("%v share a CPU", lists)
		}
		all = all.Or(s)
	}
	return all.String()
}

func TestParseRefuses(t *testing.T) {
	for _, name := range []string{"", "n3", "-nonode", "n2-nonode-nonode", "N2"} {
		if _, err := ParseTopology(name); err == nil || !strings.Contains(err.Error(), "want one of n2, n2-nonode, n4") {
			t.Errorf("topology %q: %v", name, err)
		}
	}
	if _, err := ParseSuite("buster"); err == nil || !strings.Contains(err.Error(), `suite "buster": want one of bookworm, trixie, forky`) {
		t.Errorf("suite buster: %v", err)
	}
	for _, s := range Suites() {
		if got, err := ParseSuite(string(s)); err != nil || got != s {
			t.Errorf("suite %s: %q, %v", s, got, err)
		}
	}
}

// TestCommandLines compares whole QEMU command lines, one argument a line. After a wanted change: go test -run CommandLines -update.
func TestCommandLines(t *testing.T) {
	for _, name := range []string{"n2", "n2-nonode", "n4", "n4c", "gh"} {
		t.Run(name, func(t *testing.T) {
			topo, err := ParseTopology(name)
			if err != nil {
				t.Fatal(err)
			}
			args := launch{
				topology: topo, cpu: cpuModel(Trixie, topo), kernel: "/cache/vmlinuz", disk: "/run/root.qcow2",
				console: "/run/console.log", shareSock: "/run/virtiofsd.sock", agentFD: 3,
				kernelArgs: []string{"numa_balancing=disable"},
			}.args()
			got := strings.Join(args, "\n") + "\n"
			golden := filepath.Join("testdata", name+".args")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("differs from %s:\n%s", golden, got)
			}
		})
	}
}

func TestUdevIsKept(t *testing.T) {
	topo, err := ParseTopology("n2")
	if err != nil {
		t.Fatal(err)
	}
	for _, udev := range []bool{false, true} {
		args := launch{topology: topo, udev: udev}.args()
		masked := strings.Contains(args[slices.Index(args, "-append")+1], "systemd.mask=systemd-udevd.service")
		if masked == udev {
			t.Errorf("udev %t: udevd masked is %t", udev, masked)
		}
	}
}

func TestCPUModel(t *testing.T) {
	for _, c := range []struct {
		suite      Suite
		topo, want string
	}{
		{Bookworm, "n2", "Nehalem,level=11"},
		{Bookworm, "n4", "Nehalem,level=11"},
		{Trixie, "n4", "EPYC"},
		{Trixie, "n4c", "Nehalem,level=11"},
		{Forky, "gh", "EPYC"},
	} {
		topo, err := ParseTopology(c.topo)
		if err != nil {
			t.Fatal(err)
		}
		if got := cpuModel(c.suite, topo); got != c.want {
			t.Errorf("%s %s: %s, want %s", c.suite, c.topo, got, c.want)
		}
	}
}
