package setting

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// ComputeModeName is the last part of the key.
const ComputeModeName = "compute.mode"

// ComputeMode is how many programs may have a context on a GPU.
type ComputeMode string

// Compute modes, with NVIDIA's names.
const (
	ComputeShared          ComputeMode = "shared"           // DEFAULT: any number of programs
	ComputeExclusive       ComputeMode = "exclusive"        // EXCLUSIVE_PROCESS: one program
	ComputeProhibited      ComputeMode = "prohibited"       // PROHIBITED: none
	ComputeExclusiveThread ComputeMode = "exclusive-thread" // EXCLUSIVE_THREAD: of old drivers, only ever read
)

// settableModes are the modes that present drivers take.
var settableModes = []string{string(ComputeShared), string(ComputeExclusive), string(ComputeProhibited)}

func init() {
	register(kind{
		Kind: Kind{Pattern: "gpu/*/" + ComputeModeName, Doc: "how many programs may use the GPU: " + strings.Join(settableModes, ", ")},
		open: func(env *Environment, key string, wild []string) (Setting, error) {
			g, err := newGPU(env, key, wild[0])
			return computeMode{g}, err
		},
	})
}

// computeMode is a GPU's compute mode.
//
// nvmlDeviceGetComputeMode reads it, nvmlDeviceSetComputeMode sets it; on
// Linux it is "shared" again after a reboot. A GPU that is split into MIG
// devices has none of its own.
type computeMode struct{ gpu }

// Traits implements Setting.
func (computeMode) Traits() Traits { return Traits{Needs: WholeGPU, Lifetime: UntilReboot} }

// Check implements Setting. It takes "shared", "exclusive" and "prohibited".
func (s computeMode) Check(_ context.Context, value string) (string, error) {
	device, err := s.device()
	if err != nil {
		return "", err
	}
	if !slices.Contains(settableModes, value) {
		return "", &ValueError{
			Of: of(device), Value: "compute mode " + shown(value), Accepts: "supported " + strings.Join(settableModes, ", "),
		}
	}
	if _, err := device.ComputeMode(); err != nil {
		return "", err
	}
	return value, nil
}

// Read implements Setting.
func (s computeMode) Read(context.Context) (string, error) {
	device, err := s.device()
	if err != nil {
		return "", err
	}
	mode, err := device.ComputeMode()
	return string(mode), err
}

// Write implements Setting.
func (s computeMode) Write(ctx context.Context, value string) error {
	device, err := s.device()
	if err != nil {
		return err
	}
	if !slices.Contains(settableModes, value) && value != string(ComputeExclusiveThread) {
		return fmt.Errorf("%s: value %q: %s", s.key, value, strings.Join(settableModes, ", "))
	}
	if err := device.SetComputeMode(ComputeMode(value)); err != nil {
		return err
	}
	return readBack(ctx, s, of(device)+": compute mode", value)
}
