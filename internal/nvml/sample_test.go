package nvml

import (
	"encoding/binary"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"gputune/internal/sample"
)

// sampledCard is a card that answers what a test says.
type sampledCard struct {
	samples []nvml.Sample
	fields  map[uint32]uint64
	lost    bool
	poor    bool // supports next to nothing
	calls   map[string]int
}

func (c *sampledCard) answer(call string) nvml.Return {
	c.calls[call]++
	switch {
	case c.lost && call == "temperature":
		return nvml.ERROR_GPU_IS_LOST
	case c.poor && call != "memory":
		return nvml.ERROR_NOT_SUPPORTED
	}
	return nvml.SUCCESS
}

func value(n uint32) (bytes [8]byte) {
	binary.NativeEndian.PutUint32(bytes[:], n)
	return bytes
}

func (c *sampledCard) device() *mock.Device {
	number := func(call string, n uint32) func() (uint32, nvml.Return) {
		return func() (uint32, nvml.Return) { return n, c.answer(call) }
	}
	return &mock.Device{
		GetPciInfoFunc: func() (nvml.PciInfo, nvml.Return) {
			var info nvml.PciInfo
			for i, b := range []byte("00000000:07:00.0") {
				info.BusId[i] = int8(b)
			}
			return info, c.answer("pci")
		},
		GetNameFunc: func() (string, nvml.Return) { return "NVIDIA H200", nvml.SUCCESS },
		GetSamplesFunc: func(kind nvml.SamplingType, since uint64) (nvml.ValueType, []nvml.Sample, nvml.Return) {
			if kind != nvml.GPU_UTILIZATION_SAMPLES {
				return 0, nil, nvml.ERROR_NOT_FOUND
			}
			later := slices.DeleteFunc(slices.Clone(c.samples), func(s nvml.Sample) bool { return s.TimeStamp <= since })
			return nvml.VALUE_TYPE_UNSIGNED_INT, later, c.answer("samples")
		},
		GetUtilizationRatesFunc: func() (nvml.Utilization, nvml.Return) {
			return nvml.Utilization{Gpu: 11, Memory: 12}, c.answer("rates")
		},
		GetMemoryInfo_v2Func: func() (nvml.Memory_v2, nvml.Return) {
			return nvml.Memory_v2{Total: 4 << 20, Used: 3 << 19}, c.answer("memory")
		},
		GetPowerUsageFunc:  number("power", 650500),
		GetTemperatureFunc: func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 61, c.answer("temperature") },
		GetClockInfoFunc: func(kind nvml.ClockType) (uint32, nvml.Return) {
			return map[nvml.ClockType]uint32{nvml.CLOCK_SM: 1755, nvml.CLOCK_MEM: 3201}[kind], c.answer("clock")
		},
		GetCurrentClocksEventReasonsFunc: func() (uint64, nvml.Return) { return 0x24, c.answer("reasons") },
		GetTotalEnergyConsumptionFunc:    func() (uint64, nvml.Return) { return 5500, c.answer("energy") },
		GetFieldValuesFunc: func(values []nvml.FieldValue) nvml.Return {
			for i := range values {
				n, known := c.fields[values[i].FieldId]
				values[i].NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
				if known {
					values[i].NvmlReturn, values[i].ValueType = 0, uint32(nvml.VALUE_TYPE_UNSIGNED_LONG_LONG)
					binary.NativeEndian.PutUint64(values[i].Value[:], n)
				}
			}
			return c.answer("fields")
		},
		GetPcieReplayCounterFunc: func() (int, nvml.Return) { return 4, c.answer("replays") },
		GetTotalEccErrorsFunc: func(kind nvml.MemoryErrorType, _ nvml.EccCounterType) (uint64, nvml.Return) {
			return uint64(kind) + 7, c.answer("ecc")
		},
	}
}

func (c *sampledCard) open(t *testing.T, lacking ...string) sample.Source {
	t.Helper()
	c.calls = map[string]int{}
	device := c.device()
	find := func(name string) (nvml.Device, nvml.Return) {
		if name != oneUUID && name != "0000:07:00.0" {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return device, nvml.SUCCESS
	}
	source, err := (&Library{api: &mock.Interface{
		InitFunc: func() nvml.Return { return nvml.SUCCESS }, ShutdownFunc: func() nvml.Return { return nvml.SUCCESS },
		DeviceGetHandleByUUIDFunc: find, DeviceGetHandleByPciBusIdFunc: find,
		ExtensionsFunc: func() nvml.ExtendedInterface {
			return &mock.ExtendedInterface{LookupSymbolFunc: func(name string) error {
				if slices.Contains(lacking, name) {
					return errors.New("no such symbol")
				}
				return nil
			}}
		},
	}}).Sampler()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := source.Close(); err != nil {
			t.Error(err)
		}
	})
	return source
}

func same(v float64) sample.Range { return sample.Range{Mean: v, Max: v} }

// What each call answers is in its place and in its unit.
func TestSampler(t *testing.T) {
	c := &sampledCard{
		samples: []nvml.Sample{{TimeStamp: 10, SampleValue: value(90)}, {TimeStamp: 20, SampleValue: value(30)}},
		fields: map[uint32]uint64{
			nvml.FI_DEV_PCIE_COUNT_RX_BYTES: 1 << 40, nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN: 1_500_000_000,
			nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL: 2, nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL: 3,
		},
	}
	source := c.open(t)
	r := source.Read(oneUUID, true)
	if want := map[sample.Level]sample.Range{
		// The first look's last sample alone: what is before is not the job's.
		sample.SMPercent: same(30), sample.MemoryPercent: same(12), sample.MemoryMiB: same(1.5), sample.PowerWatts: same(650.5),
		sample.SMClock: same(1755), sample.MemoryClock: same(3201), sample.Temperature: same(61),
	}; !maps.Equal(r.Levels, want) {
		t.Errorf("levels %v, want %v", r.Levels, want)
	}
	if want := map[sample.Counter]float64{
		sample.Energy: 5.5, sample.PCIeReceived: 1 << 40, sample.NVLinkCRCErrors: 5, sample.PCIeReplays: 4, sample.ECCCorrected: 7, sample.ECCUncorrected: 8,
	}; !maps.Equal(r.Counters, want) {
		t.Errorf("counters %v, want %v", r.Counters, want)
	}
	if !slices.Equal(r.Reasons, []string{"sw_power_cap", "sw_thermal_slowdown"}) || !maps.Equal(r.Held, map[string]float64{"hw_thermal_slowdown": 1.5}) {
		t.Errorf("reasons %v, held %v", r.Reasons, r.Held)
	}
	if r.PCI != "0000:07:00.0" || r.Model != "NVIDIA H200" || r.MemoryMiB != 4 || r.Device != oneUUID || r.Error != "" || r.Time.IsZero() {
		t.Errorf("%+v", r)
	}
	c.samples = append(c.samples, nvml.Sample{TimeStamp: 30, SampleValue: value(80)}, nvml.Sample{TimeStamp: 40, SampleValue: value(100)}, nvml.Sample{TimeStamp: 50, SampleValue: value(60)})
	r = source.Read(oneUUID, false)
	if got := r.Levels[sample.SMPercent]; got != (sample.Range{Mean: 80, Max: 100}) {
		t.Errorf("%+v", got)
	}
	if want := map[sample.Counter]float64{sample.Energy: 5.5, sample.PCIeReceived: 1 << 40}; !maps.Equal(r.Counters, want) {
		t.Errorf("counters %v, want %v", r.Counters, want)
	}
	// Without new samples, what the driver says of its last period.
	if got := source.Read(oneUUID, false).Levels[sample.SMPercent]; got != same(11) {
		t.Errorf("%+v", got)
	}
	if by := source.Read("0000:07:00.0", false); by.Error != "" || by.PCI != "0000:07:00.0" {
		t.Errorf("by its address: %+v", by)
	}
}

// What a card or a driver does not have is absent, and is not asked for again.
func TestSamplerLacks(t *testing.T) {
	poor := &sampledCard{poor: true}
	source := poor.open(t)
	for range 3 {
		r := source.Read(oneUUID, true)
		if r.Error != "" || !maps.Equal(r.Levels, map[sample.Level]sample.Range{sample.MemoryMiB: same(1.5)}) || len(r.Counters) > 0 || r.Reasons != nil || r.Held != nil || r.PCI != "" {
			t.Errorf("%+v", r)
		}
	}
	for call, count := range poor.calls {
		if call != "memory" && count > 1 {
			t.Errorf("%s was asked for %d times", call, count)
		}
	}
	old := &sampledCard{}
	r := old.open(t, "nvmlDeviceGetSamples", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetFieldValues",
		"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons").Read(oneUUID, true)
	if r.Levels[sample.SMPercent] != same(11) || r.Reasons != nil || old.calls["samples"]+old.calls["memory"]+old.calls["fields"] > 0 {
		t.Errorf("%+v, %v", r, old.calls)
	}
	if _, has := r.Levels[sample.MemoryMiB]; has {
		t.Errorf("%+v", r.Levels)
	}
}

// A GPU that is gone says so, and is searched anew.
func TestSamplerLost(t *testing.T) {
	c := &sampledCard{lost: true}
	source := c.open(t)
	if r := source.Read(oneUUID, false); !strings.Contains(r.Error, "nvmlDeviceGetTemperature") {
		t.Errorf("%+v", r)
	}
	c.lost = false
	if r := source.Read(oneUUID, false); r.Error != "" || c.calls["pci"] != 2 {
		t.Errorf("%+v, %v", r, c.calls)
	}
	if r := source.Read("GPU-other", false); !strings.Contains(r.Error, "finding it") || !reflect.DeepEqual(r.Levels, map[sample.Level]sample.Range{}) {
		t.Errorf("%+v", r)
	}
}
