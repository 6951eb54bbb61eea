package source_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gputune/internal/idset"
	"gputune/internal/placement"
	"gputune/internal/topology"
)

// These are bindings that went wrong on real machines because a source was
// taken at its word, with what is right.

// table is what nvidia-smi prints for GPUs with these values beside the matrix.
func table(titles string, values ...string) string {
	var b strings.Builder
	for i := range values {
		fmt.Fprintf(&b, "\tGPU%d", i)
	}
	b.WriteString("\t" + titles + "\n")
	for i, value := range values {
		fmt.Fprintf(&b, "GPU%d%s\t%s\n", i, strings.Repeat("\tX", len(values)), value)
	}
	return b.String()
}

const (
	threeColumns = "CPU Affinity\tNUMA Affinity\tGPU NUMA ID"
	twoColumns   = "CPU Affinity\tNUMA Affinity"
)

// ncclNode is a node of an NCCL topology with a GPU on each of these buses.
func ncclNode(id int, mask string, buses ...int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "<cpu numaid=\"%d\" affinity=\"%s\">", id, mask)
	for _, bus := range buses {
		fmt.Fprintf(&b, "<pci busid=\"%04x:00:00.0\" class=\"0x030200\"/>", bus)
	}
	return b.String() + "</cpu>\n"
}

func nccl(nodes ...string) string {
	return "<system version=\"1\">\n" + strings.Join(nodes, "") + "</system>\n"
}

// siblings makes cores of two threads, the second of which is so much higher.
func siblings(m *topology.Machine, cores int) {
	for cpu := range cores {
		m.Cores = append(m.Cores, topology.Core{CPUs: idset.Of(cpu, cpu+cores)})
	}
}

// plan binds one task to each of the GPUs. Each line of the result is a task:
// CPUs, memory nodes and locality.
func plan(m *topology.Machine, policy placement.Policy, granted string, gpus ...int) []string {
	request := placement.Request{Policy: policy, CPUs: idset.MustParse(granted), GPUs: gpus}
	for i, gpu := range gpus {
		request.Tasks = append(request.Tasks, placement.Task{LocalID: i, GPUs: []int{gpu}})
	}
	var lines []string
	for _, task := range placement.Plan(m, request).Tasks {
		lines = append(lines, fmt.Sprintf("%s mem %s %s", task.CPUs, task.Mems, task.Locality))
	}
	return lines
}

func exclusive() placement.Policy {
	policy := placement.Default()
	policy.CPUs = placement.CPUsExclusive
	return policy
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s\n  is   %q\n  want %q", what, got, want)
	}
}

func parsed(t *testing.T, text string) *topology.Machine {
	t.Helper()
	m, _ := open(t, file(t, []byte(text)))
	return m
}

// The job's CPUs are all on socket 0, so that GPU1's cell is empty.
func TestCaseEmptyCell(t *testing.T) {
	text := table(threeColumns, "0-63\t0\t\tN/A", "\t1\t\tN/A")
	expect(t, "table", gpuFacts(parsed(t, text)), "0-63 node 0", "- node 1")

	m := parsed(t, text+"NUMA node0 CPU(s): 0-63\nNUMA node1 CPU(s): 64-127\n")
	expect(t, "with lscpu", gpuFacts(m), "0-63 node 0", "64-127 node 1")
	expect(t, "plan", plan(m, exclusive(), "0-63", 0, 1), "0-31 mem 0 local", "32-63 mem 1 remote")
}

// Eight GPUs, 16 cores granted on one socket: the four of the other socket have
// an empty cell, and the number after it is a node.
func TestCaseEmptyCells(t *testing.T) {
	near, far := "0-15,56-71\t0\t\tN/A", "\t1\t\tN/A"
	text := table(threeColumns, near, near, near, near, far, far, far, far)
	expect(t, "table", gpuFacts(parsed(t, text)), append(repeat(4, "0-15,56-71 node 0"), repeat(4, "- node 1")...)...)

	m := parsed(t, text+"NUMA node0 CPU(s): 0-27,56-83\nNUMA node1 CPU(s): 28-55,84-111\n")
	siblings(m, 56)
	expect(t, "plan", plan(m, exclusive(), "0-15,56-71", 0, 1, 2, 3, 4, 5, 6, 7),
		"0-1,56-57 mem 0 local", "2-3,58-59 mem 0 local", "4-5,60-61 mem 0 local", "6-7,62-63 mem 0 local",
		"8-9,64-65 mem 1 remote", "10-11,66-67 mem 1 remote", "12-13,68-69 mem 1 remote", "14-15,70-71 mem 1 remote")
}

// The table has the job's CPUs for every GPU: nothing is known from it, and
// sysfs knows better.
func TestCaseTableOfTheJob(t *testing.T) {
	const nodes = "node 0 cpus: 0 1 2 3 4 5 6 7 8 9 10 11\nnode 1 cpus: 12 13 14 15 16 17 18 19 20 21 22 23\n"
	m := parsed(t, table("CPU Affinity", "0-3", "0-3", "0-3", "0-3")+nodes)
	expect(t, "table", gpuFacts(m), repeat(4, "0-3 node -")...)
	for _, line := range plan(m, exclusive(), "0-3", 0, 1, 2, 3) {
		if !strings.HasSuffix(line, string(placement.Unknown)) {
			t.Errorf("%s: want it unknown", line)
		}
	}
	for gpu, node := range []int{0, 0, 1, 1} {
		m.GPUs[gpu].NUMANode = node
		m.GPUs[gpu].PCI = fmt.Sprintf("0000:%02x:00.0", gpu+1)
	}
	m.Resolve()
	expect(t, "plan with numa_node", plan(m, exclusive(), "0-3", 0, 1, 2, 3),
		"0 mem 0 local", "1 mem 0 local", "2 mem 1 remote", "3 mem 1 remote")

	all := parsed(t, table(twoColumns, slices.Repeat([]string{"112-127,240-255\t6-7"}, 8)...))
	expect(t, "two nodes for all", gpuFacts(all), repeat(8, "112-127,240-255 node -")...)
}

// A virtual machine's table says CPU 0 and nodes 0-3 for each GPU; its NCCL
// topology has the masks.
func TestCaseVirtualMachine(t *testing.T) {
	expect(t, "table", gpuFacts(parsed(t, table(twoColumns, slices.Repeat([]string{"0\t0-3"}, 4)...))), repeat(4, "0 node -")...)
	m := parsed(t, nccl(ncclNode(0, "ffffff", 1), ncclNode(1, "ffff,ff000000", 2), ncclNode(2, "ff,ffff0000,00000000", 3), ncclNode(3, "ffffff00,00000000,00000000", 4)))
	expect(t, "plan", plan(m, placement.Default(), "0-95", 0, 1, 2, 3),
		"0-23 mem 0 local", "24-47 mem 1 local", "48-71 mem 2 local", "72-95 mem 3 local")
}

// Vendors' files had masks that cannot be right: nothing is planned with them.
func TestCaseWrongMasks(t *testing.T) {
	m := parsed(t, nccl(ncclNode(0, "00000000,000fffff", 1), ncclNode(1, "000000ff,fff00000", 5)))
	expect(t, "right masks", plan(m, placement.Default(), "0-39", 0, 1), "0-19 mem 0 local", "20-39 mem 1 local")
	m = parsed(t, nccl(ncclNode(0, "0000ffff,0000ffff", 1), ncclNode(1, "0000ffff,0000ffff", 5)))
	expect(t, "placeholders", plan(m, placement.Default(), "0-39", 0, 1), "0-15,32-39 mem 0 unknown", "0-15,32-39 mem 1 unknown")
	if len(m.Warnings) != 1 {
		t.Errorf("warnings %q", m.Warnings)
	}

	const padded = "00000000,00000000,ffff0000,00000000,00000000,00000000,ffff0000,00000000"
	m = parsed(t, nccl(ncclNode(3, padded, 1), ncclNode(1, strings.ReplaceAll(padded, "00000000,ffff0000", "ffff0000,00000000"), 3),
		ncclNode(7, "fff0000,00000000,00000000,00000000,ffff0000,00000000,00000000,00000000", 2)))
	if gpu := m.GPUs[1]; !gpu.CPUsDoubted || gpu.CPUs.String() != "112-127,240-251" || len(m.Warnings) != 1 {
		t.Errorf("GPU %+v, warnings %q", gpu, m.Warnings)
	}
}

// A task's CPUs are those it was granted, whatever their numbers.
func TestCaseGrantedNumbers(t *testing.T) {
	var values []string
	for range 4 {
		values = append(values, "0-39\t0\t\tN/A")
	}
	m := parsed(t, table(threeColumns, values...))
	expect(t, "holes", plan(m, exclusive(), "4-5,20-21", 0, 1, 2, 3), "4 mem 0 local", "5 mem 0 local", "20 mem 0 local", "21 mem 0 local")

	near, far := "0-47,96-143\t0\t\tN/A", "48-95,144-191\t1\t\tN/A"
	m = parsed(t, table(threeColumns, near, near, near, near, far, far, far, far))
	siblings(m, 96)
	for tenant := range 8 {
		first := tenant * 12
		granted := fmt.Sprintf("%d-%d,%d-%d", first, first+11, first+96, first+107)
		expect(t, "tenant", plan(m, placement.Default(), granted, tenant), fmt.Sprintf("%s mem %d local", granted, tenant/4))
	}
	lines := plan(m, exclusive(), "0-191", 0, 1, 2, 3, 4, 5, 6, 7)
	expect(t, "GPU 0, 4 and 7", []string{lines[0], lines[4], lines[7]},
		"0-11,96-107 mem 0 local", "48-59,144-155 mem 1 local", "84-95,180-191 mem 1 local")
}

// Nodes without CPUs are no place for tasks, and do not count.
func TestCaseNodesWithoutCPUs(t *testing.T) {
	m := parsed(t, table(threeColumns, "0-71\t0\t\t4", "72-143\t1\t\t12", "144-215\t2\t\t20", "216-287\t3\t\t28"))
	expect(t, "four Grace Hoppers", plan(m, exclusive(), "0-287", 0, 1, 2, 3),
		"0-71 mem 0 local", "72-143 mem 1 local", "144-215 mem 2 local", "216-287 mem 3 local")

	m = parsed(t, table(threeColumns, "0-71\t0,2-17\t\tN/A", "0-71\t0,2-17\t\tN/A", "72-143\t1,18-33\t\tN/A", "72-143\t1,18-33\t\tN/A"))
	expect(t, "Grace Blackwell, four workers", plan(m, exclusive(), "0-143", 0, 1, 2, 3),
		"0-35 mem 0 local", "36-71 mem 0 local", "72-107 mem 1 local", "108-143 mem 1 local")
	expect(t, "two workers", plan(m, exclusive(), "0-143", 0, 2), "0-71 mem 0 local", "72-143 mem 1 local")

	m = parsed(t, table(twoColumns, "0-63\t0", "0-63\t0", "64-127\t8", "64-127\t8")+
		"NUMA node0 CPU(s): 0-63\nNUMA node8 CPU(s): 64-127\nNUMA node252 CPU(s):\nNUMA node253 CPU(s):\nNUMA node254 CPU(s):\nNUMA node255 CPU(s):\n")
	expect(t, "Power9", plan(m, placement.Default(), "0-127", 0, 3), "0-63 mem 0 local", "64-127 mem 8 local")
}
