//go:build vm

package vm

import (
	"strings"
	"testing"
)

// The settings of a node on this kernel, with what a machine of one NUMA node
// does not have: hugepages of one node, interrupts of devices on their node,
// interrupts that the kernel manages, a cgroup v2 that has a limit of swap.
func testKernel(t *testing.T, m *machine) {
	output := m.must(t, guestTools+"/kernel.test -test.v -test.short")
	for _, name := range []string{
		"TestSetAndPutBack", "TestHugepageReserve", "TestTooManyHugepages", "TestHugepagesInUse", "TestHugepagesOfNode", "TestInterruptsOfNode",
		"TestManagedInterrupts", "TestProfiles", "TestSwapOfCgroup", "TestDropCaches", "TestCompact", "TestMissing",
	} {
		if !strings.Contains(output, "--- PASS: "+name+" ") {
			t.Errorf("%s did not try this kernel:\n%s", name, output)
		}
	}
	// The NVMe controllers that stand for GPUs have a queue for each of some CPUs.
	if !strings.Contains(output, "are the kernel's") || strings.Contains(output, ", 0 are the kernel's") {
		t.Errorf("no managed interrupts:\n%s", output)
	}
}
