// Package mig knows how an NVIDIA GPU is split into MIG devices: what a split
// looks like as text, whether one fits a card, which calls lead from one to
// another, and what of a half-made one is whose. Nothing here loads NVML; a
// Card does what it is told.
//
// A GPU in MIG mode is cut into GPU instances, which own memory slices and
// engines, and each of those into compute instances, which own multiprocessors.
// A program uses one compute instance: that is a MIG device, and has a UUID.
//
// # UUIDs
//
// An instance that is destroyed and made again at the same place with the same
// profile need not have the UUID that it had. NVIDIA's open kernel modules hash
// it from the chip, its serial number, the id of the GPU instance and the engine
// that the compute instance was given (nvGenerateSmcUuid in
// src/common/uuid and kernel_mig_manager.c), so that it is mostly the same, but
// the driver is free in the last two, nothing in nvml.h promises them, and a
// driver of another release may do otherwise. What is put back is therefore
// profile and placement, and who wrote a UUID down before has to read it again.
package mig

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Mode is whether a GPU is in MIG mode. Now and Next differ while a card that
// has to be reset for it waits for that.
type Mode struct {
	Now, Next bool
}

// String returns "off", "on", or "off>on" and "on>off" for what waits for a
// reset.
func (m Mode) String() string {
	word := func(on bool) string {
		if on {
			return "on"
		}
		return "off"
	}
	if m.Now == m.Next {
		return word(m.Now)
	}
	return word(m.Now) + ">" + word(m.Next)
}

// Placement is where an instance is, in slices: of memory for a GPU instance, of
// its GPU instance's compute slices for a compute instance.
type Placement struct {
	Start, Size int
}

// String returns "4:2": two slices from the fifth on, as nvidia-smi writes it.
func (p Placement) String() string { return fmt.Sprintf("%d:%d", p.Start, p.Size) }

func (p Placement) overlaps(q Placement) bool {
	return p.Start < q.Start+q.Size && q.Start < p.Start+p.Size
}

// Part is a compute instance: the name of its profile and where it is.
type Part struct {
	Profile string // 1c.3g.71gb; 3g.71gb for one that is the whole instance
	Place   Placement
}

// String returns "1c.3g.71gb@0:1".
func (p Part) String() string { return p.Profile + "@" + p.Place.String() }

// Instance is a GPU instance with its compute instances in order of placement.
type Instance struct {
	Profile string // 1g.18gb+me
	Place   Placement
	// Whole says that it has the one compute instance that is all of it, which
	// is what nvidia-smi makes with -C. Parts is empty then.
	Whole bool
	Parts []Part
}

// String returns "1g.18gb+me@0:1" for a whole one, else the compute instances in
// brackets: "3g.71gb@4:4[1c.3g.71gb@0:1/2c.3g.71gb@1:2]".
func (i Instance) String() string {
	if i.Whole {
		return i.name()
	}
	parts := make([]string, len(i.Parts))
	for n, part := range i.Parts {
		parts[n] = part.String()
	}
	return i.name() + "[" + strings.Join(parts, "/") + "]"
}

// name is String without compute instances.
func (i Instance) name() string { return i.Profile + "@" + i.Place.String() }

// sameGPUInstance tells whether two are the same but for their compute
// instances.
func (i Instance) sameGPUInstance(o Instance) bool {
	return i.Profile == o.Profile && i.Place == o.Place
}

// Layout is how a GPU is split: the mode, and the instances in order of
// placement. A GPU whose mode is off has none.
type Layout struct {
	Mode      Mode
	Instances []Instance
}

// String returns the layout's one text: "off", "on", or
// "on:1g.18gb@0:1,3g.71gb@4:4[]". Two layouts are the same exactly if their
// texts are.
func (l Layout) String() string {
	if len(l.Instances) == 0 {
		return l.Mode.String()
	}
	texts := make([]string, len(l.Instances))
	for i, instance := range l.Instances {
		texts[i] = instance.String()
	}
	return l.Mode.String() + ":" + strings.Join(texts, ",")
}

// sorted returns the layout with all in order of placement.
func (l Layout) sorted() Layout {
	l.Instances = slices.Clone(l.Instances)
	for i := range l.Instances {
		l.Instances[i].Parts = slices.SortedFunc(slices.Values(l.Instances[i].Parts), func(a, b Part) int {
			return cmp.Or(cmp.Compare(a.Place.Start, b.Place.Start), cmp.Compare(a.String(), b.String()))
		})
	}
	slices.SortFunc(l.Instances, func(a, b Instance) int {
		return cmp.Or(cmp.Compare(a.Place.Start, b.Place.Start), cmp.Compare(a.String(), b.String()))
	})
	return l
}

// find returns the GPU instance at the same place with the same profile.
func (l Layout) find(want Instance) (Instance, bool) {
	i := slices.IndexFunc(l.Instances, want.sameGPUInstance)
	if i < 0 {
		return Instance{}, false
	}
	return l.Instances[i], true
}

// Bounds of a layout's text. A GPU has eight slices of memory at most today.
const (
	maxText  = 4096
	maxSlice = 64
)

// The forms of names and places. NVIDIA's names are "1g.18gb" with attributes
// such as "+me", "-me", "+gfx", "+me.all", and "1c." before them for a part.
var (
	profileForm = pattern(`^(?:[1-9][0-9]?c\.)?[1-9][0-9]?g\.[1-9][0-9]{0,3}gb(?:[+-][a-z][a-z.]{0,15}){0,4}$`)
	placeForm   = pattern(`^(0|[1-9][0-9]?):([1-9][0-9]?)$`)
)

// ParseLayout reads what Layout.String has written. The text comes from a file
// that root alone can write, and is checked all the same.
func ParseLayout(text string) (Layout, error) {
	if len(text) > maxText {
		return Layout{}, fmt.Errorf("MIG layout of %d bytes: at most %d", len(text), maxText)
	}
	mode, rest, has := strings.Cut(text, ":")
	var l Layout
	var err error
	if l.Mode, err = parseMode(mode); err != nil {
		return Layout{}, err
	}
	if !has {
		return l, nil
	}
	for item := range strings.SplitSeq(rest, ",") {
		instance, err := parseInstance(item)
		if err != nil {
			return Layout{}, fmt.Errorf("MIG layout: %q: %w", item, err)
		}
		l.Instances = append(l.Instances, instance)
	}
	if !l.Mode.Now {
		return Layout{}, fmt.Errorf("MIG layout: %q: instances without MIG mode", text)
	}
	if sorted := l.sorted(); sorted.String() != text {
		return Layout{}, fmt.Errorf("MIG layout: %q: want %q", text, sorted)
	}
	return l, nil
}

func parseMode(text string) (Mode, error) {
	words := map[string]bool{"on": true, "off": false}
	first, second, waits := strings.Cut(text, ">")
	if !waits {
		second = first
	}
	now, known := words[first]
	next, knownToo := words[second]
	if !known || !knownToo || waits && now == next {
		return Mode{}, fmt.Errorf("MIG mode %q: want on, off, off>on or on>off", text)
	}
	return Mode{now, next}, nil
}

func parseInstance(text string) (Instance, error) {
	name, parts, split := strings.Cut(text, "[")
	profile, place, err := parsePlaced(name)
	if err != nil {
		return Instance{}, err
	}
	i := Instance{Profile: profile, Place: place, Whole: !split}
	if !split {
		return i, nil
	}
	parts, closed := strings.CutSuffix(parts, "]")
	if !closed {
		return Instance{}, errors.New("no ] at its end")
	}
	if parts == "" {
		return i, nil
	}
	for part := range strings.SplitSeq(parts, "/") {
		profile, place, err := parsePlaced(part)
		if err != nil {
			return Instance{}, err
		}
		i.Parts = append(i.Parts, Part{profile, place})
	}
	return i, nil
}

// parsePlaced reads "1g.18gb@0:1".
func parsePlaced(text string) (string, Placement, error) {
	profile, at, _ := strings.Cut(text, "@")
	place := placeForm().FindStringSubmatch(at)
	if !profileForm().MatchString(profile) || place == nil {
		return "", Placement{}, errors.New("want PROFILE@START:SIZE")
	}
	start, err := strconv.Atoi(place[1])
	if err != nil {
		return "", Placement{}, err
	}
	size, err := strconv.Atoi(place[2])
	if err != nil {
		return "", Placement{}, err
	}
	if start+size > maxSlice {
		return "", Placement{}, fmt.Errorf("slices up to %d: at most %d", start+size, maxSlice)
	}
	return profile, Placement{start, size}, nil
}
