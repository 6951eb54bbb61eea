package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gputune/internal/setting"
)

// throttleReasons are the bits of nvmlDeviceGetCurrentClocksEventReasons. The
// words are those of nvidia-smi's clocks_event_reasons.* fields.
var throttleReasons = []struct {
	bit  uint64
	word string
}{
	{0x1, "gpu_idle"},
	{0x2, "applications_clocks_setting"},
	{0x4, "sw_power_cap"},
	{0x8, "hw_slowdown"},
	{0x10, "sync_boost"},
	{0x20, "sw_thermal_slowdown"},
	{0x40, "hw_thermal_slowdown"},
	{0x80, "hw_power_brake_slowdown"},
	{0x100, "display_clock_setting"},
	{0x200, "board_limit"},
	{0x400, "reliability"},
}

// Facts implements setting.Device. What a GPU does not support is left out;
// any other failure is the call's.
func (d *device) Facts() (setting.GPUFacts, error) {
	facts := setting.GPUFacts{UUID: d.uuid, PCI: d.pci}
	name, ret := d.handle.GetName()
	if err := d.done("name", ret); err != nil {
		return facts, err
	}
	facts.Model = name

	now, next, ret := d.handle.GetEccMode()
	has, err := d.supported("ECC mode", ret)
	if err != nil {
		return facts, err
	}
	if has {
		facts.ECC = &setting.Pending{Now: now == nvml.FEATURE_ENABLED, Next: next == nvml.FEATURE_ENABLED}
	}
	if d.session.has("nvmlDeviceGetMigMode") {
		now, next, ret := d.handle.GetMigMode()
		if has, err = d.supported("MIG mode", ret); err != nil {
			return facts, err
		}
		if has {
			facts.MIG = &setting.Pending{Now: now == nvml.DEVICE_MIG_ENABLE, Next: next == nvml.DEVICE_MIG_ENABLE}
		}
	}
	if facts.Throttle, err = d.throttle(); err != nil {
		return facts, err
	}
	if d.session.has("nvmlDeviceGetRemappedRows") {
		var rows setting.RemappedRows
		rows.Correctable, rows.Uncorrectable, rows.Pending, rows.Failed, ret = d.handle.GetRemappedRows()
		if has, err = d.supported("remapped rows", ret); err != nil {
			return facts, err
		}
		if has {
			facts.Rows = &rows
		}
	}
	return facts, nil
}

// supported tells a fact that the GPU has from one that it lacks.
func (d *device) supported(doing string, ret nvml.Return) (bool, error) {
	if ret == nvml.ERROR_NOT_SUPPORTED {
		return false, nil
	}
	return ret == nvml.SUCCESS, d.done(doing, ret)
}

func (d *device) throttle() ([]string, error) {
	// The call has another name before R535.
	get := d.handle.GetCurrentClocksEventReasons
	if !d.session.has("nvmlDeviceGetCurrentClocksEventReasons") {
		if !d.session.has("nvmlDeviceGetCurrentClocksThrottleReasons") {
			return nil, nil
		}
		get = d.handle.GetCurrentClocksThrottleReasons
	}
	bits, ret := get()
	if has, err := d.supported("throttle reasons", ret); !has {
		return nil, err
	}
	return reasonWords(bits), nil
}

// reasonWords turns a mask of throttle reasons into words.
func reasonWords(bits uint64) []string {
	words := []string{}
	for _, reason := range throttleReasons {
		if bits&reason.bit != 0 {
			words = append(words, reason.word)
			bits &^= reason.bit
		}
	}
	if bits != 0 {
		words = append(words, fmt.Sprintf("%#x", bits))
	}
	return words
}
