package mig_test

import (
	"errors"
	"fmt"
	"slices"

	"gputune/internal/mig"
)

var errBusy = errors.New("in use by another client")

// killed is what a call panics with at which the program is killed.
type killed struct{}

// fakeCard is a GPU that is split as an H200 or an A100 is.
type fakeCard struct {
	mode      mig.Mode
	instances map[int]*fakeInstance
	ampere    bool
	stuck     bool // the mode does not become active
	processes []mig.Process

	calls  []string // those that change something, done or not
	killAt int      // the number of the one before which the program dies, -1: none
	// fails decides about each call, with its name and the number of times that it
	// was called before.
	fails func(name string, times int) failing
	times map[string]int
}

// failing is what becomes of a call.
type failing struct {
	err     error
	done    bool // although it fails
	ignored bool // it succeeds and does nothing
}

type fakeInstance struct {
	mig.Instance
	parts map[int]mig.Part
}

func places(size int, starts ...int) (list []mig.Placement) {
	for _, start := range starts {
		list = append(list, mig.Placement{Start: start, Size: size})
	}
	return list
}

// h200 has the profiles that an H200 told.
func h200() []mig.Profile {
	return []mig.Profile{
		{ID: 19, Name: "1g.18gb", Count: 7, Slices: 1, Places: places(1, 0, 1, 2, 3, 4, 5, 6)},
		{ID: 14, Name: "2g.35gb", Count: 3, Slices: 2, Places: places(2, 0, 2, 4)},
		{ID: 9, Name: "3g.71gb", Count: 2, Slices: 3, Places: places(4, 0, 4)},
		{ID: 5, Name: "4g.71gb", Count: 1, Slices: 4, Places: places(4, 0)},
		{ID: 0, Name: "7g.141gb", Count: 1, Slices: 7, Places: places(8, 0)},
		{ID: 20, Name: "1g.18gb+me", Count: 1, Slices: 1, Places: places(1, 0, 1, 2, 3, 4, 5, 6)},
		{ID: 15, Name: "1g.35gb", Count: 4, Slices: 1, Places: places(2, 0, 2, 4, 6)},
	}
}

// newCard is a card with a layout.
func newCard(layout string) *fakeCard {
	l, err := mig.ParseLayout(layout)
	if err != nil {
		panic(err)
	}
	c := &fakeCard{mode: l.Mode, instances: map[int]*fakeInstance{}, killAt: -1, times: map[string]int{}}
	for _, i := range l.Instances {
		one := &fakeInstance{i, map[int]mig.Part{}}
		if i.Whole {
			one.parts[0] = c.whole(i)
		}
		for id, part := range i.Parts {
			one.parts[id] = part
		}
		c.instances[idAt(i.Place)] = one
	}
	return c
}

func idAt(at mig.Placement) int { return at.Start + 16*at.Size }

func (c *fakeCard) profile(name string) mig.Profile {
	list, _ := c.Profiles()
	return list[slices.IndexFunc(list, func(p mig.Profile) bool { return p.Name == name })]
}

func (c *fakeCard) whole(i mig.Instance) mig.Part {
	return mig.Part{Profile: i.Profile, Place: mig.Placement{Size: c.profile(i.Profile).Slices}}
}

// call is a call that changes something: it may be the one at which the program
// is killed.
func (c *fakeCard) call(name, what string, do func() error) error {
	if c.killAt == len(c.calls) {
		panic(killed{})
	}
	c.calls = append(c.calls, name+" "+what)
	f := c.fail(name)
	if f.ignored {
		return nil
	}
	if f.err != nil && !f.done {
		return fmt.Errorf("gpu %s: %s %s: %w", c.PCI(), name, what, f.err)
	}
	if err := do(); err != nil {
		return fmt.Errorf("gpu %s: %s %s: %w", c.PCI(), name, what, err)
	}
	if f.err != nil {
		return fmt.Errorf("gpu %s: %s %s: %w", c.PCI(), name, what, f.err)
	}
	return nil
}

func (c *fakeCard) fail(name string) failing {
	c.times[name]++
	if c.fails == nil {
		return failing{}
	}
	return c.fails(name, c.times[name]-1)
}

func (c *fakeCard) PCI() string { return "0000:07:00.0" }

func (c *fakeCard) Minor() (int, error) { return 3, c.fail("Minor").err }

func (c *fakeCard) Mode() (mig.Mode, error) { return c.mode, c.fail("Mode").err }

func (c *fakeCard) NeedsReset() (bool, error) { return c.ampere, c.fail("NeedsReset").err }

func (c *fakeCard) SetMode(on bool) error {
	return c.call("SetMode", fmt.Sprint(on), func() error {
		busy := on != c.mode.Now && (len(c.instances) > 0 || c.ampere && len(c.processes) > 0)
		if c.ampere || !busy {
			c.mode.Next = on
		}
		switch {
		case busy:
			return errBusy
		case c.stuck && on != c.mode.Now:
			return errors.New("waits for a reset")
		}
		c.mode.Now = on
		return nil
	})
}

func (c *fakeCard) Profiles() ([]mig.Profile, error) { return h200(), c.fail("Profiles").err }

func (c *fakeCard) Present() ([]mig.Present, error) {
	if err := c.fail("Present").err; err != nil {
		return nil, err
	}
	var list []mig.Present
	for id, i := range c.instances {
		p := mig.Present{Instance: mig.Instance{Profile: i.Profile, Place: i.Place}, ID: id}
		for part, is := range i.parts {
			p.Parts = append(p.Parts, is)
			p.PartIDs = append(p.PartIDs, part)
		}
		if len(p.Parts) == 1 && p.Parts[0] == c.whole(i.Instance) {
			p.Whole, p.Parts = true, nil
		}
		list = append(list, p)
	}
	return list, nil
}

func (c *fakeCard) Create(profile string, at mig.Placement) (int, error) {
	id := idAt(at)
	return id, c.call("Create", profile+"@"+at.String(), func() error {
		p := c.profile(profile)
		if !c.mode.Now || !slices.Contains(p.Places, at) {
			return errors.New("invalid argument")
		}
		count := 0
		for _, i := range c.instances {
			if i.Profile == profile {
				count++
			}
			if i.Place.Start < at.Start+at.Size && at.Start < i.Place.Start+i.Place.Size {
				return errors.New("insufficient resources")
			}
		}
		if count == p.Count {
			return errors.New("insufficient resources")
		}
		c.instances[id] = &fakeInstance{mig.Instance{Profile: profile, Place: at}, map[int]mig.Part{}}
		return nil
	})
}

func (c *fakeCard) used(id int) bool {
	return slices.ContainsFunc(c.processes, func(p mig.Process) bool { return p.Instance == id })
}

func (c *fakeCard) Destroy(id int) error {
	return c.call("Destroy", fmt.Sprint(id), func() error {
		i := c.instances[id]
		if i == nil {
			return errors.New("not found")
		}
		if len(i.parts) > 0 || c.used(id) {
			return errBusy
		}
		delete(c.instances, id)
		return nil
	})
}

func (c *fakeCard) CreatePart(id int, part mig.Part, whole bool) error {
	what := part.String()
	if whole {
		what = "whole"
	}
	return c.call("CreatePart", fmt.Sprintf("%d %s", id, what), func() error {
		i := c.instances[id]
		if i == nil {
			return errors.New("not found")
		}
		if whole {
			part = c.whole(i.Instance)
		}
		for n := range 8 {
			is, there := i.parts[n]
			if there && is.Place.Start < part.Place.Start+part.Place.Size && part.Place.Start < is.Place.Start+is.Place.Size {
				return errors.New("insufficient resources")
			}
		}
		for n := range 8 {
			if _, there := i.parts[n]; !there {
				i.parts[n] = part
				return nil
			}
		}
		return errors.New("insufficient resources")
	})
}

func (c *fakeCard) DestroyPart(id, part int) error {
	return c.call("DestroyPart", fmt.Sprint(id, " ", part), func() error {
		i := c.instances[id]
		if i == nil {
			return errors.New("not found")
		}
		if c.used(id) {
			return errBusy
		}
		delete(i.parts, part)
		return nil
	})
}

func (c *fakeCard) Devices() ([]mig.Device, error) {
	var list []mig.Device
	for id, i := range c.instances {
		for part := range i.parts {
			list = append(list, mig.Device{UUID: fmt.Sprintf("MIG-%d-%d", id, part), Instance: id, Part: part})
		}
	}
	return list, c.fail("Devices").err
}

func (c *fakeCard) Processes() ([]mig.Process, error) { return c.processes, c.fail("Processes").err }

// layout is what the card has, without any call.
func (c *fakeCard) layout() string {
	fails := c.fails
	c.fails = nil
	defer func() { c.fails = fails }()
	l, err := mig.Read(c)
	if err != nil {
		panic(err)
	}
	return l.String()
}
