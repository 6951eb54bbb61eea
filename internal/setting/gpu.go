package setting

import (
	"fmt"
	"strings"

	"gputune/internal/mig"
)

// Device is what the settings of a GPU ask of NVIDIA's management library.
// Package nvml implements it. Errors name the GPU by PCI address and the call,
// and wrap this package's: ErrUnsupported, ErrGone (fell off the bus),
// ErrInUse, ErrDenied.
type Device interface {
	// PCI is the address as sysfs writes it, 0000:07:00.0.
	PCI() string

	// SMClocks and MemoryClocks are the clocks that can be locked.
	SMClocks() (Clocks, error)
	MemoryClocks() (Clocks, error)
	// LockSMClocks keeps the SM clock between two values in MHz, until
	// UnlockSMClocks, a reboot or the driver's unloading.
	LockSMClocks(low, high uint32) error
	UnlockSMClocks() error
	// LockMemoryClocks is the same for the memory clock. GPUs before Ampere
	// cannot do it.
	LockMemoryClocks(low, high uint32) error
	UnlockMemoryClocks() error
	CanLockMemoryClocks() (bool, error)

	// ApplicationClocks are memory and graphics clock in MHz that the GPU is
	// asked to run applications at; GPUs have them as long as clocks cannot be
	// locked.
	ApplicationClocks() (memory, graphics uint32, err error)
	SetApplicationClocks(memory, graphics uint32) error

	// PowerLimit is in milliwatts, like the others of power.
	PowerLimit() (uint32, error)
	PowerLimits() (low, high, standard uint32, err error)
	SetPowerLimit(milliwatts uint32) error

	Persistence() (bool, error)
	SetPersistence(on bool) error

	ComputeMode() (ComputeMode, error)
	SetComputeMode(mode ComputeMode) error

	// MIG is how the GPU can be split. ErrUnsupported where the driver cannot.
	MIG() (mig.Card, error)

	// Facts are what can be read and is not changed here.
	Facts() (GPUFacts, error)
}

// gpu is what the settings of a GPU have in common.
type gpu struct {
	env  *Environment
	key  string
	uuid string
}

func newGPU(env *Environment, key, uuid string) (gpu, error) {
	if !strings.HasPrefix(uuid, "GPU-") {
		return gpu{}, fmt.Errorf("%w: %s: a GPU is named by its UUID, GPU-…", ErrUnknownKey, key)
	}
	return gpu{env: env, key: key, uuid: uuid}, nil
}

// Key implements Setting.
func (g gpu) Key() string { return g.key }

func (g gpu) device() (Device, error) {
	device, err := g.env.Device(g.uuid)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", g.key, err)
	}
	return device, nil
}

// of names a GPU at the beginning of an error.
func of(device Device) string { return "gpu " + device.PCI() }

// GPUKey returns the key of a GPU's setting: the UUID, and the last part of
// one of the patterns that Kinds lists.
func GPUKey(uuid, name string) string { return "gpu/" + uuid + "/" + name }
