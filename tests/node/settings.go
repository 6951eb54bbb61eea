package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gputune/internal/topology"
)

// AddSettings gives the node files of the kernel's for settings of a node, as
// WriteSettings.
func (n *Node) AddSettings() (err error) {
	n.kernel, err = WriteSettings(filepath.Join(n.Dir, "machine"), n.Machine)
	return err
}

// WriteSettings adds to a described machine's folder the kernel's files for
// settings of a node: sysctls, idle states of its CPUs, hugepages of each NUMA
// node, and the interrupts of its GPUs, numbers 30 and up. They are plain files,
// which take what is written to them; what only a kernel makes of that is for tests
// on one. It returns those that settings are in, with their lines.
func WriteSettings(folder string, machine *topology.Machine) (map[string]string, error) {
	files := map[string]string{
		"proc/sys/vm/swappiness": "60", "proc/sys/vm/dirty_ratio": "20", "proc/sys/vm/dirty_bytes": "0",
		"proc/sys/vm/dirty_background_ratio": "10", "proc/sys/vm/dirty_background_bytes": "0", "proc/sys/vm/zone_reclaim_mode": "0",
		"proc/sys/kernel/numa_balancing": "1",
	}
	other := map[string]string{ // what nothing puts back, or nobody changes
		"proc/sys/vm/drop_caches": "0", "sys/devices/system/node/has_memory": "0-1",
		"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never", "sys/kernel/mm/transparent_hugepage/hpage_pmd_size": "2097152",
		"proc/sys/vm/min_free_kbytes": "67584", "proc/zoneinfo": "Node 0, zone   Normal\n        managed  1000000",
	}
	for i, gpu := range machine.GPUs {
		other[fmt.Sprintf("sys/bus/pci/devices/%s/msi_irqs/%d", gpu.PCI, 30+i)] = "msix"
		files[fmt.Sprintf("proc/irq/%d/smp_affinity_list", 30+i)] = "0-1"
	}
	for cpu := range machine.CPUs.All() {
		files[fmt.Sprintf("sys/devices/system/cpu/cpu%d/power/pm_qos_resume_latency_us", cpu)] = "0"
	}
	for _, numa := range machine.Nodes {
		node := fmt.Sprintf("sys/devices/system/node/node%d/", numa.ID)
		other[node+"meminfo"] = fmt.Sprintf("Node %d MemTotal: %d kB\nNode %[1]d MemFree: %[2]d kB\nNode %[1]d Active(file): 0 kB\n"+
			"Node %[1]d Inactive(file): 0 kB\nNode %[1]d SReclaimable: 0 kB", numa.ID, numa.MemoryMiB<<10)
		other[node+"compact"] = ""
		files[node+"hugepages/hugepages-2048kB/nr_hugepages"] = "4"
		other[node+"hugepages/hugepages-2048kB/free_hugepages"] = "1"
	}
	for _, list := range []map[string]string{files, other} {
		for name, line := range list {
			if err := write(folder, name, line); err != nil {
				return nil, err
			}
		}
	}
	return files, nil
}

func write(folder, name, line string) error {
	path := filepath.Join(folder, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(line+"\n"), 0o644)
}

// SetSetting writes a file of the machine's, such as proc/sys/vm/swappiness.
func (n *Node) SetSetting(name, line string) error {
	return write(filepath.Join(n.Dir, "machine"), name, line)
}

// Setting returns the first line of a file of the machine's.
func (n *Node) Setting(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(n.Dir, "machine", name))
	line, _, _ := strings.Cut(string(text), "\n")
	return line, err
}

// Settings returns those files that settings are in, none without AddSettings.
func (n *Node) Settings() (map[string]string, error) {
	now := make(map[string]string, len(n.kernel))
	for name := range n.kernel {
		line, err := n.Setting(name)
		if err != nil {
			return nil, err
		}
		now[name] = line
	}
	return now, nil
}
