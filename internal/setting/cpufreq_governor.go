package setting

import (
	"context"
	"slices"
	"strings"
)

func init() {
	register(kind{
		Kind: Kind{
			Pattern: "cpufreq/*/governor", Example: "cpufreq/policy0/governor",
			Doc: "what chooses the frequency of CPUs: performance, powersave, schedutil, …, by policy: cpufreq/policy0/governor",
		},
		open: func(env *Environment, key string, wild []string) (Setting, error) {
			f, err := newPolicy(env, key, wild[0], "scaling_governor")
			f.of += ": governor"
			return governor{f}, err
		},
	})
}

// governor is a policy's scaling_governor. Documentation/admin-guide/pm/cpufreq.rst.
//
// Drivers that have an energy preference fix it while the governor is
// performance, so a job that wants both has the preference set first and, since
// the ledger restores in reverse order, put back last.
type governor struct{ kernelFile }

// Traits implements Setting.
func (governor) Traits() Traits { return Traits{Needs: WholeNode, Lifetime: WhileThere} }

// Check implements Setting.
func (s governor) Check(_ context.Context, value string) (string, error) {
	list, err := s.readFile(s.sibling("scaling_available_governors"))
	if err != nil {
		return "", err
	}
	if words := strings.Fields(list); !slices.Contains(words, value) {
		return "", &ValueError{Of: s.of, Value: shown(value), Accepts: "supported " + strings.Join(words, ", ")}
	}
	return value, nil
}

// Read implements Setting.
func (s governor) Read(context.Context) (string, error) { return s.readOfPart() }

// Write implements Setting.
func (s governor) Write(ctx context.Context, value string) error {
	if err := s.write(value); err != nil {
		return err
	}
	return readBack(ctx, s, s.of, value)
}
