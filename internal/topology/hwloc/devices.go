package hwloc

import (
	"regexp"
	"slices"
	"strings"

	"gputune/internal/topology"
	"gputune/internal/topology/xmltree"
)

// bridge reads a bridge. Host bridges have no address.
func (r *reader) bridge(e *xmltree.Element, at place) (place, error) {
	text, ok := e.Attribute("pci_busid")
	if !ok {
		return at, nil
	}
	pci, err := topology.NormalizePCI(text)
	if err != nil {
		return at, e.Errorf("pci_busid: %w", err)
	}
	bridge := topology.Bridge{PCI: pci, NUMANode: -1, LocalCPUs: at.cpus}
	return place{at.cpus, append([]topology.Bridge{bridge}, at.bridges...)}, nil
}

// pciType matches "0302 [10de:1db8] [10de:131d] a1 00": class, vendor and
// device, and more of which the versions of hwloc write more or less.
var pciType = regexp.MustCompile(`^([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\]`)

const (
	vendorNVIDIA = "10de"
	vendorAMD    = "1002"
)

// pci reads a PCI device. Its locality is that of the object above its bridges.
func (r *reader) pci(e *xmltree.Element, at place) (place, error) {
	pci, err := topology.NormalizePCI(e.Get("pci_busid"))
	if err != nil {
		return at, e.Errorf("pci_busid: %w", err)
	}
	if line, ok := r.seen[pci]; ok {
		return at, e.Errorf("%s is in line %d already", pci, line)
	}
	r.seen[pci] = e.Line
	found := pciType.FindStringSubmatch(e.Get("pci_type"))
	if found == nil {
		return at, e.Errorf("pci_type %q: want class and ids such as 0302 [10de:20b2]", clip(e.Get("pci_type")))
	}
	class, vendor := found[1], found[2]
	bridges := slices.Clone(at.bridges)
	switch {
	case strings.HasPrefix(class, "03") && (vendor == vendorNVIDIA || vendor == vendorAMD), class == "1200" && vendor == vendorAMD:
		gpu := topology.GPU{PCI: pci, Minor: -1, NUMANode: -1, LocalCPUs: at.cpus, Bridges: bridges}
		for _, child := range e.Children {
			describe(&gpu, child)
		}
		r.m.GPUs = append(r.m.GPUs, gpu)
	case strings.HasPrefix(class, "02"):
		r.m.NICs = append(r.m.NICs, topology.NIC{
			PCI: pci, Names: deviceNames(e), NUMANode: -1, LocalCPUs: at.cpus, Bridges: bridges,
		})
	}
	return at, nil
}

// describe takes the UUID and the model from what hwloc got from NVML, ROCm SMI
// or CUDA.
func describe(gpu *topology.GPU, device *xmltree.Element) {
	for _, info := range device.Children {
		switch value := info.Get("value"); info.Get("name") {
		case "NVIDIAUUID":
			gpu.UUID = clip(value)
		case "GPUModel":
			gpu.Model = clip(value)
		}
	}
}

// deviceNames returns the network interfaces and InfiniBand devices of a PCI
// device. Each version of hwloc numbers the kinds of such devices in its own
// way; below a network controller they are all of these two.
func deviceNames(e *xmltree.Element) []string {
	var names []string
	for _, child := range e.Children {
		if name := child.Get("name"); child.Name == "object" && child.Get("type") == "OSDev" && name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
