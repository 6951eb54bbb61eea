package fakenvml

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	facts "gputune/internal/nvml"
)

// caller makes the calls that its arguments say, "CALL GPU NUMBER…", and
// writes one line for each: what it answered and the error's name.
func caller(calls []string) {
	lib := nvml.New()
	if ret := lib.Init(); ret != nvml.SUCCESS {
		fmt.Println("Init", name(ret))
		return
	}
	for _, call := range calls {
		words := strings.Fields(call)
		var numbers []int
		for _, word := range words[1:] {
			n, err := strconv.Atoi(word)
			if err != nil {
				break
			}
			numbers = append(numbers, n)
		}
		answer, ret := one(lib, words, numbers)
		if answer != "" {
			answer += " "
		}
		fmt.Println(answer + name(ret))
	}
	if ret := lib.Shutdown(); ret != nvml.SUCCESS {
		fmt.Println("Shutdown", name(ret))
	}
}

// names has errors by their number. While a library is loaded go-nvml has only
// the library's texts for them.
var names = map[nvml.Return]string{
	nvml.SUCCESS:                       "SUCCESS",
	nvml.ERROR_INVALID_ARGUMENT:        "INVALID_ARGUMENT",
	nvml.ERROR_NOT_SUPPORTED:           "NOT_SUPPORTED",
	nvml.ERROR_NO_PERMISSION:           "NO_PERMISSION",
	nvml.ERROR_NOT_FOUND:               "NOT_FOUND",
	nvml.ERROR_INSUFFICIENT_SIZE:       "INSUFFICIENT_SIZE",
	nvml.ERROR_INSUFFICIENT_POWER:      "INSUFFICIENT_POWER",
	nvml.ERROR_DRIVER_NOT_LOADED:       "DRIVER_NOT_LOADED",
	nvml.ERROR_TIMEOUT:                 "TIMEOUT",
	nvml.ERROR_IRQ_ISSUE:               "IRQ_ISSUE",
	nvml.ERROR_FUNCTION_NOT_FOUND:      "FUNCTION_NOT_FOUND",
	nvml.ERROR_CORRUPTED_INFOROM:       "CORRUPTED_INFOROM",
	nvml.ERROR_GPU_IS_LOST:             "GPU_IS_LOST",
	nvml.ERROR_RESET_REQUIRED:          "RESET_REQUIRED",
	nvml.ERROR_OPERATING_SYSTEM:        "OPERATING_SYSTEM",
	nvml.ERROR_LIB_RM_VERSION_MISMATCH: "LIB_RM_VERSION_MISMATCH",
	nvml.ERROR_IN_USE:                  "IN_USE",
	nvml.ERROR_MEMORY:                  "MEMORY",
	nvml.ERROR_NO_DATA:                 "NO_DATA",
	nvml.ERROR_INSUFFICIENT_RESOURCES:  "INSUFFICIENT_RESOURCES",
	nvml.ERROR_FREQ_NOT_SUPPORTED:      "FREQ_NOT_SUPPORTED",
	nvml.ERROR_NOT_READY:               "NOT_READY",
	nvml.ERROR_GPU_NOT_FOUND:           "GPU_NOT_FOUND",
	nvml.ERROR_INVALID_STATE:           "INVALID_STATE",
	nvml.ERROR_UNKNOWN:                 "UNKNOWN",
}

func name(ret nvml.Return) string {
	if name, is := names[ret]; is {
		return name
	}
	return fmt.Sprint(int(ret))
}

// one makes one call; those with small letters are the caller's own.
func one(lib nvml.Interface, words []string, n []int) (string, nvml.Return) {
	switch words[0] {
	case "SystemGetDriverVersion":
		return lib.SystemGetDriverVersion()
	case "SystemGetNVMLVersion":
		return lib.SystemGetNVMLVersion()
	case "SystemGetCudaDriverVersion":
		return text(lib.SystemGetCudaDriverVersion())
	case "GetCount":
		return text(lib.DeviceGetCount())
	case "GetHandleByUUID":
		return found(lib.DeviceGetHandleByUUID(words[1]))
	case "GetHandleByPciBusId":
		return found(lib.DeviceGetHandleByPciBusId(words[1]))
	case "ErrorString":
		return lib.ErrorString(nvml.Return(n[0])), nvml.SUCCESS
	case "facts": // of package nvml, with CPUs and nodes
		answer, err := json.Marshal(facts.New().Facts(n[0], n[1]))
		if err != nil {
			panic(err)
		}
		return string(answer), nvml.SUCCESS
	case "become": // another user
		if err := syscall.Setresuid(n[0], n[0], n[0]); err != nil {
			panic(err)
		}
		return "", nvml.SUCCESS
	case "repeat": // rounds of setting and reading back on one GPU
		return "", repeat(lib, n[0], n[1])
	}
	device, ret := lib.DeviceGetHandleByIndex(n[0])
	if ret != nvml.SUCCESS {
		return "handle", ret
	}
	if set, is := sets[words[0]]; is {
		return "", set(device, append(n[1:], 0, 0))
	}
	return read(device, words[0], append(n[1:], 0, 0))
}

var sets = map[string]func(d nvml.Device, n []int) nvml.Return{
	"SetPowerManagementLimit": func(d nvml.Device, n []int) nvml.Return { return d.SetPowerManagementLimit(uint32(n[0])) },
	"SetGpuLockedClocks": func(d nvml.Device, n []int) nvml.Return {
		return d.SetGpuLockedClocks(uint32(n[0]), uint32(n[1]))
	},
	"ResetGpuLockedClocks": func(d nvml.Device, _ []int) nvml.Return { return d.ResetGpuLockedClocks() },
	"SetMemoryLockedClocks": func(d nvml.Device, n []int) nvml.Return {
		return d.SetMemoryLockedClocks(uint32(n[0]), uint32(n[1]))
	},
	"ResetMemoryLockedClocks": func(d nvml.Device, _ []int) nvml.Return { return d.ResetMemoryLockedClocks() },
	"SetApplicationsClocks": func(d nvml.Device, n []int) nvml.Return {
		return d.SetApplicationsClocks(uint32(n[0]), uint32(n[1]))
	},
	"ResetApplicationsClocks": func(d nvml.Device, _ []int) nvml.Return { return d.ResetApplicationsClocks() },
	"SetPersistenceMode":      func(d nvml.Device, n []int) nvml.Return { return d.SetPersistenceMode(nvml.EnableState(n[0])) },
	"SetComputeMode":          func(d nvml.Device, n []int) nvml.Return { return d.SetComputeMode(nvml.ComputeMode(n[0])) },
}

func read(d nvml.Device, call string, n []int) (string, nvml.Return) {
	switch call {
	case "GetIndex":
		return text(d.GetIndex())
	case "GetUUID":
		return d.GetUUID()
	case "GetName":
		return d.GetName()
	case "GetArchitecture":
		return text(d.GetArchitecture())
	case "GetMinorNumber":
		return text(d.GetMinorNumber())
	case "GetPciInfo":
		info, ret := d.GetPciInfo()
		return fmt.Sprintf("%s %s %x:%x:%x", chars(info.BusId[:]), chars(info.BusIdLegacy[:]), info.Domain, info.Bus, info.Device), ret
	case "GetMemoryAffinity":
		mask, ret := d.GetMemoryAffinity(n[0], nvml.AffinityScope(n[1]))
		return fmt.Sprintf("%#x", mask), ret
	case "GetCpuAffinity":
		mask, ret := d.GetCpuAffinity(n[0])
		return fmt.Sprintf("%#x", mask), ret
	case "GetCpuAffinityWithinScope":
		mask, ret := d.GetCpuAffinityWithinScope(n[0], nvml.AffinityScope(n[1]))
		return fmt.Sprintf("%#x", mask), ret
	case "GetNumaNodeId":
		return text(d.GetNumaNodeId())
	case "GetMigMode":
		return pair(d.GetMigMode())
	case "GetMaxMigDeviceCount":
		return text(d.GetMaxMigDeviceCount())
	case "mig": // UUID, parent and what is refused of a MIG device
		return mig(d, n[0])
	case "GetPowerManagementLimit":
		return text(d.GetPowerManagementLimit())
	case "GetPowerManagementLimitConstraints":
		return pair(d.GetPowerManagementLimitConstraints())
	case "GetPowerManagementDefaultLimit":
		return text(d.GetPowerManagementDefaultLimit())
	case "GetEnforcedPowerLimit":
		return text(d.GetEnforcedPowerLimit())
	case "GetPowerUsage":
		return text(d.GetPowerUsage())
	case "GetTotalEnergyConsumption":
		return text(d.GetTotalEnergyConsumption())
	case "GetSupportedMemoryClocks": // go-nvml's array has no room: only the number comes back
		count, _, ret := d.GetSupportedMemoryClocks()
		return fmt.Sprint(count), ret
	case "GetSupportedGraphicsClocks":
		count, _, ret := d.GetSupportedGraphicsClocks(n[0])
		return fmt.Sprint(count), ret
	case "GetMinMaxClockOfPState":
		return pair(d.GetMinMaxClockOfPState(nvml.ClockType(n[0]), nvml.Pstates(n[1])))
	case "GetApplicationsClock":
		return text(d.GetApplicationsClock(nvml.ClockType(n[0])))
	case "GetDefaultApplicationsClock":
		return text(d.GetDefaultApplicationsClock(nvml.ClockType(n[0])))
	case "GetClockInfo":
		return text(d.GetClockInfo(nvml.ClockType(n[0])))
	case "GetMaxClockInfo":
		return text(d.GetMaxClockInfo(nvml.ClockType(n[0])))
	case "GetClock":
		return text(d.GetClock(nvml.ClockType(n[0]), nvml.ClockId(n[1])))
	case "GetPersistenceMode":
		return text(d.GetPersistenceMode())
	case "GetComputeMode":
		return text(d.GetComputeMode())
	case "GetEccMode":
		return pair(d.GetEccMode())
	case "GetRemappedRows":
		corrected, uncorrected, pending, failed, ret := d.GetRemappedRows()
		return fmt.Sprint(corrected, uncorrected, pending, failed), ret
	case "GetCurrentClocksEventReasons":
		return text(d.GetCurrentClocksEventReasons())
	case "GetCurrentClocksThrottleReasons":
		return text(d.GetCurrentClocksThrottleReasons())
	case "GetComputeRunningProcesses":
		processes, ret := d.GetComputeRunningProcesses()
		return fmt.Sprint(processes), ret
	case "GetPerformanceState":
		return text(d.GetPerformanceState())
	case "GetUtilizationRates":
		rates, ret := d.GetUtilizationRates()
		return fmt.Sprint(rates.Gpu, rates.Memory), ret
	case "GetTemperature":
		return text(d.GetTemperature(nvml.TemperatureSensors(n[0])))
	case "GetMemoryInfo":
		memory, ret := d.GetMemoryInfo()
		return fmt.Sprint(memory.Total, memory.Used, memory.Free), ret
	}
	panic("unknown call " + call)
}

func mig(d nvml.Device, place int) (string, nvml.Return) {
	part, ret := d.GetMigDeviceHandleByIndex(place)
	if ret != nvml.SUCCESS {
		return "", ret
	}
	uuid, ret := part.GetUUID()
	if ret != nvml.SUCCESS {
		return "", ret
	}
	parent, ret := part.GetDeviceHandleFromMigDeviceHandle()
	if ret != nvml.SUCCESS {
		return uuid, ret
	}
	is, _ := part.IsMigDeviceHandle()
	index, ret := parent.GetIndex()
	_, refused := part.GetPowerManagementLimit()
	return fmt.Sprint(uuid, " ", is, " of ", index, ", power limit ", name(refused)), ret
}

// repeat sets random values on one GPU and wants to read them back.
func repeat(lib nvml.Interface, gpu, rounds int) nvml.Return {
	device, ret := lib.DeviceGetHandleByIndex(gpu)
	for round := 0; ret == nvml.SUCCESS && round < rounds; round++ {
		limit, mode := uint32(200000+rand.IntN(500001)), []nvml.ComputeMode{0, 2, 3}[rand.IntN(3)]
		if ret = device.SetPowerManagementLimit(limit); ret != nvml.SUCCESS {
			break
		}
		if ret = device.SetComputeMode(mode); ret != nvml.SUCCESS {
			break
		}
		gotLimit, retLimit := device.GetPowerManagementLimit()
		gotMode, retMode := device.GetComputeMode()
		if retLimit != nvml.SUCCESS || retMode != nvml.SUCCESS || gotLimit != limit || gotMode != mode {
			fmt.Fprintf(os.Stderr, "GPU %d round %d: set %d %d, read %d %d\n", gpu, round, limit, mode, gotLimit, gotMode)
			return nvml.ERROR_INVALID_STATE
		}
	}
	return ret
}

func text[T any](value T, ret nvml.Return) (string, nvml.Return) {
	if ret != nvml.SUCCESS {
		return "", ret
	}
	return fmt.Sprint(value), ret
}

func pair[T any](first, second T, ret nvml.Return) (string, nvml.Return) {
	if ret != nvml.SUCCESS {
		return "", ret
	}
	return fmt.Sprint(first, " ", second), ret
}

// found tells the UUID of the device that a look-up found.
func found(device nvml.Device, ret nvml.Return) (string, nvml.Return) {
	if ret != nvml.SUCCESS {
		return "", ret
	}
	return device.GetUUID()
}

func chars(c []int8) string {
	var b []byte
	for _, one := range c[:slices.Index(c, 0)] {
		b = append(b, byte(one))
	}
	return string(b)
}
