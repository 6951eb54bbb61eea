package nvml

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"gputune/internal/setting"
)

const oneUUID = "GPU-4b0480b4-0000-0000-0000-000000000000"

// card is one GPU with a state that calls change, and what calls answer.
type card struct {
	power       uint32
	persistence nvml.EnableState
	mode        nvml.ComputeMode
	locked      [2]uint32
	memLocked   [2]uint32
	handles     int // how often it was searched
	answer      nvml.Return
	arch        nvml.DeviceArchitecture
	noECC       bool
}

func (c *card) device() *mock.Device {
	state := func(have nvml.Return) nvml.Return {
		if c.answer != nvml.SUCCESS {
			return c.answer
		}
		return have
	}
	return &mock.Device{
		GetPciInfoFunc: func() (nvml.PciInfo, nvml.Return) {
			var info nvml.PciInfo
			for i, b := range []byte("00000000:07:00.0") {
				info.BusId[i] = int8(b)
			}
			return info, nvml.SUCCESS
		},
		GetNameFunc:                 func() (string, nvml.Return) { return "NVIDIA H200", nvml.SUCCESS },
		GetArchitectureFunc:         func() (nvml.DeviceArchitecture, nvml.Return) { return c.arch, nvml.SUCCESS },
		GetPowerManagementLimitFunc: func() (uint32, nvml.Return) { return c.power, state(nvml.SUCCESS) },
		GetPowerManagementLimitConstraintsFunc: func() (uint32, uint32, nvml.Return) {
			return 200_000, 700_000, state(nvml.SUCCESS)
		},
		GetPowerManagementDefaultLimitFunc: func() (uint32, nvml.Return) { return 700_000, state(nvml.SUCCESS) },
		SetPowerManagementLimitFunc:        func(mw uint32) nvml.Return { c.power = mw; return state(nvml.SUCCESS) },
		GetPersistenceModeFunc:             func() (nvml.EnableState, nvml.Return) { return c.persistence, state(nvml.SUCCESS) },
		SetPersistenceModeFunc:             func(m nvml.EnableState) nvml.Return { c.persistence = m; return state(nvml.SUCCESS) },
		GetComputeModeFunc:                 func() (nvml.ComputeMode, nvml.Return) { return c.mode, state(nvml.SUCCESS) },
		SetComputeModeFunc:                 func(m nvml.ComputeMode) nvml.Return { c.mode = m; return state(nvml.SUCCESS) },
		SetGpuLockedClocksFunc: func(low, high uint32) nvml.Return {
			c.locked = [2]uint32{low, high}
			return state(nvml.SUCCESS)
		},
		ResetGpuLockedClocksFunc: func() nvml.Return { c.locked = [2]uint32{}; return state(nvml.SUCCESS) },
		SetMemoryLockedClocksFunc: func(low, high uint32) nvml.Return {
			c.memLocked = [2]uint32{low, high}
			return state(nvml.SUCCESS)
		},
		ResetMemoryLockedClocksFunc: func() nvml.Return { c.memLocked = [2]uint32{}; return state(nvml.SUCCESS) },
		GetApplicationsClockFunc: func(clock nvml.ClockType) (uint32, nvml.Return) {
			return map[nvml.ClockType]uint32{nvml.CLOCK_MEM: 877, nvml.CLOCK_GRAPHICS: 1380}[clock], state(nvml.SUCCESS)
		},
		SetApplicationsClocksFunc: func(uint32, uint32) nvml.Return { return state(nvml.SUCCESS) },
		GetEccModeFunc: func() (nvml.EnableState, nvml.EnableState, nvml.Return) {
			if c.noECC {
				return 0, 0, nvml.ERROR_NOT_SUPPORTED
			}
			return nvml.FEATURE_ENABLED, nvml.FEATURE_DISABLED, state(nvml.SUCCESS)
		},
		GetMigModeFunc:                      func() (int, int, nvml.Return) { return 0, 1, state(nvml.SUCCESS) },
		GetCurrentClocksEventReasonsFunc:    func() (uint64, nvml.Return) { return 0x1 | 0x40 | 1<<40, state(nvml.SUCCESS) },
		GetCurrentClocksThrottleReasonsFunc: func() (uint64, nvml.Return) { return 0x4, state(nvml.SUCCESS) },
		GetRemappedRowsFunc:                 func() (int, int, bool, bool, nvml.Return) { return 3, 1, true, false, state(nvml.SUCCESS) },
	}
}

// open returns the settings' view of a card, with a driver that lacks some
// functions.
func (c *card) open(t *testing.T, lacking ...string) setting.Device {
	t.Helper()
	api := library(nil, lacking...)
	api.DeviceGetHandleByUUIDFunc = func(uuid string) (nvml.Device, nvml.Return) {
		c.handles++
		if uuid != oneUUID {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return c.device(), nvml.SUCCESS
	}
	devices, err := (&Library{api: api}).Open()
	if err != nil {
		t.Fatal(err)
	}
	devices.(*session).clocks = func(uuid string, memory uint32) ([]uint32, nvml.Return) {
		switch {
		case uuid != oneUUID:
			return nil, nvml.ERROR_NOT_FOUND
		case memory == 0:
			return []uint32{3201, 2201}, c.answer
		case memory == 3201:
			return []uint32{1980, 1965, 345}, c.answer
		}
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	t.Cleanup(func() {
		if err := devices.Close(); err != nil {
			t.Error(err)
		}
		if n := len(api.ShutdownCalls()); n != 1 {
			t.Errorf("%d times shut down", n)
		}
	})
	if _, err := devices.Device("GPU-other"); !errors.Is(err, setting.ErrGone) {
		t.Errorf("a GPU that is not there: %v", err)
	}
	d, err := devices.Device(oneUUID)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func newCard() *card {
	return &card{power: 700_000, persistence: nvml.FEATURE_ENABLED, arch: nvml.DEVICE_ARCH_HOPPER}
}

// calls are all that change or ask a card, by a part of the error's text.
func calls(d setting.Device) map[string]func() error {
	return map[string]func() error{
		"supported clocks|supported memory clocks": func() error { _, err := d.SMClocks(); return err },
		"supported memory clocks":                  func() error { _, err := d.MemoryClocks(); return err },
		"lock clocks to 1200–1500 MHz":             func() error { return d.LockSMClocks(1200, 1500) },
		"unlock clocks":                            d.UnlockSMClocks,
		"lock memory clocks to 2201–3201 MHz":      func() error { return d.LockMemoryClocks(2201, 3201) },
		"unlock memory clocks":                     d.UnlockMemoryClocks,
		"application clocks":                       func() error { _, _, err := d.ApplicationClocks(); return err },
		"set application clocks to 877,1380 MHz":   func() error { return d.SetApplicationClocks(877, 1380) },
		"power limit":                              func() error { _, err := d.PowerLimit(); return err },
		"possible power limits":                    func() error { _, _, _, err := d.PowerLimits(); return err },
		"set power limit to 500000 mW":             func() error { return d.SetPowerLimit(500_000) },
		"persistence mode":                         func() error { _, err := d.Persistence(); return err },
		"switch persistence off":                   func() error { return d.SetPersistence(false) },
		"switch persistence on":                    func() error { return d.SetPersistence(true) },
		"compute mode":                             func() error { _, err := d.ComputeMode(); return err },
		"set compute mode to exclusive":            func() error { return d.SetComputeMode(setting.ComputeExclusive) },
		"ECC mode":                                 func() error { _, err := d.Facts(); return err },
	}
}

// TestControlFaults: each failure of each call is the error that says what was
// done, with which GPU, and what kind of failure it is.
func TestControlFaults(t *testing.T) {
	for ret, kind := range map[nvml.Return]error{
		nvml.ERROR_NOT_SUPPORTED: setting.ErrUnsupported, nvml.ERROR_NO_PERMISSION: setting.ErrDenied,
		nvml.ERROR_IN_USE: setting.ErrInUse, nvml.ERROR_GPU_IS_LOST: setting.ErrGone, nvml.ERROR_UNKNOWN: nil,
	} {
		c := newCard()
		d := c.open(t)
		for doing, call := range calls(d) {
			if err := call(); err != nil {
				t.Errorf("%s: %v", doing, err)
			}
			c.answer = ret
			err := call()
			c.answer = nvml.SUCCESS
			if doing == "ECC mode" && ret == nvml.ERROR_NOT_SUPPORTED {
				if err != nil {
					t.Errorf("facts that are not supported: %v", err)
				}
				continue
			}
			named := slices.ContainsFunc(strings.Split(doing, "|"), func(s string) bool {
				return err != nil && strings.HasPrefix(err.Error(), "gpu 0000:07:00.0: "+s+": ")
			})
			if !named || kind != nil && !errors.Is(err, kind) {
				t.Errorf("%s with %v: %v", doing, ret, err)
			}
		}
	}
}

func TestControl(t *testing.T) {
	c := newCard()
	d := c.open(t)
	if clocks, err := d.SMClocks(); err != nil || !slices.Equal(clocks.Steps, []uint32{345, 1965, 1980}) {
		t.Errorf("clocks %+v, %v", clocks, err)
	}
	found := c.handles
	for _, call := range []error{
		d.LockSMClocks(1200, 1500), d.LockMemoryClocks(2201, 3201), d.SetPowerLimit(512_345),
		d.SetPersistence(false), d.SetComputeMode(setting.ComputeExclusive),
	} {
		if call != nil {
			t.Error(call)
		}
	}
	want := card{
		power: 512_345, persistence: nvml.FEATURE_DISABLED, mode: nvml.COMPUTEMODE_EXCLUSIVE_PROCESS,
		locked: [2]uint32{1200, 1500}, memLocked: [2]uint32{2201, 3201}, handles: found + 1, arch: c.arch,
	}
	if *c != want {
		t.Errorf("card is %+v\nwant    %+v", *c, want)
	}
	for ours, theirs := range computeModes {
		if err := d.SetComputeMode(ours); err != nil || c.mode != theirs {
			t.Errorf("%s: %v, %v", ours, c.mode, err)
		}
		if got, err := d.ComputeMode(); err != nil || got != ours {
			t.Errorf("%s reads %s, %v", ours, got, err)
		}
	}
	c.mode = 99
	if got, err := d.ComputeMode(); err == nil {
		t.Errorf("mode 99 reads %s", got)
	}
	if err := d.SetComputeMode("rubbish"); err == nil {
		t.Error("rubbish is a mode")
	}
}

// TestOldDriver: a driver that lacks a function is not asked for it.
func TestOldDriver(t *testing.T) {
	c := newCard()
	d := c.open(t, "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks", "nvmlDeviceSetMemoryLockedClocks",
		"nvmlDeviceResetMemoryLockedClocks", "nvmlDeviceGetApplicationsClock", "nvmlDeviceSetApplicationsClocks",
		"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetMigMode", "nvmlDeviceGetRemappedRows")
	for doing, call := range calls(d) {
		if !strings.Contains(doing, "lock") || strings.Contains(doing, "supported") {
			continue
		}
		if err := call(); !errors.Is(err, setting.ErrUnsupported) {
			t.Errorf("%s: %v", doing, err)
		}
	}
	if can, err := d.CanLockMemoryClocks(); can || err != nil {
		t.Error("memory clocks can be locked")
	}
	facts, err := d.Facts()
	if err != nil || facts.MIG != nil || facts.Rows != nil || !slices.Equal(facts.Throttle, []string{"sw_power_cap"}) {
		t.Errorf("facts %+v, %v", facts, err)
	}
}

func TestCanLockMemoryClocks(t *testing.T) {
	for arch, want := range map[nvml.DeviceArchitecture]bool{
		nvml.DEVICE_ARCH_VOLTA: false, nvml.DEVICE_ARCH_TURING: false, nvml.DEVICE_ARCH_AMPERE: true, nvml.DEVICE_ARCH_HOPPER: true,
	} {
		c := newCard()
		c.arch = arch
		if got, err := c.open(t).CanLockMemoryClocks(); got != want || err != nil {
			t.Errorf("architecture %d: %v", arch, got)
		}
	}
}

func TestGPUFacts(t *testing.T) {
	c := newCard()
	c.noECC = true
	facts, err := c.open(t).Facts()
	if err != nil {
		t.Fatal(err)
	}
	if facts.ECC != nil || facts.MIG == nil || *facts.MIG != (setting.Pending{Next: true}) || facts.Model != "NVIDIA H200" ||
		facts.PCI != "0000:07:00.0" || facts.UUID != oneUUID || *facts.Rows != (setting.RemappedRows{Correctable: 3, Uncorrectable: 1, Pending: true}) {
		t.Errorf("facts %+v", facts)
	}
	if want := []string{"gpu_idle", "hw_thermal_slowdown", "0x10000000000"}; !slices.Equal(facts.Throttle, want) {
		t.Errorf("throttle reasons %q, want %q", facts.Throttle, want)
	}
}

func TestOpenFails(t *testing.T) {
	for ret, kind := range map[nvml.Return]error{
		nvml.ERROR_LIBRARY_NOT_FOUND: setting.ErrUnsupported, nvml.ERROR_NO_PERMISSION: setting.ErrDenied, nvml.ERROR_DRIVER_NOT_LOADED: nil,
	} {
		api := &mock.Interface{InitFunc: func() nvml.Return { return ret }}
		if _, err := (&Library{api: api}).Open(); err == nil || kind != nil && !errors.Is(err, kind) {
			t.Errorf("%v: %v", ret, err)
		}
	}
}

// TestGPUHere reads, and changes nothing of, the GPUs of this machine.
func TestGPUHere(t *testing.T) {
	if _, err := os.Stat("/dev/nvidiactl"); err != nil {
		t.Skip("no NVIDIA GPU here")
	}
	env := setting.NewEnvironment("/", New().Open)
	defer env.Close()
	for _, gpu := range New().Facts(1024, 64).GPUs {
		clocks, err := setting.SMClocks(env, gpu.UUID)
		if err != nil || len(clocks.Steps) < 2 {
			t.Errorf("GPU %s: clocks %+v, %v", gpu.UUID, clocks, err)
		}
		memory, err := setting.MemoryClocks(env, gpu.UUID)
		if err != nil || len(memory.Steps) < 1 {
			t.Errorf("GPU %s: memory clocks %+v, %v", gpu.UUID, memory, err)
		}
		facts, err := setting.ReadGPUFacts(env, gpu.UUID)
		if err != nil || facts.Model == "" {
			t.Errorf("GPU %s: %+v, %v", gpu.UUID, facts, err)
		}
		t.Logf("%s %s: %d clocks %s, memory %s, ECC %+v, MIG %+v, throttle %v, rows %+v",
			facts.PCI, facts.Model, len(clocks.Steps), clocks, memory, facts.ECC, facts.MIG, facts.Throttle, facts.Rows)
		for _, name := range []string{setting.PowerLimitName, setting.PersistenceName, setting.ComputeModeName, setting.ApplicationClocksName} {
			s, err := setting.Parse(env, setting.GPUKey(gpu.UUID, name))
			if err != nil {
				t.Fatal(err)
			}
			value, err := s.Read(context.Background())
			if err != nil && !errors.Is(err, setting.ErrUnsupported) {
				t.Errorf("%s: %v", s.Key(), err)
			}
			t.Logf("%s = %s, %v", s.Key(), value, err)
		}
		s, err := setting.Parse(env, setting.GPUKey(gpu.UUID, setting.SMClocksName))
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Check(context.Background(), "99999")
		refused := (*setting.ValueError)(nil)
		if !errors.As(err, &refused) {
			t.Errorf("99999 MHz: %v", err)
		}
		t.Log(err)
	}
}
