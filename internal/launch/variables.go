package launch

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"gputune/internal/step"
)

// given is the variable in which a task finds which of its variables are the
// site's: NAME:HASH,…, where HASH is the FNV-1a of the value that it was given. So
// what is started in it does not take them for the user's.
const given = "GPUTUNE_ENVIRONMENT"

// SiteVariables says what becomes of a command's environment by what the site gives
// it, as the plugin does for a task: set are "NAME=VALUE" of those that the user has
// not set, unset the names of those that an outer step was given and that are not
// known here, notes what the user can want to know. lookup is getenv(3).
func SiteVariables(site step.Variables, lookup func(string) (string, bool)) (set, unset, notes []string) {
	outer := outerVariables(lookup)
	var list []string
	for _, variable := range site.Set {
		name, value, _ := strings.Cut(variable, "=")
		if _, found := lookup(name); found && !slices.Contains(outer, name) {
			notes = append(notes, name+" kept: it was set")
			continue
		}
		set = append(set, variable)
		list = append(list, fmt.Sprintf("%s:%d", name, hash(value)))
		outer = slices.DeleteFunc(outer, func(other string) bool { return other == name })
	}
	for _, name := range site.Left {
		why := " not set: what it needs is not known"
		if _, found := lookup(name); found && !slices.Contains(outer, name) {
			why = " kept: it was set"
		}
		notes = append(notes, name+why)
	}
	if len(list) > 0 {
		return append(set, given+"="+strings.Join(list, ",")), outer, notes
	}
	if _, found := lookup(given); found {
		outer = append(outer, given)
	}
	return set, outer, notes
}

// outerVariables returns the names of those variables that still have the value
// that an outer step's task was given.
func outerVariables(lookup func(string) (string, bool)) []string {
	list, _ := lookup(given)
	var names []string
	for item := range strings.SplitSeq(list, ",") {
		name, sum, _ := strings.Cut(item, ":")
		if value, found := lookup(name); found && sum == fmt.Sprint(hash(value)) {
			names = append(names, name)
		}
	}
	return names
}

func hash(value string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(value)) // never fails
	return h.Sum64()
}
