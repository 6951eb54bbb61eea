package machines_test

import (
	"encoding/json"
	"fmt"
	"gputune/tests/machines"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestDump(t *testing.T) {
	for _, d := range machines.All() {
		dir := filepath.Join("/tmp/gt/topology/r", d.Name)
		os.RemoveAll(dir)
		s := time.Now()
		m, err := d.Machine(dir)
		if err != nil {
			t.Error(d.Name, err)
			continue
		}
		b, _ := json.Marshal(m)
		fmt.Println(d.Name, time.Since(s), len(b))
		for _, g := range m.GPUs {
			fmt.Printf("   %d %s minor %d node %s cpus %s from %s\n", g.Index, g.PCI, g.Minor, g.Nodes, g.CPUs, g.NodesFrom)
		}
		for _, w := range m.Warnings {
			fmt.Println("   !", w)
		}
		for _, n := range m.NICs[:min(2, len(m.NICs))] {
			fmt.Println("   nic", n.PCI, n.Names, n.Nodes)
		}
		fmt.Println("  ", len(m.Packages), len(m.Cores), len(m.L3), len(m.Nodes))
	}
}
