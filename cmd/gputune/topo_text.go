package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"gputune/internal/idset"
	"gputune/internal/table"
	"gputune/internal/topology"
)

// topoText is a machine as "gputune topo" shows it.
type topoText struct {
	*topology.Machine
	source  topology.Source
	odd     []string
	colours bool
}

func (t topoText) write(w io.Writer) error {
	fmt.Fprintf(w, "%s\n\n", t.summary())
	nodes := t.nodes()
	if err := nodes.Write(w, t.colours); err != nil {
		return err
	}
	for _, next := range []table.Table{t.gpus(), t.models(), t.nics()} {
		if len(next.Rows) == 0 {
			continue
		}
		fmt.Fprintln(w)
		if err := next.Write(w, t.colours); err != nil {
			return err
		}
	}
	return writeRemarks(w, t.odd, t.source.Unknown, t.colours)
}

// writeRemarks writes what looks wrong and what is not known, a paragraph each.
func writeRemarks(w io.Writer, odd, unknown []string, colours bool) error {
	var b strings.Builder
	for _, remarks := range []struct {
		word  string
		style table.Style
		lines []string
	}{{"warning:", table.Odd, odd}, {"not stated:", table.Plain, unknown}} {
		for i, text := range remarks.lines {
			if i == 0 {
				b.WriteByte('\n')
			}
			lines := table.Wrap(remarks.word+" "+text, table.Width-2)
			lines[0] = table.Paint(remarks.word, remarks.style, colours) + strings.TrimPrefix(lines[0], remarks.word)
			b.WriteString(strings.Join(lines, "\n  ") + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (t topoText) summary() string {
	parts := []string{fmt.Sprintf("%s: ", t.Source)}
	if t.source.File != "/" {
		parts[0] = fmt.Sprintf("%s (%s): ", t.source.File, t.Source)
	}
	for _, count := range []struct {
		n    int
		word string
	}{
		{len(t.Packages), "package"},
		{len(t.Nodes), "node"},
		{len(t.Cores), "core"},
		{t.CPUs.Len(), "CPU"},
		{len(t.GPUs), "GPU"},
		{len(t.NICs), "NIC"},
	} {
		if count.n > 0 {
			parts = append(parts, counted(count.n, count.word))
		}
	}
	if t.Driver != "" {
		parts = append(parts, "driver "+t.Driver)
	}
	return strings.Join(table.Wrap(parts[0]+strings.Join(parts[1:], ", "), table.Width), "\n")
}

func counted(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

func (t topoText) nodes() table.Table {
	list := table.Table{Head: []string{"NODE", "PACKAGE", "CPUS", "MEMORY", "DISTANCES", "GPUS", "NICS"}}
	var empty idset.Set
	for _, node := range t.Nodes {
		if node.CPUs.Empty() && node.MemoryMiB == 0 {
			empty.Add(node.ID)
			continue
		}
		var packages, gpus idset.Set
		for _, p := range t.Packages {
			if p.ID >= 0 && !p.CPUs.And(node.CPUs).Empty() {
				packages.Add(p.ID)
			}
		}
		var nics []string
		for _, gpu := range t.GPUs {
			if gpu.Nodes.Has(node.ID) {
				gpus.Add(gpu.Index)
			}
		}
		for _, nic := range t.NICs {
			if nic.Nodes.Has(node.ID) {
				nics = append(nics, nicName(nic))
			}
		}
		memory := table.Text(size(node.MemoryMiB))
		if node.MemoryMiB == 0 {
			memory.Style = table.Odd
		}
		list.Add(table.Text(fmt.Sprint(node.ID)), table.Text(packages.String()), table.Text(node.CPUs.String()), memory,
			table.Text(distances(node.Distances)), table.Text(gpus.String()), table.Text(strings.Join(nics, " ")))
	}
	if !empty.Empty() {
		list.Add(table.Text(empty.String()), table.Text(""), table.Text(""), table.Text("none"), table.Text(""), table.Text(""), table.Text(""))
	}
	return list
}

// size writes a node's memory.
func size(mib int64) string {
	switch {
	case mib == topology.MemoryUnknown:
		return ""
	case mib == 0:
		return "none"
	case mib < 10<<10:
		return fmt.Sprintf("%d MiB", mib)
	}
	return fmt.Sprintf("%d GiB", mib>>10)
}

// distances groups a node's distances by their size: "10:0 12:1-3 32:4-7".
func distances(to map[int]int) string {
	nodes := make(map[int]idset.Set)
	for node, distance := range to {
		nodes[distance] = nodes[distance].Or(idset.Of(node))
	}
	var parts []string
	for _, distance := range slices.Sorted(maps.Keys(nodes)) {
		parts = append(parts, fmt.Sprintf("%d:%s", distance, nodes[distance]))
	}
	return strings.Join(parts, " ")
}

func (t topoText) gpus() table.Table {
	list := table.Table{Head: []string{"GPU", "PCI", "NODE", "CPUS", "KNOWN FROM", "NEAREST NICS"}}
	for i := range t.GPUs {
		gpu := &t.GPUs[i]
		nodes := table.Text(gpu.Nodes.String())
		if gpu.Nodes.Empty() {
			nodes = table.Cell{Text: "unknown", Style: table.Bad}
		}
		from := table.Text(gpu.NodesFrom)
		if from.Text == "" && !gpu.Nodes.Empty() {
			from.Text = t.Source
		}
		list.Add(table.Text(fmt.Sprint(gpu.Index)), table.Text(gpu.PCI), nodes, table.Text(gpu.CPUs.String()), from, table.Text(t.nearest(gpu)))
	}
	return list
}

func (t topoText) nearest(gpu *topology.GPU) string {
	nics, near := t.NearestNICs(gpu)
	var names []string
	for _, nic := range nics {
		names = append(names, nicName(t.NICs[nic]))
	}
	if len(names) == 0 {
		return ""
	}
	return string(near) + " " + strings.Join(names, " ")
}

// nicName is an RDMA device's name, which is what NCCL and UCX are told, else the
// network interface's, else the address.
func nicName(nic topology.NIC) string {
	for _, name := range nic.Names {
		if strings.Contains(name, "_") {
			return name
		}
	}
	return cmp.Or(strings.Join(nic.Names, "/"), nic.PCI)
}

func (t topoText) models() table.Table {
	list := table.Table{Head: []string{"GPU", "MODEL", "DEVICE", "UUID", "MIG"}}
	for _, gpu := range t.GPUs {
		device, mig := "", ""
		if gpu.Minor >= 0 {
			device = fmt.Sprintf("nvidia%d", gpu.Minor)
		}
		if len(gpu.MIG) > 0 {
			mig = counted(len(gpu.MIG), "instance")
		}
		if gpu.Model+device+gpu.UUID+mig != "" {
			list.Add(table.Text(fmt.Sprint(gpu.Index)), table.Text(gpu.Model), table.Text(device), table.Text(gpu.UUID), table.Cell{Text: mig, Style: table.Odd})
		}
	}
	return list
}

func (t topoText) nics() table.Table {
	list := table.Table{Head: []string{"NIC", "PCI", "NODE", "NEAREST GPUS"}}
	for i := range t.NICs {
		nic := &t.NICs[i]
		var gpus idset.Set
		best := topology.NotKnown
		for _, gpu := range t.GPUs {
			if near := topology.Near(&gpu, nic); near.Compare(best) < 0 {
				best, gpus = near, idset.Of(gpu.Index)
			} else if near == best && near != topology.NotKnown {
				gpus.Add(gpu.Index)
			}
		}
		nearest := ""
		if best.Compare(topology.SameNode) <= 0 {
			nearest = string(best) + " " + gpus.String()
		}
		nodes := table.Text(nic.Nodes.String())
		if nic.Nodes.Empty() {
			nodes = table.Cell{Text: "unknown", Style: table.Odd}
		}
		list.Add(table.Text(strings.Join(nic.Names, " ")), table.Text(nic.PCI), nodes, table.Text(nearest))
	}
	return list
}
