//go:build vm

package vm

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gputune/internal/idset"
)

// values are what the kernel's files read, by file.
type values map[string]string

// nodeValues are those that node settings change, as they are now.
func (m *machine) nodeValues(t *testing.T) values {
	t.Helper()
	return parseValues(t, m.must(t, "node-values"))
}

func parseValues(t *testing.T, text string) values {
	t.Helper()
	v := values{}
	for line := range strings.Lines(text) {
		file, value, found := strings.Cut(line, ":")
		if !found || !strings.HasPrefix(file, "/") {
			t.Fatalf("node-values: %q", line)
		}
		v[file] += value
	}
	return v
}

// differ lists where two sets of values differ.
func (v values) differ(want values) string {
	var lines []string
	for file := range maps.Keys(want) {
		if v[file] != want[file] {
			lines = append(lines, fmt.Sprintf("%s reads %q, want %q", file, v[file], want[file]))
		}
	}
	for file := range maps.Keys(v) {
		if _, known := want[file]; !known {
			lines = append(lines, fmt.Sprintf("%s is new and reads %q", file, v[file]))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// with are the values with some of them others.
func (v values) with(other values) values {
	v = maps.Clone(v)
	maps.Copy(v, other)
	return v
}

// withoutInterrupts are the values but for those of interrupts.
func (v values) withoutInterrupts() values {
	v = maps.Clone(v)
	maps.DeleteFunc(v, func(file, _ string) bool { return strings.HasPrefix(file, "/proc/irq/") })
	return v
}

// Files that node settings change.
const (
	sysVM   = "/proc/sys/vm/"
	sysTHP  = "/sys/kernel/mm/transparent_hugepage/"
	sysCPU  = "/sys/devices/system/cpu/cpu"
	sysNode = "/sys/devices/system/node/node"
)

func hugepagesFile(node int) string {
	return fmt.Sprintf("%s%d/hugepages/hugepages-2048kB/nr_hugepages", sysNode, node)
}

func affinityFile(irq int) string { return fmt.Sprintf("/proc/irq/%d/smp_affinity_list", irq) }

// device is a PCI device with interrupts.
type device struct {
	pci  string
	node int
	name string // of the network interface, "" for a GPU
	// The interrupts by number, with their names as drivers give them: nvme2q0 is a
	// controller's own, nvme2q1 and further ones are its queues', which the kernel
	// manages.
	irqs map[int]string
}

// lookAtDevices prints a line for each GPU and network card: PCI address, node,
// interface or -, and its interrupts as NUMBER=NAME.
const lookAtDevices = `shopt -s nullglob
while read -r number rest; do case $number in [0-9]*:) name[${number%:}]=${rest##* } ;; esac; done </proc/interrupts
cd /sys/bus/pci/devices
while read -r _ pci _; do list+=" $pci/-"; done </run/numavm/gpus
for device in $list */virtio*/net/*; do
	pci=${device%%/*}
	line="$pci $(<$pci/numa_node) ${device##*/}"
	for irq in $pci/msi_irqs/*; do irq=${irq##*/}; line+=" $irq=${name[irq]}"; done
	echo "$line"
done`

// devices are the GPUs and the network cards.
func (m *machine) devices(t *testing.T) []device {
	t.Helper()
	var list []device
	for line := range strings.Lines(m.must(t, lookAtDevices)) {
		f := strings.Fields(line)
		if len(f) < 4 {
			t.Fatalf("devices: %q", line)
		}
		d := device{pci: f[0], name: strings.TrimSuffix(f[2], "-"), irqs: map[int]string{}}
		var err error
		if d.node, err = strconv.Atoi(f[1]); err != nil {
			t.Fatalf("devices: %q: %v", line, err)
		}
		for _, field := range f[3:] {
			number, name, _ := strings.Cut(field, "=")
			irq, err := strconv.Atoi(number)
			if err != nil || name == "" {
				t.Fatalf("devices: %q: %v", line, err)
			}
			d.irqs[irq] = name
		}
		list = append(list, d)
	}
	return list
}

// managed are those of a device's interrupts that the kernel manages: of an NVMe
// controller all but q0.
func (d device) managed() (irqs idset.Set) {
	for irq, name := range d.irqs {
		if strings.HasPrefix(name, "nvme") && !strings.HasSuffix(name, "q0") {
			irqs.Add(irq)
		}
	}
	return irqs
}
