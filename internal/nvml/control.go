package nvml

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gputune/internal/setting"
	"gputune/internal/topology"
)

// Open loads and initialises the library for the settings of GPUs. It stays so
// until the result is closed. A node without the library is
// setting.ErrUnsupported.
func (l *Library) Open() (setting.Devices, error) {
	ret := l.api.Init()
	if ret == nvml.ERROR_LIBRARY_NOT_FOUND {
		return nil, fmt.Errorf("NVML: libnvidia-ml.so.1 is %w on this node", setting.ErrUnsupported)
	}
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("NVML: initialising: %w", failure(ret))
	}
	return &session{api: l.api, clocks: supportedClocks}, nil
}

// session is the library between Init and Shutdown.
type session struct {
	api nvml.Interface
	// clocks lists a GPU's supported memory clocks, or the graphics clocks
	// beside one memory clock, in MHz.
	clocks func(uuid string, memory uint32) ([]uint32, nvml.Return)
}

// Device implements setting.Devices.
func (s *session) Device(uuid string) (setting.Device, error) {
	handle, ret := s.api.DeviceGetHandleByUUID(uuid)
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("NVML: GPU %s: %w", uuid, failure(ret))
	}
	info, ret := handle.GetPciInfo()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("NVML: PCI address of GPU %s: %w", uuid, failure(ret))
	}
	pci, err := topology.NormalizePCI(text(info.BusId[:]))
	if err != nil {
		return nil, fmt.Errorf("NVML: GPU %s: %w", uuid, err)
	}
	return &device{session: s, handle: handle, uuid: uuid, pci: pci}, nil
}

// Close implements setting.Devices.
func (s *session) Close() error {
	if ret := s.api.Shutdown(); ret != nvml.SUCCESS {
		return fmt.Errorf("NVML: shutting down: %w", failure(ret))
	}
	return nil
}

// has tells whether the library has a function; calling one that is missing
// ends the process.
func (s *session) has(function string) bool {
	return s.api.Extensions().LookupSymbol(function) == nil
}

// device is one GPU of a session.
type device struct {
	session   *session
	handle    nvml.Device
	uuid, pci string
}

var _ setting.Device = (*device)(nil)

// failure turns an answer of NVML into an error that says which kind it is.
func failure(ret nvml.Return) error {
	var kind error
	switch ret {
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND:
		kind = setting.ErrUnsupported
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_NOT_FOUND, nvml.ERROR_GPU_NOT_FOUND, nvml.ERROR_RESET_REQUIRED:
		kind = setting.ErrGone
	case nvml.ERROR_IN_USE:
		kind = setting.ErrInUse
	case nvml.ERROR_NO_PERMISSION:
		kind = setting.ErrDenied
	case nvml.ERROR_TIMEOUT, nvml.ERROR_UNKNOWN, nvml.ERROR_NOT_READY, nvml.ERROR_MEMORY, nvml.ERROR_INSUFFICIENT_RESOURCES,
		nvml.ERROR_OPERATING_SYSTEM, nvml.ERROR_IRQ_ISSUE:
		return passing{errors.New(ret.Error())}
	default:
		return errors.New(ret.Error())
	}
	return fmt.Errorf("%w (NVML: %s)", kind, ret.Error())
}

// passing is setting.ErrPassing with NVML's own words alone.
type passing struct{ error }

// Is implements the interface of errors.Is.
func (passing) Is(target error) bool { return target == setting.ErrPassing }

// done is the result of a call: nil, or an error that says what was being done
// with which GPU.
func (d *device) done(doing string, ret nvml.Return) error {
	if ret == nvml.SUCCESS {
		return nil
	}
	return fmt.Errorf("gpu %s: %s: %w", d.pci, doing, failure(ret))
}

// call is done for a function that some drivers lack.
func (d *device) call(doing, function string, do func() nvml.Return) error {
	if !d.session.has(function) {
		return d.done(doing, nvml.ERROR_FUNCTION_NOT_FOUND)
	}
	return d.done(doing, do())
}

// PCI implements setting.Device.
func (d *device) PCI() string { return d.pci }

// MemoryClocks implements setting.Device.
func (d *device) MemoryClocks() (setting.Clocks, error) {
	steps, ret := d.session.clocks(d.uuid, 0)
	if err := d.done("supported memory clocks", ret); err != nil {
		return setting.Clocks{}, err
	}
	return setting.NewClocks(steps), nil
}

// SMClocks implements setting.Device. They are those beside the highest memory
// clock: the SM clock is the graphics clock on all GPUs that can lock it.
func (d *device) SMClocks() (setting.Clocks, error) {
	memory, err := d.MemoryClocks()
	if err != nil {
		return setting.Clocks{}, err
	}
	steps, ret := d.session.clocks(d.uuid, memory.High)
	if err := d.done("supported clocks", ret); err != nil {
		return setting.Clocks{}, err
	}
	return setting.NewClocks(steps), nil
}

// LockSMClocks implements setting.Device.
func (d *device) LockSMClocks(low, high uint32) error {
	return d.call(fmt.Sprintf("lock clocks to %d–%d MHz", low, high), "nvmlDeviceSetGpuLockedClocks",
		func() nvml.Return { return d.handle.SetGpuLockedClocks(low, high) })
}

// UnlockSMClocks implements setting.Device.
func (d *device) UnlockSMClocks() error {
	return d.call("unlock clocks", "nvmlDeviceResetGpuLockedClocks", d.handle.ResetGpuLockedClocks)
}

// CanLockMemoryClocks implements setting.Device. NVML's header promises the
// lock from Ampere on; asking it otherwise means setting it.
func (d *device) CanLockMemoryClocks() (bool, error) {
	if !d.session.has("nvmlDeviceSetMemoryLockedClocks") || !d.session.has("nvmlDeviceGetArchitecture") {
		return false, nil
	}
	architecture, ret := d.handle.GetArchitecture()
	if ret == nvml.ERROR_NOT_SUPPORTED {
		return false, nil
	}
	return architecture >= nvml.DEVICE_ARCH_AMPERE, d.done("architecture", ret)
}

// LockMemoryClocks implements setting.Device.
func (d *device) LockMemoryClocks(low, high uint32) error {
	return d.call(fmt.Sprintf("lock memory clocks to %d–%d MHz", low, high), "nvmlDeviceSetMemoryLockedClocks",
		func() nvml.Return { return d.handle.SetMemoryLockedClocks(low, high) })
}

// UnlockMemoryClocks implements setting.Device.
func (d *device) UnlockMemoryClocks() error {
	return d.call("unlock memory clocks", "nvmlDeviceResetMemoryLockedClocks", d.handle.ResetMemoryLockedClocks)
}

// ApplicationClocks implements setting.Device.
func (d *device) ApplicationClocks() (memory, graphics uint32, err error) {
	get := d.handle.GetApplicationsClock // deprecated for newer GPUs, which are not asked
	err = d.call("application clocks", "nvmlDeviceGetApplicationsClock", func() (ret nvml.Return) {
		if memory, ret = get(nvml.CLOCK_MEM); ret == nvml.SUCCESS {
			graphics, ret = get(nvml.CLOCK_GRAPHICS)
		}
		return ret
	})
	return memory, graphics, err
}

// SetApplicationClocks implements setting.Device.
func (d *device) SetApplicationClocks(memory, graphics uint32) error {
	return d.call(fmt.Sprintf("set application clocks to %d,%d MHz", memory, graphics), "nvmlDeviceSetApplicationsClocks",
		func() nvml.Return {
			return d.handle.SetApplicationsClocks(memory, graphics)
		})
}

// PowerLimit implements setting.Device.
func (d *device) PowerLimit() (uint32, error) {
	limit, ret := d.handle.GetPowerManagementLimit()
	return limit, d.done("power limit", ret)
}

// PowerLimits implements setting.Device.
func (d *device) PowerLimits() (low, high, standard uint32, err error) {
	low, high, ret := d.handle.GetPowerManagementLimitConstraints()
	if ret == nvml.SUCCESS {
		standard, ret = d.handle.GetPowerManagementDefaultLimit()
	}
	return low, high, standard, d.done("possible power limits", ret)
}

// SetPowerLimit implements setting.Device.
func (d *device) SetPowerLimit(milliwatts uint32) error {
	return d.done(fmt.Sprintf("set power limit to %d mW", milliwatts), d.handle.SetPowerManagementLimit(milliwatts))
}

// Persistence implements setting.Device.
func (d *device) Persistence() (bool, error) {
	mode, ret := d.handle.GetPersistenceMode()
	return mode == nvml.FEATURE_ENABLED, d.done("persistence mode", ret)
}

// SetPersistence implements setting.Device.
func (d *device) SetPersistence(on bool) error {
	doing, mode := "switch persistence off", nvml.FEATURE_DISABLED
	if on {
		doing, mode = "switch persistence on", nvml.FEATURE_ENABLED
	}
	if err := d.done(doing, d.handle.SetPersistenceMode(mode)); err != nil || on {
		return err
	}
	// On a GPU whose memory is a NUMA node the handle is of no use after
	// this (nvml.h).
	handle, ret := d.session.api.DeviceGetHandleByUUID(d.uuid)
	if ret == nvml.SUCCESS {
		d.handle = handle
	}
	return d.done("find the GPU again with persistence off", ret)
}

// computeModes are NVML's, by ours.
var computeModes = map[setting.ComputeMode]nvml.ComputeMode{
	setting.ComputeShared:          nvml.COMPUTEMODE_DEFAULT,
	setting.ComputeExclusiveThread: nvml.COMPUTEMODE_EXCLUSIVE_THREAD,
	setting.ComputeProhibited:      nvml.COMPUTEMODE_PROHIBITED,
	setting.ComputeExclusive:       nvml.COMPUTEMODE_EXCLUSIVE_PROCESS,
}

// ComputeMode implements setting.Device.
func (d *device) ComputeMode() (setting.ComputeMode, error) {
	mode, ret := d.handle.GetComputeMode()
	if err := d.done("compute mode", ret); err != nil {
		return "", err
	}
	for ours, theirs := range computeModes {
		if theirs == mode {
			return ours, nil
		}
	}
	return "", fmt.Errorf("gpu %s: compute mode: NVML answered %d, which is none known", d.pci, mode)
}

// SetComputeMode implements setting.Device.
func (d *device) SetComputeMode(mode setting.ComputeMode) error {
	theirs, ok := computeModes[mode]
	if !ok {
		return fmt.Errorf("gpu %s: compute mode %q is none that NVML has", d.pci, mode)
	}
	return d.done("set compute mode to "+string(mode), d.handle.SetComputeMode(theirs))
}
