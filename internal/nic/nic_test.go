package nic

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

func bridges(names ...string) (list []topology.Bridge) {
	for _, name := range names {
		list = append(list, topology.Bridge{PCI: name})
	}
	return list
}

// A machine with two GPUs and one NIC below each of two switches on node 0, and
// two GPUs and two NICs on node 1 with root ports of their own.
var (
	gpus = []topology.GPU{
		{PCI: "0000:11:00.0", Bridges: bridges("0000:10:01.0", "0000:10:00.0", "0000:0f:00.0"), Nodes: idset.Of(0)},
		{PCI: "0000:12:00.0", Bridges: bridges("0000:10:02.0", "0000:10:00.0", "0000:0f:00.0"), Nodes: idset.Of(0)},
		{PCI: "0000:21:00.0", Bridges: bridges("0000:20:01.0", "0000:20:00.0", "0000:1f:00.0"), Nodes: idset.Of(0)},
		{PCI: "0000:81:00.0", Bridges: bridges("0000:80:01.0"), Nodes: idset.Of(1)},
		{PCI: "0000:82:00.0", Bridges: bridges("0000:80:02.0"), Nodes: idset.Of(1)},
		{PCI: "0000:83:00.0", Bridges: bridges("0000:80:03.0"), Nodes: idset.Of(1)},
	}
	devices = []Device{
		{topology.NIC{PCI: "0000:92:00.0", Bridges: bridges("0000:90:02.0"), Nodes: idset.Of(1)}, "mlx5_3"},
		{topology.NIC{PCI: "0000:91:00.0", Bridges: bridges("0000:90:01.0"), Nodes: idset.Of(1)}, "mlx5_2"},
		{topology.NIC{PCI: "0000:23:00.0", Bridges: bridges("0000:20:03.0", "0000:20:00.0", "0000:1f:00.0"), Nodes: idset.Of(0)}, "mlx5_1"},
		{topology.NIC{PCI: "0000:13:00.0", Bridges: bridges("0000:10:03.0", "0000:10:00.0", "0000:0f:00.0"), Nodes: idset.Of(0)}, "mlx5_0"},
	}
)

func TestAssign(t *testing.T) {
	var tasks [][]topology.GPU
	for _, gpu := range gpus {
		tasks = append(tasks, []topology.GPU{gpu})
	}
	unknown := topology.GPU{PCI: "0000:ff:00.0"}
	tasks = append(tasks, nil, gpus[3:6], []topology.GPU{gpus[0], gpus[2], gpus[1]}, []topology.GPU{unknown})
	got := fmt.Sprint(Assign(tasks, devices))
	const want = "[{mlx5_0 [mlx5_0]} {mlx5_0 [mlx5_0]} {mlx5_1 [mlx5_1]} " +
		"{mlx5_2 [mlx5_2 mlx5_3]} {mlx5_3 [mlx5_3 mlx5_2]} {mlx5_2 [mlx5_2 mlx5_3]} { []} {mlx5_3 [mlx5_3 mlx5_2]} " +
		"{mlx5_0 [mlx5_0]} {mlx5_1 [mlx5_1 mlx5_0 mlx5_2 mlx5_3]}]"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	backwards := slices.Clone(devices)
	slices.Reverse(backwards)
	if again := fmt.Sprint(Assign(tasks, backwards)); again != want {
		t.Errorf("the order of devices matters: %s", again)
	}
	if none := Assign(tasks[:1], nil); len(none) != 1 || none[0].Best != "" || none[0].All != nil {
		t.Errorf("%v", none)
	}
}

func TestUsable(t *testing.T) {
	root := t.TempDir()
	for file, text := range map[string]string{
		"infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n", "net/ib0/operstate": "up\n",
		"infiniband/mlx5_1/ports/1/state": "1: DOWN\n", "net/ib1/operstate": "up\n",
		"infiniband/mlx5_bond_0/ports/1/state": "4: ACTIVE\n", "net/eth4/operstate": "up\n",
		"net/eth0/operstate": "up\n", "net/eth1/operstate": "down\n",
		"net/eth2/operstate": "up\n", "net/eth2/master/bonding/mode": "802.3ad 4\n",
	} {
		file = filepath.Join(root, "sys/class", file)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	machine := &topology.Machine{}
	for i, names := range [][]string{{"ib0", "mlx5_0"}, {"ib1", "mlx5_1"}, {"eth4", "mlx5_bond_0"}, {"eth0"}, {"eth1"}, {"eth2"}, {"gone"}, nil} {
		machine.NICs = append(machine.NICs, topology.NIC{PCI: fmt.Sprintf("0000:%02x:00.0", i), Names: names})
	}
	var names []string
	for _, d := range Usable(root, machine) {
		names = append(names, d.PCI+" "+d.Name)
	}
	if got := fmt.Sprint(names); got != "[0000:00:00.0 mlx5_0 0000:03:00.0 eth0]" {
		t.Error(got)
	}
}
