package conf

import (
	"fmt"
	"slices"
	"strings"
)

// Access says who may use an option.
type Access struct {
	// Allow lists who may. A job needs one match.
	Allow Subjects `toml:"allow"`
	// Deny lists who may not, whatever Allow says.
	Deny Subjects `toml:"deny"`
}

// everybody is the default.
func everybody() Access { return Access{Allow: Subjects{{Kind: All}}, Deny: Subjects{}} }

// Kind is what a Subject names.
type Kind string

// The kinds of subjects.
const (
	All       Kind = "all"
	Partition Kind = "partition"
	Account   Kind = "account"
	User      Kind = "user"
	Group     Kind = "group"
)

// Subject is one entry of allow or deny: "all", "partition:NAME",
// "account:NAME", "user:NAME" or "group:NAME".
type Subject struct {
	Kind Kind
	Name string
}

// String returns the entry as the file has it.
func (s Subject) String() string {
	if s.Kind == All {
		return string(All)
	}
	return string(s.Kind) + ":" + s.Name
}

// Subjects is the value of allow or deny.
type Subjects []Subject

const subjectForms = `a list of "all", "partition:NAME", "account:NAME", "user:NAME" and "group:NAME"`

// UnmarshalTOML implements toml.Unmarshaler.
func (s *Subjects) UnmarshalTOML(value any) error {
	texts, ok := list(value)
	if !ok {
		return wrong(value, subjectForms)
	}
	*s = Subjects{}
	for _, text := range texts {
		kind, name, found := strings.Cut(text, ":")
		switch Kind(kind) {
		case All:
			ok = !found
		case Partition, Account, User, Group:
			ok = found && name != "" && strings.TrimSpace(name) == name
		default:
			ok = false
		}
		if !ok {
			return wrong(text, subjectForms)
		}
		*s = append(*s, Subject{Kind(kind), name})
	}
	return nil
}

// Identity is who a job is.
type Identity struct {
	Partition, Account, User string
	// Groups returns the names of the user's groups. It asks the node's user
	// database, which can be slow or broken, so it is called only where an
	// entry names a group.
	Groups func() ([]string, error)
}

// Permit returns an error that names the entry which keeps the job from an
// option, nil if it may use it. What is not known of a job ("" or groups that
// cannot be had) counts as a match of deny and as none of allow.
func (a Access) Permit(who Identity) error {
	groups, asked := []string(nil), false
	var failed error
	match := func(s Subject, unknown bool) bool {
		is := func(name string) bool { return name == s.Name || name == "" && unknown }
		switch s.Kind {
		case All:
			return true
		case Partition:
			return is(who.Partition)
		case Account:
			return is(who.Account)
		case User:
			return is(who.User)
		}
		if !asked {
			asked = true
			groups, failed = who.Groups()
		}
		return slices.Contains(groups, s.Name) || failed != nil && unknown
	}
	for _, s := range a.Deny {
		if match(s, true) {
			return because(failed, fmt.Sprintf("the site denies it to %s", s))
		}
	}
	for _, s := range a.Allow {
		if match(s, false) {
			return nil
		}
	}
	if len(a.Allow) == 0 {
		return because(failed, "the site allows it to nobody")
	}
	names := make([]string, len(a.Allow))
	for i, s := range a.Allow {
		names[i] = s.String()
	}
	return because(failed, "the site allows it to "+strings.Join(names, ", "))
}

func because(failed error, reason string) error {
	if failed != nil {
		return fmt.Errorf("%s (the user's groups: %w)", reason, failed)
	}
	return fmt.Errorf("%s", reason)
}
