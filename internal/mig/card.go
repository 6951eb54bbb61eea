package mig

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Card is one GPU that can be split. Package nvml implements it. Errors name the
// GPU, the call and what it was about.
type Card interface {
	// PCI is the address as sysfs writes it, 0000:07:00.0.
	PCI() string
	// Minor is the number of the device file: /dev/nvidia0 is 0.
	Minor() (int, error)

	Mode() (Mode, error)
	// SetMode switches MIG mode. A mode that did not become active, because it
	// needs a reset or the GPU is in use, is an error, although it may come with
	// the next reset.
	SetMode(on bool) error
	// NeedsReset tells whether switching MIG mode resets the GPU: Ampere's do,
	// from Hopper on none.
	NeedsReset() (bool, error)

	// Profiles are the kinds of GPU instances, in NVML's order.
	Profiles() ([]Profile, error)
	// Present are the GPU instances there are, in any order. A GPU that is not in
	// MIG mode is not asked.
	Present() ([]Present, error)
	// Create makes a GPU instance without compute instances and returns its id.
	Create(profile string, at Placement) (id int, err error)
	// Destroy removes a GPU instance that has no compute instances.
	Destroy(id int) error
	// CreatePart makes a compute instance in a GPU instance: the one that is all
	// of it if whole is true, else part.
	CreatePart(id int, part Part, whole bool) error
	// DestroyPart removes a compute instance of a GPU instance, by their ids.
	DestroyPart(id, part int) error

	// Devices are the MIG devices there are, in any order.
	Devices() ([]Device, error)
	// Processes are the programs that NVML sees on the GPU.
	Processes() ([]Process, error)
}

// Present is a GPU instance that is there.
type Present struct {
	Instance
	ID int // NVML's, among the GPU's instances
	// PartIDs are the ids of the compute instances: one for each of Parts, or the
	// one of an instance that is whole.
	PartIDs []int
}

// Device is a MIG device: a compute instance as programs name it.
type Device struct {
	UUID     string // MIG-…
	Instance int    // id of its GPU instance
	Part     int    // id of the compute instance in it
}

// Process is a program on a GPU.
type Process struct {
	PID      int
	Instance int // id of the GPU instance that it uses, -1 for one that uses the whole GPU
}

// Read returns how a card is split at present.
func Read(card Card) (Layout, error) {
	l, _, err := read(card)
	return l, err
}

func read(card Card) (Layout, []Present, error) {
	mode, err := card.Mode()
	if err != nil || !mode.Now {
		return Layout{Mode: mode}, nil, err
	}
	present, err := card.Present()
	if err != nil {
		return Layout{}, nil, err
	}
	l := Layout{Mode: mode}
	for _, p := range present {
		l.Instances = append(l.Instances, p.Instance)
	}
	l = l.sorted()
	// What cannot be written down cannot be put back.
	if _, err := ParseLayout(l.String()); err != nil {
		return Layout{}, nil, fmt.Errorf("gpu %s: %w", card.PCI(), err)
	}
	return l, present, nil
}

// Host is what is needed beside a card to change it.
type Host struct {
	// Root is prepended to /proc and /dev, "/" outside tests.
	Root string
	// InUse tells whether an error of the card means that something holds it.
	InUse func(error) bool
}

// maxRounds is how often a change looks at what it has come to and goes on.
const maxRounds = 4

// Change splits a card as wanted. What is there already in the same place stays,
// with its UUID; all else goes, instances that are in use excepted. It does as
// much as it can after a failure, so that an error is about what it names alone:
// the instances that are missing or left over, and the calls that failed. A call
// that failed once and works when asked again is no error.
func (h Host) Change(ctx context.Context, card Card, want Layout) error {
	is, present, err := read(card)
	if err != nil {
		return err
	}
	for range maxRounds {
		if is.String() == want.String() {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("gpu %s: MIG: %s: %w", card.PCI(), lack(is, want), err)
		}
		r := round{host: h, card: card, present: present}
		r.change(ctx, is, want)
		before := is.String()
		if is, present, err = read(card); err != nil {
			return fmt.Errorf("gpu %s: MIG: what came of the change to %s cannot be read: %w",
				card.PCI(), want, errors.Join(append(r.failed, err)...))
		}
		if is.String() == before {
			return r.fail(is, want)
		}
	}
	return fmt.Errorf("gpu %s: MIG: %s", card.PCI(), lack(is, want))
}

// lack says in which parts a layout is not another.
func lack(is, want Layout) string {
	d := compare(is, want)
	var parts []string
	say := func(what string, list []Instance) {
		for _, i := range list {
			parts = append(parts, i.String()+" "+what)
		}
	}
	if is.Mode != want.Mode {
		parts = append(parts, fmt.Sprintf("mode is %s instead of %s", is.Mode, want.Mode))
	}
	say("is missing", d.add)
	for _, i := range d.fill {
		parts = append(parts, "compute instances "+i.String()+" are missing")
	}
	say("is left over", d.drop)
	for _, i := range d.cut {
		parts = append(parts, "compute instances "+i.String()+" are left over")
	}
	return strings.Join(parts, ", ")
}

// round is one attempt at a change.
type round struct {
	host    Host
	card    Card
	present []Present
	failed  []error
}

// fail is the error of a round that has come to nothing.
func (r *round) fail(is, want Layout) error {
	text := lack(is, want)
	if len(r.failed) == 0 {
		return fmt.Errorf("gpu %s: MIG: %s, although no call failed", r.card.PCI(), text)
	}
	return fmt.Errorf("gpu %s: MIG: %s: %w", r.card.PCI(), text, errors.Join(r.failed...))
}

// took notes what became of a call and tells whether it worked.
func (r *round) took(err error) bool {
	if err == nil {
		return true
	}
	if r.host.InUse != nil && r.host.InUse(err) {
		if holders := r.host.Holders(r.card); holders != "" {
			err = fmt.Errorf("%w, held by %s", err, holders)
		}
	}
	r.failed = append(r.failed, err)
	return false
}

// change destroys what is too much, sets the mode, and makes what is missing.
func (r *round) change(ctx context.Context, is, want Layout) {
	d := compare(is, want)
	clean := true
	for _, i := range append(d.drop, d.cut...) {
		if ctx.Err() != nil {
			return
		}
		_, stays := want.find(i)
		clean = r.destroy(i, !stays) && clean
	}
	if is.Mode != want.Mode {
		if !want.Mode.Now && !clean {
			return // NVML would refuse
		}
		if !r.took(r.card.SetMode(want.Mode.Next)) {
			return
		}
	}
	for _, i := range append(d.add, d.fill...) {
		if ctx.Err() != nil {
			return
		}
		r.create(i)
	}
}

// at returns a GPU instance that is there.
func (r *round) at(i Instance) (Present, bool) {
	for _, p := range r.present {
		if p.sameGPUInstance(i) {
			return p, true
		}
	}
	return Present{}, false
}

// destroy removes the compute instances that i has, and if all is true the GPU
// instance as well.
func (r *round) destroy(i Instance, all bool) bool {
	p, there := r.at(i)
	if !there {
		return false
	}
	clean := true
	for n, part := range p.PartIDs {
		goes := all || p.Whole
		for _, unwanted := range i.Parts {
			goes = goes || !p.Whole && p.Parts[n] == unwanted
		}
		if goes {
			clean = r.took(r.card.DestroyPart(p.ID, part)) && clean
		}
	}
	return clean && (!all || r.took(r.card.Destroy(p.ID)))
}

// create makes the compute instances that i has, and the GPU instance if it is
// not there.
func (r *round) create(i Instance) {
	p, there := r.at(i)
	if !there {
		id, err := r.card.Create(i.Profile, i.Place)
		if !r.took(err) {
			return
		}
		p.ID = id
	}
	if i.Whole {
		r.took(r.card.CreatePart(p.ID, Part{}, true))
	}
	for _, part := range i.Parts {
		r.took(r.card.CreatePart(p.ID, part, false))
	}
}
