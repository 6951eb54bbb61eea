package topology_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gputune/internal/topology"
)

// checkMachine reports what no machine may be, whatever it was read from.
func checkMachine(t *testing.T, m *topology.Machine) {
	t.Helper()
	if m.CPUs.Empty() {
		t.Fatal("no CPUs")
	}
	if !m.CPUs.And(m.Offline).Empty() {
		t.Errorf("CPUs %s are online and offline", m.CPUs.And(m.Offline))
	}
	seen := m.CPUs
	for _, core := range m.Cores {
		if core.CPUs.Empty() || !core.CPUs.SubsetOf(seen) {
			t.Errorf("core %s overlaps another or has CPUs that are not online", core.CPUs)
		}
		seen = seen.AndNot(core.CPUs)
	}
	if !seen.Empty() {
		t.Errorf("CPUs %s have no core", seen)
	}
	for _, node := range m.Nodes {
		if !node.CPUs.SubsetOf(m.CPUs) || node.MemoryMiB < 0 {
			t.Errorf("node %+v", node)
		}
	}
	for i, gpu := range m.GPUs {
		if pci, err := topology.NormalizePCI(gpu.PCI); err != nil || pci != gpu.PCI || gpu.Index != i {
			t.Errorf("GPU %d: %+v", i, gpu)
		}
		if !gpu.CPUs.SubsetOf(m.CPUs) {
			t.Errorf("GPU %s: CPUs %s are not online", gpu.PCI, gpu.CPUs.AndNot(m.CPUs))
		}
		for id := range gpu.Nodes.All() {
			found := false
			for _, node := range m.Nodes {
				found = found || node.ID == id && !node.CPUs.Empty()
			}
			if !found {
				t.Errorf("GPU %s: node %d has no CPUs", gpu.PCI, id)
			}
		}
		if gpu.Nodes.Empty() != (gpu.NodesFrom == "") {
			t.Errorf("GPU %s: node %q from %q", gpu.PCI, gpu.Nodes, gpu.NodesFrom)
		}
	}
	for _, text := range m.Warnings {
		if len(text) > 1000 {
			t.Errorf("warning of %d bytes", len(text))
		}
	}
}

// FuzzRead puts arbitrary content into one file of a machine, or into all of
// its kind.
func FuzzRead(f *testing.F) {
	root := rendered(f, "vm-partial-nodes")
	patterns := []string{
		cpuFolder + "online", cpuFolder + "present", cpuFolder + "cpu*/topology/core_cpus_list",
		cpuFolder + "cpu*/topology/package_cpus_list", cpuFolder + "cpu*/topology/physical_package_id",
		cpuFolder + "cpu*/cache/index*/level", cpuFolder + "cpu*/cache/index2/shared_cpu_list",
		nodeFolder + "online", nodeFolder + "node*/cpulist", nodeFolder + "node*/meminfo", nodeFolder + "node*/distance",
		"sys/devices/pci*/*/*/numa_node", "sys/devices/pci*/*/*/local_cpulist", "sys/devices/pci*/*/numa_node",
		"proc/driver/nvidia/version", gpuFolder + "*/information", cpuFolder + "cpu*/topology/core_cpus",
	}
	files := make([][]string, len(patterns))
	original := make(map[string][]byte)
	var err error
	for i, pattern := range patterns {
		if files[i], err = filepath.Glob(filepath.Join(root, pattern)); err != nil || len(files[i]) == 0 {
			f.Fatalf("%s: no file: %v", pattern, err)
		}
		for _, path := range files[i] {
			if original[path], err = os.ReadFile(path); err != nil {
				f.Fatal(err)
			}
		}
	}
	for kind := range patterns {
		f.Add(uint8(kind), false, original[files[kind][0]])
		f.Add(uint8(kind), true, []byte("0-8191"))
		f.Add(uint8(kind), true, []byte("18446744073709551616"))
		f.Add(uint8(kind), true, []byte("-1\n"))
		f.Add(uint8(kind), true, []byte("3\n"))
	}
	f.Add(uint8(15), true, []byte("Device Minor: 1\nGPU UUID: x\nGPU Excluded: Yes\n:::\n"))
	f.Fuzz(func(t *testing.T, kind uint8, everywhere bool, content []byte) {
		changed := files[int(kind)%len(files)]
		if !everywhere {
			changed = changed[:1]
		}
		for _, path := range changed {
			if err := os.WriteFile(path, content, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		defer func() {
			for _, path := range changed {
				if err := os.WriteFile(path, original[path], 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}()
		m, err := topology.Read(root, topology.Options{NICs: true})
		if err != nil {
			t.Fatal(err) // the folders of the CPUs are always there
		}
		checkMachine(t, m)
	})
}

// FuzzReadSnapshot decodes arbitrary snapshots, and uses those that pass.
func FuzzReadSnapshot(f *testing.F) {
	root := rendered(f, "vm-partial-nodes")
	m, err := topology.Read(root, topology.Options{NICs: true})
	if err != nil {
		f.Fatal(err)
	}
	path := filepath.Join(root, "topology.json")
	if err := topology.WriteSnapshot(root, path, m); err != nil {
		f.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add(bytes.ReplaceAll(whole, []byte(`"0-7"`), []byte(`"0-8191"`)))
	f.Add(bytes.ReplaceAll(whole, []byte(`"id":1`), []byte(`"id":99999999999`)))
	f.Add(bytes.ReplaceAll(whole, []byte(`"numa_node":1`), []byte(`"numa_node":-9223372036854775808`)))
	f.Add([]byte(strings.Repeat("[", 20000)))
	f.Fuzz(func(t *testing.T, content []byte) {
		m, err := topology.DecodeSnapshot(content)
		if err != nil {
			return
		}
		m.Resolve()
		for _, gpu := range m.GPUs {
			_ = gpu.Nodes.String() + gpu.CPUs.String()
		}
		if m.CPUs.Empty() {
			t.Error("accepted a machine without CPUs")
		}
	})
}

// FuzzNormalizePCI shows that a normalized address stays as it is and is safe
// as a name in a path.
func FuzzNormalizePCI(f *testing.F) {
	for _, seed := range []string{"0000:47:00.0", "00000000:BD:00.0", "47:00.0", "10000:e1:00.0", "../x", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, address string) {
		pci, err := topology.NormalizePCI(address)
		if err != nil {
			return
		}
		if strings.ContainsAny(pci, "/\x00") || len(pci) > len("00000000:00:00.0") {
			t.Errorf("%q became %q", address, pci)
		}
		if again, err := topology.NormalizePCI(pci); err != nil || again != pci {
			t.Errorf("%q became %q, and that %q: %v", address, pci, again, err)
		}
	})
}

// FuzzParseMask shows that masks of any length neither panic nor reach beyond
// the largest id.
func FuzzParseMask(f *testing.F) {
	for _, seed := range []string{"3", "ffff0000,00000000", ",", "1,,1", "80000000" + strings.Repeat(",00000000", 255)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		set, err := topology.ParseMask(text)
		if err != nil && !set.Empty() {
			t.Errorf("%q: %q beside %v", text, set, err)
		}
	})
}
