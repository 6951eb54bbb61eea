package nvml

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gputune/internal/sample"
	"gputune/internal/topology"
)

// Sampler opens the library to look at GPUs again and again. It stays open until
// the result is closed.
func (l *Library) Sampler() (sample.Source, error) {
	if ret := l.api.Init(); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("NVML: initialising: %w", failure(ret))
	}
	return &sampler{session: &session{api: l.api}, now: time.Now, devices: map[string]*sampled{}}, nil
}

// sampler implements sample.Source.
type sampler struct {
	*session
	now     func() time.Time
	devices map[string]*sampled
}

// sampled is one device that was looked at before.
type sampled struct {
	handle nvml.Device
	pci    string
	model  string
	lacks  map[string]bool // calls that it does not support: they are not made again
	seen   map[nvml.SamplingType]uint64
}

// look is one look at a device.
type look struct {
	*sampler
	*sampled
	sample.Reading
}

// Read implements sample.Source. Most calls take well below a millisecond; those
// for which NVML itself waits, such as nvmlDeviceGetPcieThroughput (20 ms), are not
// made.
func (s *sampler) Read(name string, all bool) sample.Reading {
	l := look{sampler: s, Reading: sample.Reading{
		Device: name, Time: s.now().UTC(), Levels: map[sample.Level]sample.Range{}, Counters: map[sample.Counter]float64{},
	}}
	var ret nvml.Return
	if l.sampled, ret = s.find(name); ret != nvml.SUCCESS {
		l.Error = fmt.Sprintf("finding it: %v", failure(ret))
		return l.Reading
	}
	l.PCI, l.Model = l.pci, l.model
	l.levels()
	l.reasons()
	l.energy()
	l.fields(all)
	if all {
		l.errors()
	}
	if l.Error != "" {
		delete(s.devices, name) // it may come back with another handle
	}
	return l.Reading
}

// find returns a device by UUID, that of a MIG device included, or PCI address.
func (s *sampler) find(name string) (*sampled, nvml.Return) {
	if d := s.devices[name]; d != nil {
		return d, nvml.SUCCESS
	}
	find := s.api.DeviceGetHandleByUUID
	if !strings.HasPrefix(name, "GPU-") && !strings.HasPrefix(name, "MIG-") {
		find = s.api.DeviceGetHandleByPciBusId
	}
	handle, ret := find(name)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	d := &sampled{handle: handle, lacks: map[string]bool{}, seen: map[nvml.SamplingType]uint64{}}
	if info, ret := handle.GetPciInfo(); ret == nvml.SUCCESS { // a MIG device has none
		if pci, err := topology.NormalizePCI(text(info.BusId[:])); err == nil {
			d.pci = pci
		}
	}
	if model, ret := handle.GetName(); ret == nvml.SUCCESS {
		d.model = model
	}
	s.devices[name] = d
	return d, nvml.SUCCESS
}

// can makes a call that the library and the device may lack, and tells whether it
// has answered.
func (l *look) can(function string, call func() nvml.Return) bool {
	if l.Error != "" || l.lacks[function] {
		return false
	}
	if !l.has(function) {
		l.lacks[function] = true
		return false
	}
	switch ret := call(); ret {
	case nvml.SUCCESS:
		return true
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NO_PERMISSION:
		l.lacks[function] = true
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_GPU_NOT_FOUND, nvml.ERROR_RESET_REQUIRED, nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED:
		l.Error = fmt.Sprintf("%s: %v", function, failure(ret))
	default: // nothing at the moment
	}
	return false
}

func (l *look) level(level sample.Level, value float64) {
	l.Levels[level] = sample.Range{Mean: value, Max: value}
}

func (l *look) levels() {
	l.use()
	var ret nvml.Return
	var memory nvml.Memory_v2
	var old nvml.Memory // its used has what the driver keeps for itself
	switch {
	case l.can("nvmlDeviceGetMemoryInfo_v2", func() nvml.Return { memory, ret = l.handle.GetMemoryInfo_v2(); return ret }):
		l.level(sample.MemoryMiB, mib(memory.Used))
		l.MemoryMiB = mib(memory.Total)
	case l.can("nvmlDeviceGetMemoryInfo", func() nvml.Return { old, ret = l.handle.GetMemoryInfo(); return ret }):
		l.level(sample.MemoryMiB, mib(old.Used))
		l.MemoryMiB = mib(old.Total)
	}
	var value uint32
	for _, one := range []struct {
		level    sample.Level
		function string
		scale    float64
		call     func() (uint32, nvml.Return)
	}{
		{sample.PowerWatts, "nvmlDeviceGetPowerUsage", 1000, l.handle.GetPowerUsage},
		{sample.SMClock, "nvmlDeviceGetClockInfo", 1, func() (uint32, nvml.Return) { return l.handle.GetClockInfo(nvml.CLOCK_SM) }},
		{sample.MemoryClock, "nvmlDeviceGetClockInfo", 1, func() (uint32, nvml.Return) { return l.handle.GetClockInfo(nvml.CLOCK_MEM) }},
		{sample.Temperature, "nvmlDeviceGetTemperature", 1, func() (uint32, nvml.Return) { return l.handle.GetTemperature(nvml.TEMPERATURE_GPU) }},
	} {
		if l.can(one.function, func() nvml.Return { value, ret = one.call(); return ret }) {
			l.level(one.level, float64(value)/one.scale)
		}
	}
}

func mib(bytes uint64) float64 { return float64(bytes>>10) / 1024 }

// use reads how busy the GPU was: the driver's own samples since the last look,
// some each second, or else what it says of its last period.
func (l *look) use() {
	missing := false
	for level, kind := range map[sample.Level]nvml.SamplingType{
		sample.SMPercent: nvml.GPU_UTILIZATION_SAMPLES, sample.MemoryPercent: nvml.MEMORY_UTILIZATION_SAMPLES,
	} {
		if r, found := l.samples(kind); found {
			l.Levels[level] = r
		} else {
			missing = true
		}
	}
	if !missing {
		return
	}
	var rates nvml.Utilization
	var ret nvml.Return
	if l.can("nvmlDeviceGetUtilizationRates", func() nvml.Return { rates, ret = l.handle.GetUtilizationRates(); return ret }) {
		for level, percent := range map[sample.Level]uint32{sample.SMPercent: rates.Gpu, sample.MemoryPercent: rates.Memory} {
			if _, known := l.Levels[level]; !known {
				l.level(level, float64(percent))
			}
		}
	}
}

// samples returns what the driver has sampled since the last look. Of the first
// look's the last one counts alone: the others are from before.
func (l *look) samples(kind nvml.SamplingType) (sample.Range, bool) {
	since, looked := l.seen[kind]
	var of nvml.ValueType
	var list []nvml.Sample
	var ret nvml.Return
	if !l.can("nvmlDeviceGetSamples", func() nvml.Return { of, list, ret = l.handle.GetSamples(kind, since); return ret }) {
		return sample.Range{}, false
	}
	sum, count, r := 0.0, 0, sample.Range{}
	last, latest := 0.0, since
	for _, s := range list {
		value, known := number(of, s.SampleValue)
		if !known || s.TimeStamp <= since {
			continue
		}
		sum, count = sum+value, count+1
		r.Max = max(r.Max, value)
		if s.TimeStamp >= latest {
			last, latest = value, s.TimeStamp
		}
	}
	if count == 0 {
		return r, false
	}
	l.seen[kind] = latest
	if !looked {
		return sample.Range{Mean: last, Max: last}, true
	}
	r.Mean = sum / float64(count)
	return r, true
}

// number reads an nvmlValue_t, which is in the machine's byte order.
func number(of nvml.ValueType, value [8]byte) (float64, bool) {
	whole, half := binary.NativeEndian.Uint64(value[:]), binary.NativeEndian.Uint32(value[:4])
	switch of {
	case nvml.VALUE_TYPE_DOUBLE:
		return math.Float64frombits(whole), true
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return float64(half), true
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
		return float64(whole), true
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return float64(int64(whole)), true
	case nvml.VALUE_TYPE_SIGNED_INT:
		return float64(int32(half)), true
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		return float64(binary.NativeEndian.Uint16(value[:2])), true
	}
	return 0, false
}

func (l *look) reasons() {
	function, get := "nvmlDeviceGetCurrentClocksEventReasons", l.handle.GetCurrentClocksEventReasons
	if !l.has(function) { // its name before R535
		function, get = "nvmlDeviceGetCurrentClocksThrottleReasons", l.handle.GetCurrentClocksThrottleReasons
	}
	var bits uint64
	var ret nvml.Return
	if l.can(function, func() nvml.Return { bits, ret = get(); return ret }) {
		l.Reasons = reasonWords(bits)
	}
}

func (l *look) energy() {
	var mj uint64
	var ret nvml.Return
	if l.can("nvmlDeviceGetTotalEnergyConsumption", func() nvml.Return { mj, ret = l.handle.GetTotalEnergyConsumption(); return ret }) {
		l.Counters[sample.Energy] = float64(mj) / 1000
	}
}

// field is one that nvmlDeviceGetFieldValues reads.
type field struct {
	id      uint32
	counter sample.Counter // that it adds to, or
	reason  string         // why clocks were down, in ns
	rare    bool           // moved by errors alone
}

var fields = []field{
	{id: nvml.FI_DEV_PCIE_COUNT_RX_BYTES, counter: sample.PCIeReceived},
	{id: nvml.FI_DEV_PCIE_COUNT_TX_BYTES, counter: sample.PCIeSent},
	{id: nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP, reason: "sw_power_cap"},
	{id: nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, reason: "sw_thermal_slowdown"},
	{id: nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, reason: "hw_thermal_slowdown"},
	{id: nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, reason: "hw_power_brake_slowdown"},
	{id: nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, counter: sample.NVLinkCRCErrors, rare: true},
	{id: nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, counter: sample.NVLinkCRCErrors, rare: true},
	{id: nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, counter: sample.NVLinkReplays, rare: true},
	{id: nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, counter: sample.NVLinkRecoveries, rare: true},
}

func (l *look) fields(all bool) {
	var asked []field
	var values []nvml.FieldValue
	for _, f := range fields {
		if (all || !f.rare) && !l.lacks[f.name()] {
			asked = append(asked, f)
			values = append(values, nvml.FieldValue{FieldId: f.id})
		}
	}
	if len(values) == 0 || !l.can("nvmlDeviceGetFieldValues", func() nvml.Return { return l.handle.GetFieldValues(values) }) {
		return
	}
	for i, f := range asked {
		ret := nvml.Return(values[i].NvmlReturn)
		value, known := number(nvml.ValueType(values[i].ValueType), values[i].Value)
		switch {
		case ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT:
			l.lacks[f.name()] = true
		case ret != nvml.SUCCESS || !known:
		case f.reason != "":
			if l.Held == nil {
				l.Held = map[string]float64{}
			}
			l.Held[f.reason] = value / 1e9
		default:
			l.Counters[f.counter] += value
		}
	}
}

// name is what a field is called among those that a device lacks.
func (f field) name() string { return fmt.Sprintf("field %d", f.id) }

func (l *look) errors() {
	var replays int
	var ret nvml.Return
	if l.can("nvmlDeviceGetPcieReplayCounter", func() nvml.Return { replays, ret = l.handle.GetPcieReplayCounter(); return ret }) {
		l.Counters[sample.PCIeReplays] = float64(replays)
	}
	var count uint64
	for counter, kind := range map[sample.Counter]nvml.MemoryErrorType{
		sample.ECCCorrected: nvml.MEMORY_ERROR_TYPE_CORRECTED, sample.ECCUncorrected: nvml.MEMORY_ERROR_TYPE_UNCORRECTED,
	} {
		if l.can("nvmlDeviceGetTotalEccErrors", func() nvml.Return { count, ret = l.handle.GetTotalEccErrors(kind, nvml.VOLATILE_ECC); return ret }) {
			l.Counters[counter] = float64(count)
		}
	}
}
