package mig

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Profile is a kind of GPU instance that a card can have. Sources:
// nvmlDeviceGetGpuInstanceProfileInfoV,
// nvmlDeviceGetGpuInstancePossiblePlacements_v2; both answer in either mode.
type Profile struct {
	ID     uint32 // NVML's, unique on the card
	Name   string // 1g.18gb+me
	Count  int    // how many the card can have at once
	Slices int    // compute slices
	Places []Placement
}

// Want is a number of GPU instances of one profile.
type Want struct {
	Profile string
	Count   int
}

// String returns "1g.18gb:3", or "1g.18gb" for one.
func (w Want) String() string {
	if w.Count == 1 {
		return w.Profile
	}
	return fmt.Sprintf("%s:%d", w.Profile, w.Count)
}

// Text returns wants as the option has them: "3g.71gb+1g.18gb:3".
func Text(wants []Want) string {
	texts := make([]string, len(wants))
	for i, want := range wants {
		texts[i] = want.String()
	}
	return strings.Join(texts, "+")
}

// FitError is a layout that a card cannot have.
type FitError struct {
	Reason string // what would work, after what was asked for and a colon
	Fits   []Want // as much of what was asked for as there is room for, nil: nothing
}

// Error returns the reason and what would fit.
func (e *FitError) Error() string {
	if len(e.Fits) == 0 {
		return e.Reason
	}
	return e.Reason + "; would fit: " + Text(e.Fits)
}

// Place puts instances on a card that has none, each with the one compute
// instance that is all of it, in the order in which they are wanted. Of all
// placements that fit it takes the first, counting by the first instance, then by
// the second, and so on: the same card and wants always give the same. What
// cannot fit is a *FitError.
func Place(profiles []Profile, wants []Want) ([]Instance, error) {
	byName := map[string]Profile{}
	for _, p := range profiles {
		byName[p.Name] = p
	}
	var list []Profile
	for _, want := range wants {
		p, known := byName[want.Profile]
		if !known {
			return nil, &FitError{Reason: "the GPU has " + Table(profiles)}
		}
		for range want.Count {
			list = append(list, p)
		}
	}
	if len(list) == 0 {
		return nil, errors.New("no MIG instance is wanted")
	}
	if placed := place(list); placed != nil {
		return placed, nil
	}
	return nil, noRoom(list, wants)
}

// Fits returns an error unless a card with these profiles can have the layout.
func (l Layout) Fits(profiles []Profile) error {
	count := map[string]int{}
	for n, i := range l.Instances {
		at := slices.IndexFunc(profiles, func(p Profile) bool { return p.Name == i.Profile })
		if at < 0 {
			return fmt.Errorf("%s: the GPU has %s", i.Profile, Table(profiles))
		}
		p := profiles[at]
		if !slices.Contains(p.Places, i.Place) {
			return fmt.Errorf("%s: %s can be at %s", i, p.Name, placesText(p.Places))
		}
		if count[p.Name]++; count[p.Name] > p.Count {
			return fmt.Errorf("%s: %s has room for %d", i, p.Name, p.Count)
		}
		for _, other := range l.Instances[:n] {
			if other.Place.overlaps(i.Place) {
				return fmt.Errorf("%s is in the place of %s", i, other)
			}
		}
	}
	return nil
}

func placesText(places []Placement) string {
	texts := make([]string, len(places))
	for i, p := range places {
		texts[i] = p.String()
	}
	return strings.Join(texts, ", ")
}

// Table lists a card's profiles and how many of each it can have alone.
func Table(profiles []Profile) string {
	names := make([]string, len(profiles))
	for i, p := range profiles {
		names[i] = fmt.Sprintf("%s:%d", p.Name, p.Count)
	}
	return strings.Join(names, ", ")
}

// noRoom says what of a list would fit: each instance that still fits beside
// those before it.
func noRoom(list []Profile, wants []Want) *FitError {
	var kept []Profile
	for _, p := range list {
		if place(append(slices.Clone(kept), p)) != nil {
			kept = append(kept, p)
		}
	}
	fail := &FitError{}
	for i, p := range kept {
		if i > 0 && kept[i-1].Name == p.Name {
			fail.Fits[len(fail.Fits)-1].Count++
			continue
		}
		fail.Fits = append(fail.Fits, Want{p.Name, 1})
	}
	switch {
	case len(wants) == 1:
		fail.Reason = fmt.Sprintf("has room for %d", len(kept))
	default:
		fail.Reason = fmt.Sprintf("has room for %d of the %d instances", len(kept), len(list))
	}
	return fail
}

// place returns the first placement of a list that fits, nil if none does.
func place(list []Profile) []Instance {
	count := map[string]int{}
	for _, p := range list {
		if count[p.Name]++; count[p.Name] > p.Count {
			return nil
		}
	}
	placed := make([]Instance, 0, len(list))
	if !search(list, &placed) {
		return nil
	}
	return placed
}

// search places the rest of a list by trying all places in order. Instances of
// one profile go to rising places, since which of them is first is all the same.
func search(list []Profile, placed *[]Instance) bool {
	n := len(*placed)
	if n == len(list) {
		return true
	}
	p := list[n]
	lowest := 0
	for i, before := range *placed {
		if list[i].Name == p.Name {
			lowest = before.Place.Start + 1
		}
	}
	for _, at := range p.Places {
		taken := slices.ContainsFunc(*placed, func(i Instance) bool { return i.Place.overlaps(at) })
		if taken || at.Start < lowest {
			continue
		}
		*placed = append((*placed)[:n], Instance{Profile: p.Name, Place: at, Whole: true})
		if search(list, placed) {
			return true
		}
	}
	*placed = (*placed)[:n]
	return false
}
