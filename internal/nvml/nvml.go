// Package nvml asks NVIDIA's management library what package topology wants to
// know. It links go-nvml, which leaves the library's symbols undefined until
// libnvidia-ml.so.1 is loaded: programs can import it, a shared library that
// is loaded with RTLD_NOW cannot.
package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

// Library is libnvidia-ml.so.1 as a source of topology facts. It is loaded and
// initialised for each question and shut down after it, so that nobody who
// holds a Library keeps a GPU awake.
type Library struct {
	api nvml.Interface
}

var _ topology.NVML = (*Library)(nil)

// New returns the library that the dynamic loader finds. It loads nothing yet.
func New() *Library { return &Library{api: nvml.New()} }

// Facts implements topology.NVML. Where the library is not installed there are
// no facts and no warnings; whatever else goes wrong is a warning, and the
// facts are those that could be had. One GPU takes some 16 ms.
func (l *Library) Facts(cpus, nodes int) topology.NVMLFacts {
	q := question{api: l.api, cpus: max(cpus, 1), nodes: max(nodes, 1)}
	switch ret := l.api.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return q.facts
	default:
		q.warn("initialising", ret)
		return q.facts
	}
	q.ask()
	if ret := l.api.Shutdown(); ret != nvml.SUCCESS {
		q.warn("shutting down", ret)
	}
	return q.facts
}

// question is one call of Facts.
type question struct {
	api         nvml.Interface
	cpus, nodes int
	facts       topology.NVMLFacts
}

func (q *question) warn(doing string, ret nvml.Return) {
	q.facts.Warnings = append(q.facts.Warnings, fmt.Sprintf("NVML: %s: %s", doing, ret.Error()))
}

// has tells whether the library has a function. Drivers before R450 lack
// some, and to call one that is missing ends the process.
func (q *question) has(function string) bool {
	err := q.api.Extensions().LookupSymbol(function)
	return err == nil
}

func (q *question) ask() {
	version, ret := q.api.SystemGetDriverVersion()
	if ret == nvml.SUCCESS {
		q.facts.Driver = version
	} else {
		q.warn("driver version", ret)
	}
	count, ret := q.api.DeviceGetCount()
	if ret != nvml.SUCCESS {
		q.warn("number of GPUs", ret)
		return
	}
	for index := range count {
		device, ret := q.api.DeviceGetHandleByIndex(index)
		if ret != nvml.SUCCESS {
			// A GPU that fell off the bus, or one that a device cgroup hides.
			q.warn(fmt.Sprintf("GPU with NVML index %d", index), ret)
			continue
		}
		q.gpu(index, device)
	}
}

func (q *question) gpu(index int, device nvml.Device) {
	info, ret := device.GetPciInfo()
	if ret != nvml.SUCCESS {
		q.warn(fmt.Sprintf("PCI address of the GPU with NVML index %d", index), ret)
		return
	}
	gpu := topology.NVMLGPU{PCI: text(info.BusId[:]), Minor: -1}
	of := " of GPU " + gpu.PCI
	if gpu.UUID, ret = device.GetUUID(); ret != nvml.SUCCESS {
		q.warn("UUID"+of, ret)
	}
	if gpu.Model, ret = device.GetName(); ret != nvml.SUCCESS {
		q.warn("name"+of, ret)
	}
	if minor, ret := device.GetMinorNumber(); ret == nvml.SUCCESS {
		gpu.Minor = minor
	} else {
		q.warn("minor number"+of, ret)
	}
	if q.has("nvmlDeviceGetMemoryAffinity") {
		if mask, ret := device.GetMemoryAffinity(q.nodes, nvml.AFFINITY_SCOPE_NODE); ret == nvml.SUCCESS {
			gpu.Memory = set(mask)
		} else {
			q.warn("memory affinity"+of, ret)
		}
	}
	if mask, ret := device.GetCpuAffinity(q.cpus); ret == nvml.SUCCESS {
		gpu.CPUs = set(mask)
	} else {
		q.warn("CPU affinity"+of, ret)
	}
	gpu.MIG = q.mig(of, device)
	q.facts.GPUs = append(q.facts.GPUs, gpu)
}

// mig returns the UUIDs of a GPU's MIG devices, nil for a GPU that is not
// split.
func (q *question) mig(of string, device nvml.Device) []string {
	if !q.has("nvmlDeviceGetMigMode") || !q.has("nvmlDeviceGetMaxMigDeviceCount") || !q.has("nvmlDeviceGetMigDeviceHandleByIndex") {
		return nil
	}
	mode, _, ret := device.GetMigMode()
	if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.SUCCESS && mode != nvml.DEVICE_MIG_ENABLE {
		return nil
	}
	if ret != nvml.SUCCESS {
		q.warn("MIG mode"+of, ret)
		return nil
	}
	count, ret := device.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		q.warn("number of MIG devices"+of, ret)
		return nil
	}
	var uuids []string
	for index := range count {
		part, ret := device.GetMigDeviceHandleByIndex(index)
		if ret == nvml.ERROR_NOT_FOUND { // places for MIG devices need not be taken in order
			continue
		}
		if ret != nvml.SUCCESS {
			q.warn(fmt.Sprintf("MIG device %d%s", index, of), ret)
			continue
		}
		uuid, ret := part.GetUUID()
		if ret != nvml.SUCCESS {
			q.warn(fmt.Sprintf("UUID of MIG device %d%s", index, of), ret)
			continue
		}
		uuids = append(uuids, uuid)
	}
	return uuids
}

// set turns NVML's mask of unsigned longs, least significant first, into a set.
func set(mask []uint) idset.Set {
	words := make([]uint64, len(mask))
	for i, word := range mask {
		words[i] = uint64(word)
	}
	return idset.FromWords(words)
}

// text turns a C string into a Go string.
func text(chars []int8) string {
	var b []byte
	for _, c := range chars {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	return string(b)
}
