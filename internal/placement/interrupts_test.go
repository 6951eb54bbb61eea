package placement_test

import (
	"fmt"
	"slices"
	"testing"

	"gputune/internal/idset"
	"gputune/internal/placement"
	"gputune/internal/topology"
)

func TestInterrupts(t *testing.T) {
	// Two nodes with four CPUs in two cores each, and one of memory alone.
	machine := &topology.Machine{
		CPUs:  idset.Range(0, 7),
		Nodes: []topology.Node{{ID: 0, CPUs: idset.MustParse("0-1,4-5")}, {ID: 1, CPUs: idset.MustParse("2-3,6-7")}, {ID: 2}},
	}
	for _, cpus := range []string{"0,4", "1,5", "2,6", "3,7"} {
		machine.Cores = append(machine.Cores, topology.Core{CPUs: idset.MustParse(cpus)})
	}
	of := func(pci string, node int, irqs ...int) (list []placement.Interrupt) {
		for _, irq := range irqs {
			i := placement.Interrupt{PCI: pci, IRQ: irq}
			if node >= 0 {
				i.Nodes.Add(node)
			}
			list = append(list, i)
		}
		return list
	}
	interrupts := slices.Concat(of("0000:41:00.0", 1, 32, 30, 31), of("0000:42:00.0", 1, 40), of("0000:21:00.0", 0, 20), of("0000:01:00.0", -1, 9), of("0000:51:00.0", 2, 50))
	for job, want := range map[string]string{
		"":                "20:0,4 30:2,6 31:3,7 32:2,6 40:3,7",                     // no job: all cores
		"2,6":             "20:0,4 30:3,7 31:3,7 32:3,7 40:3,7",                     // one core is left on node 1
		"0,2-3":           "20:1,5 30:6 31:7 32:6 40:7",                             // no whole core, two CPUs
		"0-7":             "20:0-1,4-5 30:2-3,6-7 31:2-3,6-7 32:2-3,6-7 40:2-3,6-7", // none
		"2-3,6-7":         "20:0,4 30:2-3,6-7 31:2-3,6-7 32:2-3,6-7 40:2-3,6-7",
		"0-1,4-5,2-3,6":   "20:0-1,4-5 30:7 31:7 32:7 40:7",
		"0-1,4,2,6,3,100": "20:5 30:7 31:7 32:7 40:7",
	} {
		var cpus idset.Set
		if job != "" {
			cpus = idset.MustParse(job)
		}
		text := func(list []placement.Interrupt) (s string) {
			for i, p := range placement.Interrupts(machine, list, cpus) {
				if i > 0 {
					s += " "
				}
				s += fmt.Sprintf("%d:%s", p.IRQ, p.CPUs)
			}
			return s
		}
		if got := text(interrupts); got != want {
			t.Errorf("job on %q:\ngot  %s\nwant %s", job, got, want)
		}
		backwards := slices.Clone(interrupts)
		slices.Reverse(backwards)
		if got := text(backwards); got != want {
			t.Errorf("job on %q: the order matters: %s", job, got)
		}
	}
}

// So many interrupts that the vectors of the cores left would not do go to the node.
func TestManyInterrupts(t *testing.T) {
	machine := &topology.Machine{
		CPUs: idset.Range(0, 3), Nodes: []topology.Node{{ID: 0, CPUs: idset.Range(0, 3)}},
		Cores: []topology.Core{{CPUs: idset.Of(0, 1)}, {CPUs: idset.Of(2, 3)}},
	}
	for _, c := range []struct {
		number    int
		job, want string
	}{
		{200, "0-1", "2-3"},
		{201, "0-1", "0-3"},
		{100, "0-2", "3"},
		{101, "0-2", "0-3"},
		{100, "0,2", "1"},
		{401, "", "0-3"},
	} {
		var list []placement.Interrupt
		for irq := range c.number {
			list = append(list, placement.Interrupt{PCI: "0000:21:00.0", IRQ: irq, Nodes: idset.Of(0)})
		}
		var job idset.Set
		if c.job != "" {
			job = idset.MustParse(c.job)
		}
		places := placement.Interrupts(machine, list, job)
		if got := places[0].CPUs.String(); got != c.want || len(places) != c.number {
			t.Errorf("%d interrupts, job on %q: the first of %d on %s, want %s", c.number, c.job, len(places), got, c.want)
		}
	}
}
