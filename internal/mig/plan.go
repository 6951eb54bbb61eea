package mig

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Plan is how a card is to be split for a job.
type Plan struct {
	Layout Layout
	// Order has the instances as they were asked for, which is how they are dealt.
	Order []Instance
}

// ErrReset is a card whose MIG mode cannot be switched without resetting it.
var ErrReset = errors.New("switching MIG mode resets this GPU, which the site does not allow")

// NewPlan decides how to split a card. What it cannot have is a *FitError. A card
// that is to be reset for it is ErrReset unless reset is true; one that waits for
// a reset already is an error in any case, since what it would be put back to is
// not what it is. It changes nothing.
func NewPlan(card Card, wants []Want, reset bool) (Plan, error) {
	mode, err := card.Mode()
	if err != nil {
		return Plan{}, err
	}
	if mode.Now != mode.Next {
		return Plan{}, fmt.Errorf("gpu %s: MIG mode is %s: it waits for a reset of the GPU", card.PCI(), mode)
	}
	profiles, err := card.Profiles()
	if err != nil {
		return Plan{}, err
	}
	order, err := Place(profiles, wants)
	if err != nil {
		return Plan{}, err
	}
	if !mode.Now && !reset {
		needs, err := card.NeedsReset()
		if err != nil {
			return Plan{}, err
		}
		if needs {
			return Plan{}, fmt.Errorf("gpu %s: %w", card.PCI(), ErrReset)
		}
	}
	return Plan{Layout{Mode{true, true}, order}.sorted(), order}, nil
}

// Devices returns the UUIDs of a card's MIG devices in the order in which a
// plan's instances were asked for. A card that does not have the plan's layout is
// an error.
func (p Plan) Devices(card Card) ([]string, error) {
	is, present, err := read(card)
	if err != nil {
		return nil, err
	}
	if is.String() != p.Layout.String() {
		return nil, fmt.Errorf("gpu %s: MIG is %s instead of %s", card.PCI(), is, p.Layout)
	}
	devices, err := card.Devices()
	if err != nil {
		return nil, err
	}
	rank := map[int]int{}
	for _, i := range present {
		rank[i.ID] = slices.IndexFunc(p.Order, i.sameGPUInstance)
	}
	if len(devices) != len(p.Order) {
		return nil, fmt.Errorf("gpu %s: %d MIG devices for %d instances", card.PCI(), len(devices), len(p.Order))
	}
	slices.SortFunc(devices, func(a, b Device) int { return cmp.Compare(rank[a.Instance], rank[b.Instance]) })
	uuids := make([]string, len(devices))
	for i, d := range devices {
		uuids[i] = d.UUID
	}
	return uuids, nil
}
