package setting

import (
	"context"
	"errors"
	"fmt"

	"gputune/internal/mig"
)

// MIGName is the last part of the key.
const MIGName = "mig"

func init() {
	register(kind{
		Kind: Kind{
			Pattern: "gpu/*/" + MIGName,
			Doc:     "how the GPU is split into MIG devices: off, on, or on:PROFILE@START:SIZE,… as package mig writes it",
		},
		open: func(env *Environment, key string, wild []string) (Setting, error) {
			g, err := newGPU(env, key, wild[0])
			host := mig.Host{Root: env.Path("/"), InUse: func(err error) bool { return errors.Is(err, ErrInUse) }}
			return migLayout{g, host}, err
		},
	})
}

// migLayout is a GPU's MIG mode, its GPU instances with their places, and their
// compute instances. Package mig says what the value looks like and why a UUID
// is not in it.
//
// nvmlDeviceGetMigMode, nvmlDeviceGetGpuInstances and
// nvmlGpuInstanceGetComputeInstances read it. The mode survives a reboot on
// Ampere, whose cards have it in their InfoROM, and is off after one from Hopper
// on; instances survive neither a reboot nor a reset (NVIDIA's guide to MIG). So
// what a reboot leaves is judged like what a program leaves that was killed.
//
// Switching the mode takes other settings with it where it resets the GPU, and
// a split GPU has no compute mode of its own, so that this one is to be set
// before them and put back after them.
type migLayout struct {
	gpu
	host mig.Host
}

var _ Stepwise = migLayout{}

// Traits implements Setting. A change takes a call for each instance.
func (migLayout) Traits() Traits {
	return Traits{Needs: WholeGPU, Lifetime: Kept, Loose: true}
}

func (s migLayout) card() (mig.Card, error) {
	device, err := s.device()
	if err != nil {
		return nil, err
	}
	return device.MIG()
}

// Check implements Setting. It takes what mig.Layout writes. A layout that the
// GPU has no room for is a *ValueError; one that would take instances away that
// somebody uses is ErrInUse and names who.
func (s migLayout) Check(_ context.Context, value string) (string, error) {
	want, err := mig.ParseLayout(value)
	if err != nil {
		return "", err
	}
	card, err := s.card()
	if err != nil {
		return "", err
	}
	if _, err := card.Mode(); err != nil {
		return "", err
	}
	if len(want.Instances) > 0 {
		profiles, err := card.Profiles()
		if err != nil {
			return "", err
		}
		if err := want.Fits(profiles); err != nil {
			return "", &ValueError{Of: "gpu " + card.PCI(), Value: "MIG " + value, Accepts: err.Error()}
		}
	}
	busy, err := s.host.Busy(card, want)
	if err != nil && !errors.Is(err, ErrUnsupported) {
		return "", err
	}
	if busy != "" {
		return "", fmt.Errorf("gpu %s: MIG: it is %w by %s", card.PCI(), ErrInUse, busy)
	}
	return value, nil
}

// Read implements Setting.
func (s migLayout) Read(context.Context) (string, error) {
	card, err := s.card()
	if err != nil {
		return "", err
	}
	is, err := mig.Read(card)
	if err != nil {
		return "", err
	}
	return is.String(), nil
}

// Write implements Setting. Success means that the GPU was read again and has
// the layout; an error names the instances that it lacks or has too many.
func (s migLayout) Write(ctx context.Context, value string) error {
	want, err := mig.ParseLayout(value)
	if err != nil {
		return err
	}
	card, err := s.card()
	if err != nil {
		return err
	}
	return s.host.Change(ctx, card, want)
}

// Between implements Stepwise.
func (migLayout) Between(from, to, is string) bool {
	var layouts [3]mig.Layout
	for i, text := range []string{from, to, is} {
		var err error
		if layouts[i], err = mig.ParseLayout(text); err != nil {
			return false
		}
	}
	return mig.Between(layouts[0], layouts[1], layouts[2])
}

// MIGPlan decides how the GPU with this UUID is split as wanted. The plan's
// layout is the value for gpu/UUID/mig; a layout that the GPU has no room for is a
// *ValueError whose Nearest is what would fit, as the user can write it. reset
// says whether the site lets a GPU be reset for it.
func MIGPlan(env *Environment, uuid string, wants []mig.Want, reset bool) (mig.Plan, error) {
	card, err := migCard(env, uuid)
	if err != nil {
		return mig.Plan{}, err
	}
	plan, err := mig.NewPlan(card, wants, reset)
	if fit := (*mig.FitError)(nil); errors.As(err, &fit) {
		return mig.Plan{}, &ValueError{
			Of: "gpu " + card.PCI(), Value: "MIG " + shown(mig.Text(wants)), Accepts: fit.Reason, Nearest: mig.Text(fit.Fits),
		}
	}
	return plan, err
}

// MIGDevices returns the UUIDs of the MIG devices of a GPU that was split by a
// plan, in the order in which they are dealt to tasks.
func MIGDevices(env *Environment, uuid string, plan mig.Plan) ([]string, error) {
	card, err := migCard(env, uuid)
	if err != nil {
		return nil, err
	}
	return plan.Devices(card)
}

func migCard(env *Environment, uuid string) (mig.Card, error) {
	device, err := env.Device(uuid)
	if err != nil {
		return nil, err
	}
	return device.MIG()
}
