package setting

import (
	"context"
	"fmt"
)

// PersistenceName is the last part of the key.
const PersistenceName = "persistence"

func init() {
	register(kind{
		Kind: Kind{Pattern: "gpu/*/" + PersistenceName, Doc: "whether the driver keeps the GPU initialised when no program uses it: on or off"},
		open: func(env *Environment, key string, wild []string) (Setting, error) {
			g, err := newGPU(env, key, wild[0])
			return persistence{g}, err
		},
	})
}

// persistence is a GPU's persistence mode.
//
// nvmlDeviceGetPersistenceMode reads it, nvmlDeviceSetPersistenceMode sets it;
// it is off after a reboot. With it off the driver forgets locked clocks and
// the power limit when the last program leaves the GPU, so a job that has
// those wants it on, set before them and put back after them.
type persistence struct{ gpu }

// Traits implements Setting.
func (persistence) Traits() Traits { return Traits{Needs: WholeGPU, Lifetime: UntilReboot} }

// Check implements Setting. It takes "on" and "off".
func (s persistence) Check(_ context.Context, value string) (string, error) {
	device, err := s.device()
	if err != nil {
		return "", err
	}
	if value != "on" && value != "off" {
		return "", &ValueError{Of: of(device), Value: "persistence " + shown(value), Accepts: "supported on, off"}
	}
	if _, err := device.Persistence(); err != nil {
		return "", err
	}
	return value, nil
}

// Read implements Setting.
func (s persistence) Read(context.Context) (string, error) {
	device, err := s.device()
	if err != nil {
		return "", err
	}
	on, err := device.Persistence()
	if err != nil {
		return "", err
	}
	if on {
		return "on", nil
	}
	return "off", nil
}

// Write implements Setting.
func (s persistence) Write(ctx context.Context, value string) error {
	device, err := s.device()
	if err != nil {
		return err
	}
	if value != "on" && value != "off" {
		return fmt.Errorf("%s: value %q: on or off", s.key, value)
	}
	if err := device.SetPersistence(value == "on"); err != nil {
		return err
	}
	return readBack(ctx, s, of(device)+": persistence", value)
}
