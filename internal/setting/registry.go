package setting

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Kind describes one kind of setting.
type Kind struct {
	// Pattern is the form of its keys, "*" standing for any one part:
	// "gpu/*/clocks.sm".
	Pattern string
	// Doc says what it does, its values and their units, in one line.
	Doc string
	// Example is a key, where the stars do not stand for a GPU's UUID.
	Example string
}

// kind is a Kind with the function that makes settings of it. wild are the
// parts of the key that stand for the pattern's stars.
type kind struct {
	Kind
	open func(env *Environment, key string, wild []string) (Setting, error)
}

// kinds is filled by the init functions of this package's files and is not
// changed after that.
var kinds = map[string]kind{}

func register(k kind) {
	if _, taken := kinds[k.Pattern]; taken {
		panic("setting: two kinds for " + k.Pattern)
	}
	kinds[k.Pattern] = k
}

// Kinds returns every kind of setting there is, in order of pattern.
func Kinds() []Kind {
	list := make([]Kind, 0, len(kinds))
	for _, k := range kinds {
		list = append(list, k.Kind)
	}
	slices.SortFunc(list, func(a, b Kind) int { return cmp.Compare(a.Pattern, b.Pattern) })
	return list
}

// Parse returns the setting that a key names. It touches nothing of the
// machine, so the setting need not exist there. A key of no kind is
// ErrUnknownKey.
func Parse(env *Environment, key string) (Setting, error) {
	parts, err := split(key)
	if err != nil {
		return nil, err
	}
	for _, k := range kinds {
		if wild, ok := match(k.Pattern, parts); ok {
			return k.open(env, key, wild)
		}
	}
	return nil, fmt.Errorf("%w: %s", ErrUnknownKey, key)
}

// match compares a pattern with the parts of a key and returns the parts that
// its stars stand for.
func match(pattern string, parts []string) (wild []string, ok bool) {
	want := strings.Split(pattern, "/")
	if len(want) != len(parts) {
		return nil, false
	}
	for i, part := range want {
		switch {
		case part == "*":
			wild = append(wild, parts[i])
		case part != parts[i]:
			return nil, false
		}
	}
	return wild, true
}
