package setting

import (
	"context"
	"fmt"
)

// SMClocksName is the last part of the key.
const SMClocksName = "clocks.sm"

func init() {
	register(kind{
		Kind: Kind{Pattern: "gpu/*/" + SMClocksName, Doc: "range in MHz that the SM clock is locked to: MIN-MAX or unlocked"},
		open: func(env *Environment, key string, wild []string) (Setting, error) {
			g, err := newGPU(env, key, wild[0])
			return smClocks{g}, err
		},
	})
}

// smClocks locks the clock of a GPU's multiprocessors.
//
// NVML sets the lock with nvmlDeviceSetGpuLockedClocks and takes it away with
// nvmlDeviceResetGpuLockedClocks; nothing reads it. nvmlDeviceGetClock has the
// clock of the moment and application clocks, which are another mechanism;
// nvmlDeviceGetCurrentClocksEventReasons has no bit for a lock. So the value
// before a job is taken to be "unlocked", and putting it back is a reset, which
// is right unless somebody locks clocks outside of gputune; a site that does
// tells the ledger what it locks them to.
//
// The driver forgets the lock when it unloads, at a reboot and, without
// persistence mode, when the last program leaves the GPU. Volta and newer.
type smClocks struct{ gpu }

// Traits implements Setting.
func (smClocks) Traits() Traits {
	return Traits{Needs: WholeGPU, Lifetime: UntilReboot, WriteOnly: true, Neutral: Unlocked}
}

// Check implements Setting. It takes "1200", "1200-1500" and "unlocked".
func (s smClocks) Check(_ context.Context, value string) (string, error) {
	device, err := s.device()
	if err != nil {
		return "", err
	}
	clocks, err := device.SMClocks()
	if err != nil {
		return "", err
	}
	return clocks.lock(of(device), "clocks", value)
}

// Read implements Setting.
func (s smClocks) Read(context.Context) (string, error) {
	return "", fmt.Errorf("%s: %w", s.key, ErrWriteOnly)
}

// Write implements Setting.
func (s smClocks) Write(_ context.Context, value string) error {
	device, err := s.device()
	if err != nil {
		return err
	}
	if value == Unlocked {
		return device.UnlockSMClocks()
	}
	low, high, err := parseLock(value)
	if err != nil {
		return fmt.Errorf("%s: value %q: %w", s.key, value, err)
	}
	return device.LockSMClocks(low, high)
}

// SMClocks returns the clocks that gpu/UUID/clocks.sm can be locked to.
func SMClocks(env *Environment, uuid string) (Clocks, error) {
	device, err := env.Device(uuid)
	if err != nil {
		return Clocks{}, err
	}
	return device.SMClocks()
}
