package topology_test

import (
	"strings"
	"testing"

	"gputune/internal/topology"
)

func machineCalled(t *testing.T, name string) *topology.Machine {
	t.Helper()
	machine, err := described(t, name).Machine(scratch(t))
	if err != nil {
		t.Fatal(err)
	}
	return machine
}

func TestNearestNICs(t *testing.T) {
	for _, c := range []struct {
		machine string
		gpu     int
		want    string
		near    topology.Nearness
	}{
		{"dgx-a100", 0, "mlx5_0", topology.SameSwitch},
		{"dgx-h100", 5, "mlx5_5", topology.SameSwitch},
		{"gb200", 0, "mlx5_0 mlx5_1", topology.SameNode},
		{"power9-ac922", 3, "mlx5_2", topology.SameNode},
		{"demo-dual", 0, "", topology.NotKnown},
	} {
		m := machineCalled(t, c.machine)
		nics, near := m.NearestNICs(&m.GPUs[c.gpu])
		var names []string
		for _, nic := range nics {
			names = append(names, m.NICs[nic].Names[len(m.NICs[nic].Names)-1])
		}
		if got := strings.Join(names, " "); got != c.want || near != c.near {
			t.Errorf("%s gpu %d: %q %q, want %q %q", c.machine, c.gpu, got, near, c.want, c.near)
		}
	}
	m := machineCalled(t, "dgx-a100")
	if near := topology.Near(&m.GPUs[0], &m.NICs[7]); near != topology.FarNode {
		t.Errorf("over two packages: %s", near)
	}
	if near := topology.Near(&m.GPUs[0], &topology.NIC{}); near != topology.NotKnown {
		t.Errorf("a NIC at no node: %s", near)
	}
}

func TestOdd(t *testing.T) {
	m := machineCalled(t, "demo-dual")
	if odd := m.Odd(); len(odd) != 0 {
		t.Errorf("got %q", odd)
	}
	m.Nodes[1].MemoryMiB = 0
	m.GPUs[2].MIG = []string{"MIG-1"}
	odd := strings.Join(m.Odd(), "\n")
	if !strings.HasPrefix(odd, "node 1: has CPUs but no memory") || !strings.Contains(odd, "\nGPU 0000:97:00.0: MIG is on") {
		t.Errorf("got %q", odd)
	}
	m.Nodes[1].MemoryMiB = topology.MemoryUnknown
	if odd := m.Odd(); len(odd) != 1 {
		t.Errorf("memory that is not stated: %q", odd)
	}
}
