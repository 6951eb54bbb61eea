//go:build gpu

package hw

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

// Every GPU with its names, as nvidia-smi has them, in the same order.
func TestGPUs(t *testing.T) {
	m := machine(t)
	rows := smi(t, "index", "uuid", "pci.bus_id", "name", "driver_version")
	if len(rows) != len(m.GPUs) {
		t.Fatalf("%d GPUs, nvidia-smi lists %d", len(m.GPUs), len(rows))
	}
	for i, row := range rows {
		gpu := m.GPUs[i]
		pci, err := topology.NormalizePCI(row[2])
		if err != nil {
			t.Fatal(err)
		}
		if strconv.Itoa(gpu.Index) != row[0] || gpu.UUID != row[1] || gpu.PCI != pci || gpu.Model != row[3] || m.Driver != row[4] {
			t.Errorf("got %+v, driver %s; nvidia-smi says %v", gpu, m.Driver, row)
		}
		information, err := os.ReadFile(filepath.Join("/proc/driver/nvidia/gpus", gpu.PCI, "information"))
		if err != nil {
			t.Fatal(err)
		}
		minor := regexp.MustCompile(`(?m)^Device Minor:\s*(\d+)`).FindSubmatch(information)
		if minor == nil || strconv.Itoa(gpu.Minor) != string(minor[1]) {
			t.Errorf("gpu %s: minor %d, the driver says %q", gpu.PCI, gpu.Minor, minor)
		}
	}
}

var escapes = regexp.MustCompile("\x1b\\[[0-9;]*m")

// affinities are the columns of nvidia-smi topo -m, by GPU.
func affinities(t *testing.T) (cpus, nodes map[int]string) {
	t.Helper()
	cpus, nodes = map[int]string{}, map[int]string{}
	text := escapes.ReplaceAllString(run(t, "nvidia-smi", "topo", "-m"), "")
	var header []string
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimRight(line, "\n"), "\t")
		for i := range fields {
			fields[i] = strings.TrimSpace(fields[i])
		}
		if header == nil {
			header = fields
			continue
		}
		number, is := strings.CutPrefix(fields[0], "GPU")
		index, err := strconv.Atoi(number)
		if !is || err != nil {
			continue
		}
		for column, field := range fields {
			switch {
			case column >= len(header):
			case header[column] == "CPU Affinity":
				cpus[index] = field
			case header[column] == "NUMA Affinity":
				nodes[index] = field
			}
		}
	}
	if len(cpus) == 0 {
		t.Fatalf("no column CPU Affinity in:\n%s", text)
	}
	return cpus, nodes
}

// The CPUs and nodes near each GPU are those of nvidia-smi topo -m.
func TestAffinity(t *testing.T) {
	m := machine(t)
	cpus, nodes := affinities(t)
	for _, gpu := range m.GPUs {
		want, err := idset.Parse(cpus[gpu.Index])
		if err != nil {
			t.Errorf("gpu %s: nvidia-smi says CPUs %q: %v", gpu.PCI, cpus[gpu.Index], err)
			continue
		}
		if !gpu.CPUs.Equal(want) {
			t.Errorf("gpu %s: CPUs %s, nvidia-smi says %s", gpu.PCI, gpu.CPUs, want)
		}
		if gpu.Nodes.String() != nodes[gpu.Index] {
			t.Errorf("gpu %s: nodes %s from %s, nvidia-smi says %s", gpu.PCI, gpu.Nodes, gpu.NodesFrom, nodes[gpu.Index])
		}
		t.Logf("gpu %s: CPUs %s, nodes %s from %s; numa_node %d", gpu.PCI, gpu.CPUs, gpu.Nodes, gpu.NodesFrom, gpu.NUMANode)
	}
}

// What sysfs says is what hwloc reads there.
func TestHwloc(t *testing.T) {
	if _, err := exec.LookPath("hwloc-calc"); err != nil {
		t.Skip("hwloc is not installed: ", err)
	}
	for _, gpu := range machine(t).GPUs {
		list := strings.TrimSpace(run(t, "hwloc-calc", "--po", "-I", "PU", "pci="+gpu.PCI))
		var ids []int
		for id := range strings.SplitSeq(list, ",") {
			n, err := strconv.Atoi(id)
			if err != nil {
				t.Fatalf("hwloc-calc: %q", list)
			}
			ids = append(ids, n)
		}
		slices.Sort(ids)
		if want := idset.Of(ids...); !gpu.LocalCPUs.Equal(want) {
			t.Errorf("gpu %s: local CPUs %s, hwloc says %s", gpu.PCI, gpu.LocalCPUs, want)
		}
	}
}
