package setting

import (
	"context"
	"fmt"
)

// MemoryClocksName is the last part of the key.
const MemoryClocksName = "clocks.memory"

func init() {
	register(kind{
		Kind: Kind{Pattern: "gpu/*/" + MemoryClocksName, Doc: "range in MHz that the memory clock is locked to: MIN-MAX or unlocked"},
		open: func(env *Environment, key string, wild []string) (Setting, error) {
			g, err := newGPU(env, key, wild[0])
			return memoryClocks{g}, err
		},
	})
}

// memoryClocks locks the clock of a GPU's memory.
//
// As with the SM clock, nvmlDeviceSetMemoryLockedClocks and
// nvmlDeviceResetMemoryLockedClocks are all there is, and nothing reads the
// lock: the value before a job is taken to be "unlocked". The driver forgets it
// as it forgets the other. Ampere and newer; older GPUs have
// gpu/UUID/clocks.application instead, and MemoryClock chooses between them.
type memoryClocks struct{ gpu }

// Traits implements Setting.
func (memoryClocks) Traits() Traits {
	return Traits{Needs: WholeGPU, Lifetime: UntilReboot, WriteOnly: true, Neutral: Unlocked}
}

// Check implements Setting. It takes "2619", "1593-2619" and "unlocked".
func (s memoryClocks) Check(_ context.Context, value string) (string, error) {
	device, err := s.device()
	if err != nil {
		return "", err
	}
	can, err := device.CanLockMemoryClocks()
	if err != nil {
		return "", err
	}
	if !can {
		return "", fmt.Errorf("%s: memory clocks: locking is %w", of(device), ErrUnsupported)
	}
	clocks, err := device.MemoryClocks()
	if err != nil {
		return "", err
	}
	return clocks.lock(of(device), "memory clocks", value)
}

// Read implements Setting.
func (s memoryClocks) Read(context.Context) (string, error) {
	return "", fmt.Errorf("%s: %w", s.key, ErrWriteOnly)
}

// Write implements Setting.
func (s memoryClocks) Write(_ context.Context, value string) error {
	device, err := s.device()
	if err != nil {
		return err
	}
	if value == Unlocked {
		return device.UnlockMemoryClocks()
	}
	low, high, err := parseLock(value)
	if err != nil {
		return fmt.Errorf("%s: value %q: %w", s.key, value, err)
	}
	return device.LockMemoryClocks(low, high)
}

// MemoryClocks returns the clocks that a GPU's memory can run at.
func MemoryClocks(env *Environment, uuid string) (Clocks, error) {
	device, err := env.Device(uuid)
	if err != nil {
		return Clocks{}, err
	}
	return device.MemoryClocks()
}

// MemoryClock returns the setting that holds the memory clock of a GPU:
// clocks.memory where the GPU can lock it, else clocks.application.
func MemoryClock(env *Environment, uuid string) (Setting, error) {
	device, err := env.Device(uuid)
	if err != nil {
		return nil, err
	}
	can, err := device.CanLockMemoryClocks()
	if err != nil {
		return nil, err
	}
	name := ApplicationClocksName
	if can {
		name = MemoryClocksName
	}
	return Parse(env, GPUKey(uuid, name))
}
