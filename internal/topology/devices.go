package topology

import (
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"

	"gputune/internal/idset"
)

const (
	pciFolder    = "sys/bus/pci/devices/"
	driverFolder = "proc/driver/nvidia/"
	gpuFolder    = driverFolder + "gpus"
)

// NVIDIA's PCI vendor id and the class prefixes (include/linux/pci_ids.h).
const (
	vendorNVIDIA = "0x10de"
	class3D      = "0x0302"
	classVGA     = "0x0300"
	classNetwork = "0x02"
)

// device is what sysfs says about where a PCI function is.
type device struct {
	node    int
	cpus    idset.Set
	bridges []Bridge
}

// devices reads the GPUs and, when asked, the NICs.
//
// Where the driver lists its GPUs, that list is the truth: a GPU that is bound
// to vfio-pci or left out by the driver cannot be given to a task, and counting
// it would shift Index against NVML's. Elsewhere (a copy of sysfs, no driver)
// GPUs are known by vendor and class.
func (r *reader) devices(m *Machine, options Options) {
	m.GPUs, m.NICs = []GPU{}, []NIC{}
	m.Driver = r.driverVersion()
	fromDriver := r.driverGPUs(m)
	if !fromDriver || options.NICs {
		r.scanBus(m, !fromDriver, options.NICs)
	}
	m.SortDevices()
}

// driverGPUs reads the GPUs that the NVIDIA driver lists; it tells whether
// there is such a list.
func (r *reader) driverGPUs(m *Machine) bool {
	names, err := r.Names(gpuFolder)
	if err != nil {
		if !isMissing(err) {
			r.warn(gpuFolder, "%v", err)
		}
		return false
	}
	slices.Sort(names)
	seen := make(map[string]bool)
	for _, name := range names {
		pci, err := NormalizePCI(name)
		if err != nil {
			r.warn(gpuFolder, "%v", err)
			continue
		}
		if seen[pci] {
			r.warn(gpuFolder, "%s is listed twice", pci)
			continue
		}
		seen[pci] = true
		gpu := r.gpu(pci)
		if r.information(&gpu, path.Join(gpuFolder, name, "information")) {
			m.GPUs = append(m.GPUs, gpu)
		}
	}
	return true
}

// information reads what the driver says about a GPU, lines such as
// "Device Minor: \t 0". It returns false for a GPU that the administrator
// told the driver to leave alone (NVreg_ExcludedGpus).
func (r *reader) information(gpu *GPU, path string) bool {
	content, err := r.Read(path)
	if err != nil {
		r.warnError(path, err)
		return true
	}
	for line := range strings.Lines(string(content)) {
		key, value, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "Model":
			if value != "Unknown" {
				gpu.Model = clip(value)
			}
		case "GPU UUID":
			// "GPU-????????-…" until something opens the GPU.
			if !strings.Contains(value, "?") {
				gpu.UUID = clip(value)
			}
		case "Device Minor":
			gpu.Minor = parseMinor(value)
			if gpu.Minor < 0 {
				r.warn(path, "Device Minor %q: want the number of a /dev/nvidiaN", clip(value))
			}
		case "GPU Excluded":
			if value == "Yes" {
				r.warn(path, "the driver is told to leave this GPU alone")
				return false
			}
		}
	}
	return true
}

func parseMinor(text string) int {
	minor, err := strconv.ParseUint(text, 10, 8)
	if err != nil {
		return -1
	}
	return int(minor)
}

func (r *reader) gpu(pci string) GPU {
	d := r.device(pci)
	return GPU{PCI: pci, Minor: -1, NUMANode: d.node, LocalCPUs: d.cpus, Bridges: d.bridges}
}

// scanBus looks at every PCI function. GPUs of other vendors, and NVIDIA's
// audio and USB functions, are none.
func (r *reader) scanBus(m *Machine, gpus, nics bool) {
	names, err := r.Names(strings.TrimSuffix(pciFolder, "/"))
	if err != nil {
		r.warnError(strings.TrimSuffix(pciFolder, "/"), err)
		return
	}
	slices.Sort(names)
	for _, name := range names {
		pci, err := NormalizePCI(name)
		if err != nil || pci != name {
			continue
		}
		class, err := r.text(pciFolder + pci + "/class")
		if err != nil {
			r.warnError(pciFolder+pci+"/class", err)
			continue
		}
		switch {
		case gpus && (strings.HasPrefix(class, class3D) || strings.HasPrefix(class, classVGA)):
			vendor, err := r.text(pciFolder + pci + "/vendor")
			if err != nil {
				r.warnError(pciFolder+pci+"/vendor", err)
			} else if vendor == vendorNVIDIA {
				m.GPUs = append(m.GPUs, r.gpu(pci))
			}
		case nics && strings.HasPrefix(class, classNetwork):
			d := r.device(pci)
			m.NICs = append(m.NICs, NIC{
				PCI: pci, Names: r.nicNames(pci),
				NUMANode: d.node, LocalCPUs: d.cpus, Bridges: d.bridges,
			})
		}
	}
}

// nicNames returns the network interfaces and InfiniBand devices of a PCI
// function. Those of virtio are one folder further down, below virtioN.
func (r *reader) nicNames(pci string) []string {
	folder := pciFolder + pci
	found := append(r.children(folder+"/net"), r.children(folder+"/infiniband")...)
	if len(found) == 0 {
		for _, name := range r.children(folder) {
			if strings.HasPrefix(name, "virtio") {
				found = append(found, r.children(folder+"/"+name+"/net")...)
			}
		}
	}
	slices.Sort(found)
	return found
}

// children lists a folder that need not be there.
func (r *reader) children(path string) []string {
	names, err := r.Names(path)
	if err != nil && !isMissing(err) {
		r.warn(path, "%v", err)
	}
	return names
}

// device reads where a PCI function is, and where the bridges above it are.
func (r *reader) device(pci string) device {
	d := r.place(pci)
	for _, bridge := range r.ancestors(pci) {
		at, ok := r.bridges[bridge]
		if !ok {
			at = r.place(bridge)
			r.bridges[bridge] = at
		}
		d.bridges = append(d.bridges, Bridge{PCI: bridge, NUMANode: at.node, LocalCPUs: at.cpus})
	}
	return d
}

// place reads a function's own numa_node and local_cpulist.
func (r *reader) place(pci string) device {
	d := device{node: -1}
	if node, ok := r.number(pciFolder+pci+"/numa_node", -1, idset.Limit-1); ok {
		d.node = int(node)
	}
	d.cpus, _ = r.set(pciFolder+pci+"/", &r.localCPUs)
	return d
}

// ancestors returns the bridges above a function, nearest first. sysfs states
// them as the path that the function's link leads to:
// ../../../devices/pci0000:40/0000:40:01.1/0000:41:00.0/0000:47:00.0
func (r *reader) ancestors(pci string) []string {
	link := pciFolder + pci
	target, err := r.Link(link)
	if err != nil {
		if !isMissing(err) { // reported with its other files
			r.warn(link, "want a symbolic link into /sys/devices: %v", err)
		}
		return nil
	}
	var bridges []string
	for name := range strings.SplitSeq(target, "/") {
		if address, err := NormalizePCI(name); err == nil && address == name && address != pci {
			bridges = append(bridges, address)
		}
	}
	slices.Reverse(bridges)
	return bridges
}

// driverVersion reads the NVIDIA driver's version, "" without the driver.
func (r *reader) driverVersion() string {
	version, err := readDriverVersion(r.Files)
	if err != nil && !isMissing(err) {
		r.warn(driverFolder+"version", "%v", err)
	}
	return version
}

var errNoVersion = errors.New("want a line with NVRM version")

// readDriverVersion finds the version in a first line such as
// "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (…)".
func readDriverVersion(files Files) (string, error) {
	content, err := files.Read(driverFolder + "version")
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(content), "\n")
	for _, field := range strings.Fields(line) {
		if field[0] >= '0' && field[0] <= '9' && strings.Contains(field, ".") {
			return clip(field), nil
		}
	}
	return "", errNoVersion
}
