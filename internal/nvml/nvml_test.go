package nvml

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

// fakeGPU is one GPU as a machine with two H200 describes it: a virtual
// machine with one NUMA node and 32 CPUs.
type fakeGPU struct {
	pci, uuid string
	minor     int
	mig       []string // nil: MIG mode off; "": a place that is not taken

	memory, cpus, pciInfo, migMode, migPart, handle nvml.Return // what these calls answer
}

func (f fakeGPU) device() *mock.Device {
	return &mock.Device{
		GetPciInfoFunc: func() (nvml.PciInfo, nvml.Return) {
			var info nvml.PciInfo
			for i, c := range []byte(f.pci) {
				info.BusId[i] = int8(c)
			}
			return info, f.pciInfo
		},
		GetUUIDFunc:        func() (string, nvml.Return) { return f.uuid, nvml.SUCCESS },
		GetNameFunc:        func() (string, nvml.Return) { return "NVIDIA H200", nvml.SUCCESS },
		GetMinorNumberFunc: func() (int, nvml.Return) { return f.minor, nvml.SUCCESS },
		GetMemoryAffinityFunc: func(nodes int, scope nvml.AffinityScope) ([]uint, nvml.Return) {
			if nodes != 1 || scope != nvml.AFFINITY_SCOPE_NODE {
				return nil, nvml.ERROR_INVALID_ARGUMENT
			}
			return []uint{0x1}, f.memory
		},
		GetCpuAffinityFunc: func(cpus int) ([]uint, nvml.Return) {
			if cpus != 32 {
				return nil, nvml.ERROR_INVALID_ARGUMENT
			}
			return []uint{0xffffffff, 0, 0, 0}, f.cpus
		},
		GetMigModeFunc: func() (int, int, nvml.Return) {
			if f.mig == nil {
				return nvml.DEVICE_MIG_DISABLE, nvml.DEVICE_MIG_DISABLE, f.migMode
			}
			return nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE, f.migMode
		},
		GetMaxMigDeviceCountFunc: func() (int, nvml.Return) { return len(f.mig), nvml.SUCCESS },
		GetMigDeviceHandleByIndexFunc: func(index int) (nvml.Device, nvml.Return) {
			if f.mig[index] == "" {
				return nil, nvml.ERROR_NOT_FOUND
			}
			return &mock.Device{GetUUIDFunc: func() (string, nvml.Return) { return f.mig[index], f.migPart }}, nvml.SUCCESS
		},
	}
}

// library returns a library that knows the GPUs and lacks some functions.
func library(gpus []fakeGPU, lacking ...string) *mock.Interface {
	return &mock.Interface{
		InitFunc:                   func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:               func() nvml.Return { return nvml.SUCCESS },
		SystemGetDriverVersionFunc: func() (string, nvml.Return) { return "580.159.04", nvml.SUCCESS },
		DeviceGetCountFunc:         func() (int, nvml.Return) { return len(gpus), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(index int) (nvml.Device, nvml.Return) {
			return gpus[index].device(), gpus[index].handle
		},
		ExtensionsFunc: func() nvml.ExtendedInterface {
			return &mock.ExtendedInterface{LookupSymbolFunc: func(name string) error {
				if slices.Contains(lacking, name) {
					return errors.New("undefined symbol: " + name)
				}
				return nil
			}}
		},
	}
}

const (
	uuid0 = "GPU-4b0480b4-0000-0000-0000-000000000000"
	uuid1 = "GPU-585ef628-0000-0000-0000-000000000001"
)

func twoH200() []fakeGPU {
	return []fakeGPU{
		{pci: "00000000:00:06.0", uuid: uuid0, minor: 0},
		{pci: "00000000:00:07.0", uuid: uuid1, minor: 1},
	}
}

func TestFacts(t *testing.T) {
	api := library(twoH200())
	facts := (&Library{api: api}).Facts(32, 1)
	if len(facts.Warnings) != 0 {
		t.Errorf("warnings %q", facts.Warnings)
	}
	if facts.Driver != "580.159.04" {
		t.Errorf("driver %q", facts.Driver)
	}
	if len(facts.GPUs) != 2 {
		t.Fatalf("%d GPUs, want 2", len(facts.GPUs))
	}
	for i, want := range twoH200() {
		got := facts.GPUs[i]
		if got.PCI != want.pci || got.UUID != want.uuid || got.Minor != want.minor || got.Model != "NVIDIA H200" ||
			!got.Memory.Equal(idset.Of(0)) || !got.CPUs.Equal(idset.Range(0, 31)) || got.MIG != nil {
			t.Errorf("GPU %d: %+v", i, got)
		}
	}
	if n := len(api.ShutdownCalls()); n != 1 {
		t.Errorf("shut down %d times, want once", n)
	}
}

func TestFactsWithoutLibraryOrDriver(t *testing.T) {
	for _, test := range []struct {
		name     string
		answer   nvml.Return
		warnings int
	}{
		{"not installed", nvml.ERROR_LIBRARY_NOT_FOUND, 0},
		{"driver not loaded", nvml.ERROR_DRIVER_NOT_LOADED, 1},
		{"versions differ", nvml.ERROR_LIB_RM_VERSION_MISMATCH, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			api := library(nil)
			api.InitFunc = func() nvml.Return { return test.answer }
			facts := (&Library{api: api}).Facts(32, 1)
			if len(facts.GPUs) != 0 || len(facts.Warnings) != test.warnings {
				t.Errorf("%+v, want no GPU and %d warnings", facts, test.warnings)
			}
			if len(api.ShutdownCalls()) != 0 {
				t.Error("shut down without having been initialised")
			}
		})
	}
}

func TestFactsThatAreRefused(t *testing.T) {
	with := func(change func(*fakeGPU)) []fakeGPU {
		gpus := twoH200()
		change(&gpus[0])
		return gpus
	}
	for _, test := range []struct {
		name    string
		gpus    []fakeGPU
		lacking []string
		left    int // GPUs there are facts about
		warning string
		check   func(topology.NVMLGPU) bool // of the first GPU
	}{
		{
			name: "lost", gpus: with(func(g *fakeGPU) { g.handle = nvml.ERROR_GPU_IS_LOST }), left: 1,
			warning: "NVML: GPU with NVML index 0: ERROR_GPU_IS_LOST",
			check:   func(g topology.NVMLGPU) bool { return g.UUID == uuid1 },
		},
		{
			name: "no address", gpus: with(func(g *fakeGPU) { g.pciInfo = nvml.ERROR_UNKNOWN }), left: 1,
			warning: "NVML: PCI address of the GPU with NVML index 0: ERROR_UNKNOWN",
			check:   func(g topology.NVMLGPU) bool { return g.UUID == uuid1 },
		},
		{
			name: "no memory affinity", gpus: with(func(g *fakeGPU) { g.memory = nvml.ERROR_NOT_SUPPORTED }), left: 2,
			warning: "NVML: memory affinity of GPU 00000000:00:06.0: ERROR_NOT_SUPPORTED",
			check:   func(g topology.NVMLGPU) bool { return g.Memory.Empty() && g.CPUs.Len() == 32 },
		},
		{
			name: "no CPU affinity", gpus: with(func(g *fakeGPU) { g.cpus = nvml.ERROR_NOT_SUPPORTED }), left: 2,
			warning: "NVML: CPU affinity of GPU 00000000:00:06.0: ERROR_NOT_SUPPORTED",
			check:   func(g topology.NVMLGPU) bool { return g.Memory.Len() == 1 && g.CPUs.Empty() },
		},
		{
			name: "driver older than the functions", gpus: twoH200(), left: 2,
			lacking: []string{"nvmlDeviceGetMemoryAffinity", "nvmlDeviceGetMigMode"},
			check:   func(g topology.NVMLGPU) bool { return g.Memory.Empty() && g.CPUs.Len() == 32 },
		},
		{
			name: "GPU without MIG", gpus: with(func(g *fakeGPU) { g.migMode = nvml.ERROR_NOT_SUPPORTED }), left: 2,
			check: func(g topology.NVMLGPU) bool { return g.MIG == nil },
		},
		{
			name: "MIG mode unreadable", gpus: with(func(g *fakeGPU) { g.migMode = nvml.ERROR_GPU_IS_LOST }), left: 2,
			warning: "NVML: MIG mode of GPU 00000000:00:06.0: ERROR_GPU_IS_LOST",
			check:   func(g topology.NVMLGPU) bool { return g.MIG == nil },
		},
		{
			name: "MIG devices with a gap", gpus: with(func(g *fakeGPU) { g.mig = []string{"MIG-a", "", "MIG-b", ""} }), left: 2,
			check: func(g topology.NVMLGPU) bool { return slices.Equal(g.MIG, []string{"MIG-a", "MIG-b"}) },
		},
		{
			name: "MIG device without UUID", left: 2,
			gpus:    with(func(g *fakeGPU) { g.mig = []string{"MIG-a"}; g.migPart = nvml.ERROR_NO_PERMISSION }),
			warning: "NVML: UUID of MIG device 0 of GPU 00000000:00:06.0: ERROR_NO_PERMISSION",
			check:   func(g topology.NVMLGPU) bool { return len(g.MIG) == 0 },
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			facts := (&Library{api: library(test.gpus, test.lacking...)}).Facts(32, 1)
			if len(facts.GPUs) != test.left || !test.check(facts.GPUs[0]) {
				t.Errorf("%+v", facts.GPUs)
			}
			if got := strings.Join(facts.Warnings, "\n"); got != test.warning {
				t.Errorf("warnings %q, want %q", got, test.warning)
			}
		})
	}
}

// TestMachineOfFacts follows the facts into the machine: the kernel says -1,
// NVML knows.
func TestMachineOfFacts(t *testing.T) {
	m := &topology.Machine{
		CPUs:  idset.Range(0, 31),
		Nodes: []topology.Node{{ID: 0, CPUs: idset.Range(0, 31)}},
		GPUs: []topology.GPU{
			{Index: 0, PCI: "0000:00:06.0", Minor: -1, NUMANode: -1, LocalCPUs: idset.Range(0, 31)},
			{Index: 1, PCI: "0000:00:07.0", Minor: -1, NUMANode: -1, LocalCPUs: idset.Range(0, 31)},
		},
	}
	gpus := twoH200()
	slices.Reverse(gpus) // NVML's order is of no consequence
	m.AddNVML(&Library{api: library(gpus)})
	for i, want := range []string{uuid0, uuid1} {
		gpu := m.GPUs[i]
		if gpu.UUID != want || gpu.Minor != i || !gpu.Nodes.Equal(idset.Of(0)) || gpu.NodesFrom != topology.FromNVMLMemory {
			t.Errorf("GPU %d: %+v", i, gpu)
		}
	}
	if len(m.Warnings) != 0 || m.Driver != "580.159.04" {
		t.Errorf("driver %q, warnings %q", m.Driver, m.Warnings)
	}
}

// TestRealLibrary asks the real library where there is one.
func TestRealLibrary(t *testing.T) {
	facts := New().Facts(8192, 1024)
	if facts.Driver == "" {
		t.Skipf("no NVIDIA driver: %q", facts.Warnings)
	}
	if len(facts.Warnings) != 0 {
		t.Errorf("warnings %q", facts.Warnings)
	}
	m, err := topology.Read("/", topology.Options{NICs: true})
	if err != nil {
		t.Fatal(err)
	}
	m.AddNVML(New())
	if len(m.GPUs) != len(facts.GPUs) {
		t.Errorf("%d GPUs in sysfs, %d in NVML", len(m.GPUs), len(facts.GPUs))
	}
	for _, gpu := range m.GPUs {
		t.Logf("%+v", gpu)
		if gpu.UUID == "" || gpu.Minor < 0 || gpu.Nodes.Empty() || gpu.CPUs.Empty() {
			t.Errorf("GPU %s is not known well enough", gpu.PCI)
		}
	}
	for _, text := range m.Warnings {
		t.Log("warning:", text)
	}
}
