package placement

import (
	"cmp"
	"slices"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

// Interrupt is one interrupt of a PCI device.
type Interrupt struct {
	PCI   string
	IRQ   int
	Nodes idset.Set // the local NUMA nodes of its device, empty: unknown
}

// InterruptPlace is where an interrupt shall go.
type InterruptPlace struct {
	Interrupt
	CPUs idset.Set
}

// Interrupts spreads interrupts over the CPUs of their devices' nodes: over the
// cores that a job leaves free there, each interrupt on all threads of one core
// and each core in turn; where it leaves no whole core, over the single CPUs that
// it leaves; where it leaves none, or too few for so many interrupts, each
// interrupt on all CPUs of the node, from which the kernel chooses. One whose node is not known or has no CPU is not in the
// result and stays where it is. job are the CPUs of the job. The order of
// the interrupts does not matter.
func Interrupts(machine *topology.Machine, interrupts []Interrupt, job idset.Set) []InterruptPlace {
	interrupts = slices.Clone(interrupts)
	slices.SortFunc(interrupts, func(a, b Interrupt) int { return cmp.Or(cmp.Compare(a.PCI, b.PCI), cmp.Compare(a.IRQ, b.IRQ)) })
	// By the nodes, so that devices of one node share its cores.
	turn, number := map[string]int{}, map[string]int{}
	for _, interrupt := range interrupts {
		number[interrupt.Nodes.String()]++
	}
	var places []InterruptPlace
	for _, interrupt := range interrupts {
		if interrupt.Nodes.Empty() {
			continue
		}
		key := interrupt.Nodes.String()
		choice := interruptCPUs(machine, interrupt.Nodes, job, number[key])
		if len(choice) == 0 {
			continue
		}
		places = append(places, InterruptPlace{interrupt, choice[turn[key]%len(choice)]})
		turn[key]++
	}
	return places
}

// interruptsOfCPU is how many interrupts a CPU is given. An x86 processor has some
// 200 vectors, which all devices and the kernel itself share; without one left,
// the kernel refuses with ENOSPC (arch/x86/kernel/apic/vector.c).
const interruptsOfCPU = 100

// interruptCPUs returns the sets of CPUs that so many interrupts of nodes take
// turns on.
func interruptCPUs(machine *topology.Machine, nodes, job idset.Set, number int) []idset.Set {
	var local idset.Set
	for _, node := range machine.Nodes {
		if nodes.Has(node.ID) {
			local = local.Or(node.CPUs)
		}
	}
	if local.Empty() {
		return nil
	}
	var cores, single []idset.Set
	var ofCores idset.Set
	for _, core := range machine.Cores {
		cpus := core.CPUs.And(local)
		if !cpus.Empty() && cpus.And(job).Empty() {
			cores = append(cores, cpus)
			ofCores = ofCores.Or(cpus)
		}
	}
	if len(cores) > 0 && number <= ofCores.Len()*interruptsOfCPU {
		return cores
	}
	for cpu := range local.AndNot(job).All() {
		single = append(single, idset.Of(cpu))
	}
	if len(single) > 0 && number <= len(single)*interruptsOfCPU {
		return single
	}
	return []idset.Set{local}
}
