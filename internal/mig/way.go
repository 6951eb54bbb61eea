package mig

import "slices"

// Between tells whether a layout can be what is left when the change from one to
// another, or the way back, was begun and not finished: it has no instance,
// compute instance or mode that neither of the two has. Whatever else it lacks,
// nothing in it is anybody else's, so that going to either of the two destroys
// nothing foreign.
//
// That holds after a reset of the GPU or a reboot, too: the instances are gone
// then, and the mode is what the card remembers (Ampere) or off (from Hopper on).
func Between(from, to, is Layout) bool {
	mode := func(on bool) bool {
		return on == from.Mode.Now || on == from.Mode.Next || on == to.Mode.Now || on == to.Mode.Next
	}
	if !mode(is.Mode.Now) || !mode(is.Mode.Next) {
		return false
	}
	for _, instance := range is.Instances {
		var known []Instance
		for _, l := range []Layout{from, to} {
			if same, found := l.find(instance); found {
				known = append(known, same)
			}
		}
		if len(known) == 0 || !within(instance, known) {
			return false
		}
	}
	return true
}

// within tells whether a GPU instance has no compute instances but those of the
// others, which are the same GPU instance at other times.
func within(i Instance, others []Instance) bool {
	if i.Whole {
		return slices.ContainsFunc(others, func(o Instance) bool { return o.Whole })
	}
	for _, part := range i.Parts {
		if !slices.ContainsFunc(others, func(o Instance) bool { return slices.Contains(o.Parts, part) }) {
			return false
		}
	}
	return true
}

// difference is what has to be done to a card's GPU instances.
type difference struct {
	drop []Instance // in another place or of another profile than is wanted, with all in it
	cut  []Instance // wanted, with compute instances that are not: only those are in Parts, or Whole
	add  []Instance // missing, with all in it
	fill []Instance // there, with compute instances missing: only those are in Parts, or Whole
}

// compare says what leads from one set of instances to another. What both have
// stays as it is, with its UUID.
func compare(is, want Layout) difference {
	var d difference
	for _, i := range is.Instances {
		w, wanted := want.find(i)
		if !wanted {
			d.drop = append(d.drop, i)
		} else if extra, some := without(i, w); some {
			d.cut = append(d.cut, extra)
		}
	}
	for _, w := range want.Instances {
		i, there := is.find(w)
		if !there {
			d.add = append(d.add, w)
		} else if missing, some := without(w, i); some {
			d.fill = append(d.fill, missing)
		}
	}
	return d
}

// without returns the compute instances of a that b has not, and whether there
// are any.
func without(a, b Instance) (Instance, bool) {
	rest := Instance{Profile: a.Profile, Place: a.Place, Whole: a.Whole && !b.Whole}
	for _, part := range a.Parts {
		if !slices.Contains(b.Parts, part) {
			rest.Parts = append(rest.Parts, part)
		}
	}
	return rest, rest.Whole || len(rest.Parts) > 0
}
