package topology_test

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gputune/internal/topology"
	"gputune/internal/topology/source"
	"gputune/tests/lstopo"
	"gputune/tests/machines"
	"gputune/tests/published"
)

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

// TestReadAgreesWithHwloc reads, packed and unpacked, the copies of /sys and /proc of real machines
// that hwloc is tested with, where a folder with them lies beside the
// repository.
func TestReadAgreesWithHwloc(t *testing.T) {
	archives, err := filepath.Glob(filepath.Join(published.Folder(t), "hwloc/sysfs/*.tar.bz2"))
	if err != nil {
		t.Fatal(err)
	}
	lstopo.Need(t)
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
			lstopo.Compare(t, m, lstopo.Ask(t, root, "fsroot"), hwlocKnowsMore[name])
			packed, _, err := source.Open(archive)
			if err != nil {
				t.Fatal(err)
			}
			if a, b := readableJSON(t, packed), readableJSON(t, m); !bytes.Equal(a, b) {
				t.Errorf("archive:\n%s\nits files:\n%s", a, b)
			}
		})
	}
	t.Logf("read %d machines", len(archives))
}

// TestReadAgreesWithHwlocHere compares the two on the machine that the test
// runs on, whose sysfs is no copy.
func TestReadAgreesWithHwlocHere(t *testing.T) {
	lstopo.Need(t)
	m, err := topology.Read("/", topology.Options{NICs: true})
	if err != nil {
		t.Fatal(err)
	}
	lstopo.Compare(t, m, lstopo.Ask(t, "/", "fsroot"), nil)
}

// TestMachinesAgreeWithHwloc shows that what package machines renders is what
// others, too, take for the machine.
func TestMachinesAgreeWithHwloc(t *testing.T) {
	lstopo.Need(t)
	for _, d := range machines.All() {
		t.Run(d.Name, func(t *testing.T) {
			root := scratch(t)
			m, err := d.Machine(root)
			if err != nil {
				t.Fatal(err)
			}
			lstopo.Compare(t, m, lstopo.Ask(t, root, "fsroot"), nil)
		})
	}
}
