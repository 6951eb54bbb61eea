package machines

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gputune/internal/idset"
)

// BootID is the boot id of every rendered machine.
const BootID = "7b1e4c1e-5a0f-4d6c-9a53-2f1d8f0c6e11"

// Render writes the machine's /sys and /proc into the folder dir, which is
// made if need be and then stands for "/". Files have the names, the values
// and the links that Linux 6.8 gives them; what topology does not depend on is
// left out.
func (d Description) Render(dir string) error {
	r := &renderer{Description: d, dir: dir, folders: make(map[string]bool), drawn: make(map[string]bool)}
	for _, p := range d.Packages {
		r.present = r.present.Or(idset.MustParse(p.CPUs))
	}
	r.online = r.present.AndNot(idset.MustParse(d.Offline))
	r.cpus()
	r.nodes()
	r.devices()
	r.driver()
	r.file("proc/sys/kernel/random/boot_id", BootID)
	if r.err != nil {
		return fmt.Errorf("rendering machine %s: %w", d.Name, r.err)
	}
	return nil
}

// renderer keeps the first error and does nothing after it.
type renderer struct {
	Description
	dir             string
	present, online idset.Set
	folders         map[string]bool // made already
	drawn           map[string]bool // PCI functions, by address
	err             error
}

// file writes a value and a newline, as nearly every kernel file ends in one.
func (r *renderer) file(path, value string) {
	r.folder(filepath.Dir(path))
	if r.err == nil {
		r.err = os.WriteFile(filepath.Join(r.dir, path), []byte(value+"\n"), 0o644)
	}
}

func (r *renderer) folder(path string) {
	if r.err != nil || r.folders[path] {
		return
	}
	r.folders[path] = true
	r.err = os.MkdirAll(filepath.Join(r.dir, path), 0o755)
}

func (r *renderer) link(path, target string) {
	r.folder(filepath.Dir(path))
	if r.err == nil {
		r.err = os.Symlink(target, filepath.Join(r.dir, path))
	}
}

// both writes a set as a list and as a mask.
func (r *renderer) both(listPath, maskPath string, set idset.Set) {
	r.file(listPath, set.String())
	r.file(maskPath, r.mask(set))
}

// mask writes a set of CPUs as lib/vsprintf.c's %*pb does.
func (r *renderer) mask(set idset.Set) string {
	width := r.present.Max() + 1
	var b strings.Builder
	for word := (width - 1) / 32; word >= 0; word-- {
		var bits uint32
		for bit := range 32 {
			if set.Has(word*32 + bit) {
				bits |= 1 << bit
			}
		}
		digits := (min(width-word*32, 32) + 3) / 4
		fmt.Fprintf(&b, "%0*x", digits, bits)
		if word > 0 {
			b.WriteByte(',')
		}
	}
	return b.String()
}

// core returns all present threads of the core that a CPU belongs to.
func (r *renderer) core(cpu int) idset.Set {
	threads := max(r.Threads, 1)
	first := cpu
	if r.SiblingStep == 1 {
		first -= cpu % threads
	} else if threads > 1 {
		first %= r.SiblingStep
	}
	var set idset.Set
	for t := range threads {
		set.Add(first + t*r.SiblingStep)
	}
	return set
}

func (r *renderer) cpus() {
	const folder = "sys/devices/system/cpu/"
	r.file(folder+"online", r.online.String())
	r.file(folder+"present", r.present.String())
	r.file(folder+"possible", r.present.String())
	r.file(folder+"offline", r.present.AndNot(r.online).String())
	for _, p := range r.Packages {
		cpus := idset.MustParse(p.CPUs)
		var cores []idset.Set
		for cpu := range cpus.All() {
			if core := r.core(cpu); core.Min() == cpu {
				cores = append(cores, core)
			}
		}
		for id, core := range cores {
			l3 := core
			if r.L3Cores > 0 {
				first := id / r.L3Cores * r.L3Cores
				for _, other := range cores[first:min(first+r.L3Cores, len(cores))] {
					l3 = l3.Or(other)
				}
			}
			for cpu := range core.All() {
				r.cpu(cpu, id, p.ID, core.And(r.online), l3.And(r.online), cpus.And(r.online))
			}
		}
	}
}

// cpu writes one CPU's folder. The kernel removes most of an offline one's.
func (r *renderer) cpu(cpu, coreID, packageID int, core, l3, pkg idset.Set) {
	folder := fmt.Sprintf("sys/devices/system/cpu/cpu%d/", cpu)
	if !r.online.Has(cpu) {
		r.file(folder+"online", "0")
		return
	}
	if cpu > 0 {
		r.file(folder+"online", "1")
	}
	topology := folder + "topology/"
	r.file(topology+"core_id", strconv.Itoa(coreID))
	r.file(topology+"physical_package_id", strconv.Itoa(packageID))
	r.both(topology+"core_cpus_list", topology+"core_cpus", core)
	r.both(topology+"thread_siblings_list", topology+"thread_siblings", core)
	r.both(topology+"package_cpus_list", topology+"package_cpus", pkg)
	r.both(topology+"core_siblings_list", topology+"core_siblings", pkg)
	for i, cache := range []struct {
		level, kind, size string
		cpus              idset.Set
	}{
		{"1", "Data", "32K", core}, {"1", "Instruction", "32K", core}, {"2", "Unified", "1024K", core}, {"3", "Unified", "32768K", l3},
	} {
		if cache.level == "3" && r.L3Cores == 0 {
			continue
		}
		index := fmt.Sprintf("%scache/index%d/", folder, i)
		r.file(index+"level", cache.level)
		r.file(index+"type", cache.kind)
		r.file(index+"size", cache.size)
		r.both(index+"shared_cpu_list", index+"shared_cpu_map", cache.cpus)
	}
}

func (r *renderer) nodes() {
	const folder = "sys/devices/system/node/"
	var all, withCPU, withMemory idset.Set
	for _, node := range r.Nodes {
		all.Add(node.ID)
		if node.CPUs != "" {
			withCPU.Add(node.ID)
		}
		if node.MemoryMiB > 0 {
			withMemory.Add(node.ID)
		}
	}
	r.file(folder+"online", all.String())
	r.file(folder+"possible", all.String())
	r.file(folder+"has_cpu", withCPU.String())
	r.file(folder+"has_memory", withMemory.String())
	for _, node := range r.Nodes {
		at := fmt.Sprintf("%snode%d/", folder, node.ID)
		cpus := idset.MustParse(node.CPUs)
		r.both(at+"cpulist", at+"cpumap", cpus)
		r.file(at+"meminfo", fmt.Sprintf("Node %[1]d MemTotal:       %8[2]d kB\nNode %[1]d MemFree:        %8[2]d kB", node.ID, node.MemoryMiB*1024))
		var distances []string
		for _, to := range r.Nodes {
			distance := 10
			if r.Distances != nil {
				distance = r.Distances(node.ID, to.ID)
			}
			distances = append(distances, strconv.Itoa(distance))
		}
		r.file(at+"distance", strings.Join(distances, " "))
		for cpu := range cpus.All() {
			r.link(fmt.Sprintf("%scpu%d", at, cpu), fmt.Sprintf("../../cpu/cpu%d", cpu))
			r.link(fmt.Sprintf("sys/devices/system/cpu/cpu%d/node%d", cpu, node.ID), fmt.Sprintf("../../node/node%d", node.ID))
		}
	}
}

// function is one PCI function to draw.
type function struct {
	pci, vendor, device, class string
	bridges                    []string
	bridgeNodes                []int
	node                       int
}

func (r *renderer) devices() {
	r.folder("sys/bus/pci/devices")
	for _, gpu := range r.GPUs {
		class := "0x030200"
		if strings.Contains(gpu.Model, "GeForce") {
			class = "0x030000"
		}
		r.function(function{gpu.PCI, "0x10de", "0x2330", class, gpu.Bridges, gpu.BridgeNodes, gpu.Node})
	}
	for i, nic := range r.NICs {
		f := function{nic.PCI, "0x15b3", "0x1021", "0x020000", nic.Bridges, nil, nic.Node}
		switch {
		case r.Virtual:
			f.vendor, f.device = "0x1af4", "0x1041"
		case len(nic.Interfaces) > 0 && strings.HasPrefix(nic.Interfaces[0], "ib"):
			f.class = "0x020700"
		}
		at := r.function(f)
		if r.Virtual {
			at = fmt.Sprintf("%s/virtio%d", at, i)
		}
		for _, name := range nic.Interfaces {
			r.class("net", name, at, "operstate", "up")
		}
		for _, name := range nic.InfiniBand {
			r.class("infiniband", name, at, "node_type", "1: CA")
		}
	}
	for i := range r.Others {
		r.function(function{pci(0, 0x80+i/32, i%32, 0), "0x1022", "0x14a4", "0x088000", nil, nil, 0})
	}
}

// class writes a device of a class, its link to the device that it belongs to
// and its link in /sys/class.
func (r *renderer) class(class, name, at, file, value string) {
	folder := at + "/" + class + "/" + name
	r.file(folder+"/"+file, value)
	r.link(folder+"/device", "../../../"+filepath.Base(at))
	r.link("sys/class/"+class+"/"+name, "../../"+strings.TrimPrefix(folder, "sys/"))
}

// function writes a PCI function, the bridges above it and their links in
// /sys/bus/pci, and returns its folder.
func (r *renderer) function(f function) string {
	at := "sys/devices"
	domain := ""
	for i, address := range append(slices.Clone(f.bridges), f.pci) {
		// A host bridge opens each new domain.
		bus := address[:strings.LastIndexByte(address, ':')]
		if d, _, _ := strings.Cut(address, ":"); d != domain {
			at += "/pci" + bus
			domain = d
		}
		at += "/" + address
		if r.drawn[address] {
			continue
		}
		r.drawn[address] = true
		node, vendor, device, class := f.node, f.vendor, f.device, f.class
		if i < len(f.bridges) {
			vendor, device, class = "0x1022", "0x14a5", "0x060400"
			if i < len(f.bridgeNodes) {
				node = f.bridgeNodes[i]
			}
		}
		r.file(at+"/vendor", vendor)
		r.file(at+"/device", device)
		r.file(at+"/class", class)
		r.file(at+"/numa_node", strconv.Itoa(node))
		r.both(at+"/local_cpulist", at+"/local_cpus", r.near(node))
		r.link("sys/bus/pci/devices/"+address, "../../../"+strings.TrimPrefix(at, "sys/"))
	}
	return at
}

// near returns what local_cpulist says for a device at a node: every online
// CPU where there is none (drivers/pci/pci-sysfs.c).
func (r *renderer) near(node int) idset.Set {
	for _, n := range r.Nodes {
		if n.ID == node {
			return idset.MustParse(n.CPUs)
		}
	}
	return r.online
}

func (r *renderer) driver() {
	if r.Driver == "" {
		return
	}
	r.file("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "+r.Driver+
		"  Release Build  (dvs-builder@U22)\nGCC version:  gcc version 13.3.0")
	r.folder("proc/driver/nvidia/gpus")
	for _, gpu := range r.GPUs {
		if gpu.Unlisted {
			continue
		}
		r.file("proc/driver/nvidia/gpus/"+gpu.PCI+"/information", strings.Join([]string{
			"Model: \t\t " + gpu.Model,
			"IRQ:   \t\t 0",
			"GPU UUID: \t " + UUID(gpu.PCI),
			"Video BIOS: \t 96.00.a0.00.03",
			"Bus Type: \t PCIe",
			"DMA Size: \t 52 bits",
			"DMA Mask: \t 0xfffffffffffff",
			"Bus Location: \t " + gpu.PCI,
			fmt.Sprintf("Device Minor: \t %d", gpu.Minor),
			"GPU Firmware: \t " + r.Driver,
			"GPU Excluded:\t No",
		}, "\n"))
	}
}
