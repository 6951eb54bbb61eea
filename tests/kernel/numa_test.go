package kernel

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gputune/internal/idset"
	"gputune/internal/ledger"
	"gputune/internal/placement"
	"gputune/internal/setting"
	"gputune/internal/topology"
)

// machine reads this machine, and skips the test if it has a single NUMA node.
func machine(t *testing.T) *topology.Machine {
	t.Helper()
	m, err := topology.Read("/", topology.Options{NICs: true})
	must(t, err)
	withCPUs := 0
	for _, node := range m.Nodes {
		if !node.CPUs.Empty() {
			withCPUs++
		}
	}
	if withCPUs < 2 {
		t.Skip("this machine has one NUMA node")
	}
	return m
}

// TestHugepagesOfNode: those of the last node with CPUs are there and no others.
func TestHugepagesOfNode(t *testing.T) {
	needRoot(t)
	m := machine(t)
	ctx := context.Background()
	var nodes []int
	for _, node := range m.Nodes {
		if !node.CPUs.Empty() && node.MemoryMiB > 0 {
			nodes = append(nodes, node.ID)
		}
	}
	pool := func(node int) string {
		return "/sys/devices/system/node/node" + strconv.Itoa(node) + "/hugepages/hugepages-2048kB/nr_hugepages"
	}
	watched := part{reads: map[string]string{}}
	for _, node := range nodes {
		watched.reads[pool(node)] = ""
	}
	was := watch(t, []part{watched})
	last := nodes[len(nodes)-1]
	l, env, err := open(t.TempDir())
	must(t, err)
	wish, err := setting.Hugepages(env, last, 2048, 32)
	must(t, err)
	c, err := changes(env, []setting.Wish{wish})
	must(t, err)
	_, err = l.Apply(ctx, job, c)
	must(t, err)
	for _, node := range nodes {
		is := strings.TrimSpace(text(t, pool(node)))
		t.Logf("node %d: %s hugepages", node, is)
		if node == last && is != wish.Value || node != last && text(t, pool(node)) != was[pool(node)] {
			t.Errorf("node %d has %s hugepages", node, is)
		}
	}
	_, err = l.Release(ctx, job)
	must(t, err)
	was.back(t, "after the job")
}

// TestInterruptsOfNode moves the interrupts of the devices of the last node with
// any to that node's CPUs and back.
func TestInterruptsOfNode(t *testing.T) {
	needRoot(t)
	m := machine(t)
	ctx := context.Background()
	l, env, err := open(t.TempDir())
	must(t, err)
	var list []placement.Interrupt
	managed := 0
	local := map[string]idset.Set{}
	for _, pci := range devices(t) {
		node, err := strconv.Atoi(strings.TrimSpace(text(t, "/sys/bus/pci/devices/"+pci+"/numa_node")))
		if err != nil || node < 0 {
			continue
		}
		for _, n := range m.Nodes {
			if n.ID == node {
				local[pci] = n.CPUs
			}
		}
		movable, fixed, err := setting.MovableInterrupts(env, pci)
		must(t, err)
		t.Logf("%s (node %d): movable %v, managed %v", pci, node, movable, fixed)
		managed += len(fixed)
		for _, irq := range movable {
			list = append(list, placement.Interrupt{PCI: pci, IRQ: irq, Nodes: idset.Of(node)})
		}
	}
	if len(list) == 0 {
		t.Skip("no device of this machine says its node")
	}
	t.Logf("%d interrupts can be moved, %d are the kernel's", len(list), managed)
	// A job that has all but one core of each node.
	var busy idset.Set
	for _, node := range m.Nodes {
		busy = busy.Or(node.CPUs)
	}
	for _, node := range m.Nodes {
		for _, core := range m.Cores {
			if core.CPUs.SubsetOf(node.CPUs) {
				busy = busy.AndNot(core.CPUs)
				break
			}
		}
	}
	for _, of := range []idset.Set{{}, busy, m.CPUs} {
		var c []ledger.Change
		watched := part{reads: map[string]string{}}
		places := placement.Interrupts(m, list, of)
		for _, place := range places {
			s, err := setting.Parse(env, setting.IRQKey(place.PCI, place.IRQ))
			must(t, err)
			c = append(c, ledger.Change{Setting: s, Value: place.CPUs.String()})
			watched.reads[file(place.IRQ)] = ""
		}
		was := watch(t, []part{watched})
		_, err = l.Apply(ctx, job, c)
		must(t, err)
		for _, place := range places {
			is, err := idset.Parse(text(t, file(place.IRQ)))
			must(t, err)
			if is.Empty() || !is.SubsetOf(local[place.PCI]) || !is.Equal(place.CPUs) || !is.AndNot(of).Equal(is) && !of.Equal(m.CPUs) {
				t.Errorf("job on %s: interrupt %d of %s is on %s, its node has %s", of, place.IRQ, place.PCI, is, local[place.PCI])
			}
		}
		if len(places) != len(list) {
			t.Errorf("%d places for %d interrupts", len(places), len(list))
		}
		_, err = l.Release(ctx, job)
		must(t, err)
		was.back(t, "job on "+of.String())
	}
}

func file(irq int) string { return "/proc/irq/" + strconv.Itoa(irq) + "/smp_affinity_list" }

// TestSwapOfCgroup limits a cgroup's swap, and finds it gone when the cgroup is.
func TestSwapOfCgroup(t *testing.T) {
	needRoot(t)
	ctx := context.Background()
	const root = "/sys/fs/cgroup"
	if !strings.Contains(text(t, root+"/cgroup.subtree_control"), "memory") {
		t.Skip("no cgroup v2 with the memory controller here")
	}
	dir := filepath.Join(root, "gputune-kernel-test")
	must(t, os.Mkdir(dir, 0o755))
	t.Cleanup(func() { _ = os.Remove(dir) })
	swap := dir + "/memory.swap.max"
	if text(t, swap) == "" {
		t.Skip("the kernel accounts no swap")
	}
	key, err := setting.SwapKey("/gputune-kernel-test")
	must(t, err)
	l, env, err := open(t.TempDir())
	must(t, err)
	for _, gone := range []bool{false, true} {
		c, err := changes(env, []setting.Wish{{Key: key, Value: "0"}})
		must(t, err)
		_, err = l.Apply(ctx, job, c)
		must(t, err)
		if is := text(t, swap); is != "0\n" {
			t.Errorf("%q", is)
		}
		want := ledger.Restored
		if gone {
			want = ledger.Forgotten
			must(t, os.Remove(dir))
		}
		report, err := l.Release(ctx, job)
		must(t, err)
		if report.Outcomes[0].Action != want {
			t.Errorf("%+v", report)
		}
		if is := text(t, swap); !gone && is != "max\n" {
			t.Errorf("%q after the job", is)
		}
	}
	s, err := setting.Parse(env, key)
	must(t, err)
	if _, err := s.Check(ctx, "0"); !errors.Is(err, setting.ErrGone) {
		t.Error(err)
	}
}
