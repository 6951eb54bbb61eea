package machines_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"gputune/internal/idset"
	"gputune/internal/topology"
	"gputune/tests/machines"
)

func scratch(t *testing.T) string {
	t.Helper()
	dir, remove, err := machines.Scratch()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := remove(); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// published is what nvidia-smi topo -m, numactl -H and lscpu print on such
// machines: for each GPU the CPU affinity and the node with CPUs, and how many
// nodes, packages, cores and L3 groups there are.
var published = map[string]struct {
	counts string
	gpus   []string
}{
	"dgx-a100": {"8 nodes, 2 packages, 128 cores, 32 L3", []string{
		"3: 48-63,176-191", "3: 48-63,176-191", "1: 16-31,144-159", "1: 16-31,144-159",
		"7: 112-127,240-255", "7: 112-127,240-255", "5: 80-95,208-223", "5: 80-95,208-223",
	}},
	"dgx-h100": {"2 nodes, 2 packages, 112 cores, 2 L3", []string{
		"0: 0-55,112-167", "0: 0-55,112-167", "0: 0-55,112-167", "0: 0-55,112-167",
		"1: 56-111,168-223", "1: 56-111,168-223", "1: 56-111,168-223", "1: 56-111,168-223",
	}},
	"gb200":           {"34 nodes, 2 packages, 144 cores, 2 L3", []string{"0: 0-71", "0: 0-71", "1: 72-143", "1: 72-143"}},
	"grace-hopper":    {"9 nodes, 1 packages, 72 cores, 1 L3", []string{"0: 0-71"}},
	"grace-hopper-x4": {"36 nodes, 4 packages, 288 cores, 4 L3", []string{"0: 0-71", "1: 72-143", "2: 144-215", "3: 216-287"}},
	"power9-ac922":    {"6 nodes, 2 packages, 32 cores, 16 L3", []string{"0: 0-63", "0: 0-63", "8: 64-127", "8: 64-127"}},
	"snc-two-nodes": {"4 nodes, 2 packages, 96 cores, 2 L3", []string{
		"0-1: 0-47,96-143", "0-1: 0-47,96-143", "0-1: 0-47,96-143", "0-1: 0-47,96-143",
		"2-3: 48-95,144-191", "2-3: 48-95,144-191", "2-3: 48-95,144-191", "2-3: 48-95,144-191",
	}},
	"workstation": {"1 nodes, 1 packages, 32 cores, 8 L3", []string{"0: 0-63", "0: 0-63"}},
	"smt-off":     {"2 nodes, 2 packages, 24 cores, 2 L3", []string{"0: 0-11", "1: 12-23"}},
	"epyc-nps1":   {"2 nodes, 2 packages, 128 cores, 16 L3", []string{"0: 0-63", "1: 64-127"}},
	"h200-vm":     {"1 nodes, 1 packages, 16 cores, 1 L3", []string{"0: 0-15"}},
	"job-cpuset":  {"2 nodes, 2 packages, 24 cores, 2 L3", []string{"0: 0-11", "0: 0-11", "1: 12-23", "1: 12-23"}},
	// Made up, and what they are for.
	"gpu-at-minus-one": {"2 nodes, 2 packages, 16 cores, 2 L3", []string{"0: 0-7,16-23", ": 0-31"}},
	"bridge-knows":     {"2 nodes, 2 packages, 16 cores, 2 L3", []string{"1: 8-15", "1: 8-15"}},
	"offline-cpus":     {"2 nodes, 2 packages, 12 cores, 4 L3", []string{"0: 0-2,4-7,16,18,20-23", "1: 8-12,24-28"}},
	"demo-dual":        {"2 nodes, 2 packages, 2 cores, 2 L3", []string{"0: 0", "0: 0", "1: 1", "1: 1"}},
	"vm-partial-nodes": {"2 nodes, 2 packages, 8 cores, 0 L3", []string{"1: 2-3", ": 0-7"}},
	"deep-domain":      {"2 nodes, 2 packages, 8 cores, 2 L3", []string{"0: 0-3", "1: 4-7"}},
	"bench-512": {"8 nodes, 2 packages, 256 cores, 32 L3", []string{
		"0: 0-31,256-287", "0: 0-31,256-287", "1: 32-63,288-319", "1: 32-63,288-319",
		"2: 64-95,320-351", "2: 64-95,320-351", "3: 96-127,352-383", "3: 96-127,352-383",
		"4: 128-159,384-415", "4: 128-159,384-415", "5: 160-191,416-447", "5: 160-191,416-447",
		"6: 192-223,448-479", "6: 192-223,448-479", "7: 224-255,480-511", "7: 224-255,480-511",
	}},
}

func TestMachinesAreAsPublished(t *testing.T) {
	for _, d := range machines.All() {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			want, ok := published[d.Name]
			if !ok {
				t.Fatal("nothing published")
			}
			m, err := d.Machine(scratch(t))
			if err != nil {
				t.Fatal(err)
			}
			counts := fmt.Sprintf("%d nodes, %d packages, %d cores, %d L3", len(m.Nodes), len(m.Packages), len(m.Cores), len(m.L3))
			if counts != want.counts {
				t.Errorf("%s, want %s", counts, want.counts)
			}
			var gpus []string
			for _, gpu := range m.GPUs {
				gpus = append(gpus, fmt.Sprintf("%s: %s", gpu.Nodes, gpu.CPUs))
			}
			if !slices.Equal(gpus, want.gpus) {
				t.Errorf("GPUs\n%q, want\n%q", gpus, want.gpus)
			}
		})
	}
}

// TestDescriptionsAreSound shows that no description contradicts itself.
func TestDescriptionsAreSound(t *testing.T) {
	names := make(map[string]bool)
	for _, d := range machines.All() {
		if d.Name == "" || d.Met == "" || names[d.Name] {
			t.Errorf("%q: want a name of its own and where it is met", d.Name)
		}
		names[d.Name] = true
		disjoint := func(what string, lists []string) idset.Set {
			var all idset.Set
			for _, list := range lists {
				set, err := idset.Parse(list)
				if err != nil {
					t.Errorf("%s: %s: %v", d.Name, what, err)
				}
				if !set.And(all).Empty() {
					t.Errorf("%s: two %s have CPUs %s", d.Name, what, set.And(all))
				}
				all = all.Or(set)
			}
			return all
		}
		var lists []string
		for _, p := range d.Packages {
			lists = append(lists, p.CPUs)
		}
		present := disjoint("packages", lists)
		lists = nil
		ids := -1
		for _, n := range d.Nodes {
			lists = append(lists, n.CPUs)
			if n.ID <= ids {
				t.Errorf("%s: node %d is out of order", d.Name, n.ID)
			}
			ids = n.ID
		}
		online := present.AndNot(idset.MustParse(d.Offline))
		if in := disjoint("nodes", lists); !in.SubsetOf(online) {
			t.Errorf("%s: CPUs %s of nodes are not online", d.Name, in.AndNot(online))
		}
		devices := make(map[string]bool)
		minors := make(map[int]bool)
		for _, gpu := range d.GPUs {
			if pci, err := topology.NormalizePCI(gpu.PCI); err != nil || pci != gpu.PCI || devices[pci] {
				t.Errorf("%s: GPU %q: want an address of its own", d.Name, gpu.PCI)
			}
			devices[gpu.PCI] = true
			if d.Driver != "" && !gpu.Unlisted {
				if minors[gpu.Minor] {
					t.Errorf("%s: two GPUs have minor %d", d.Name, gpu.Minor)
				}
				minors[gpu.Minor] = true
			}
		}
		for _, nic := range d.NICs {
			if pci, err := topology.NormalizePCI(nic.PCI); err != nil || pci != nic.PCI || devices[pci] {
				t.Errorf("%s: NIC %q: want an address of its own", d.Name, nic.PCI)
			}
			devices[nic.PCI] = true
		}
		for _, gpu := range d.GPUs {
			for _, bridge := range gpu.Bridges {
				if devices[bridge] {
					t.Errorf("%s: bridge %s is a device as well", d.Name, bridge)
				}
			}
		}
	}
}

func TestGet(t *testing.T) {
	d, err := machines.Get("gb200")
	if err != nil || d.Name != "gb200" {
		t.Errorf("%q, %v", d.Name, err)
	}
	if _, err := machines.Get("gb2000"); !errors.Is(err, machines.ErrUnknown) {
		t.Errorf("%v, want ErrUnknown", err)
	}
}

// TestRenderReportsErrors shows that a folder that cannot be written to is not
// passed over in silence.
func TestRenderReportsErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	d, err := machines.Get("demo-dual")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Render(file); err == nil {
		t.Error("rendered into a file")
	}
	if _, err := d.Machine(file); err == nil {
		t.Error("read a machine from a file")
	}
}

// TestLinksLeadWhereTheyShould follows what readers of sysfs follow.
func TestLinksLeadWhereTheyShould(t *testing.T) {
	root := scratch(t)
	d, err := machines.Get("deep-domain")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Render(root); err != nil {
		t.Fatal(err)
	}
	for link, want := range map[string]string{
		"sys/bus/pci/devices/10000:e1:00.0":  "sys/devices/pci0000:e0/0000:e0:05.5/pci10000:e0/10000:e0:06.0/10000:e1:00.0",
		"sys/bus/pci/devices/10000:e0:06.0":  "sys/devices/pci0000:e0/0000:e0:05.5/pci10000:e0/10000:e0:06.0",
		"sys/devices/system/node/node1/cpu5": "sys/devices/system/cpu/cpu5",
		"sys/devices/system/cpu/cpu5/node1":  "sys/devices/system/node/node1",
	} {
		got, err := filepath.EvalSymlinks(filepath.Join(root, link))
		if err != nil {
			t.Error(err)
			continue
		}
		if rel, err := filepath.Rel(root, got); err != nil || rel != want {
			t.Errorf("%s leads to %s, want %s", link, rel, want)
		}
	}
}
