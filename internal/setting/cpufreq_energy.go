package setting

import (
	"context"
	"slices"
	"strconv"
	"strings"
)

func init() {
	register(kind{
		Kind: Kind{
			Pattern: "cpufreq/*/energy", Example: "cpufreq/policy0/energy",
			Doc: "what the processor prefers, speed or saving energy: performance, balance_performance, …, or 0 to 255, by policy",
		},
		open: func(env *Environment, key string, wild []string) (Setting, error) {
			f, err := newPolicy(env, key, wild[0], "energy_performance_preference")
			f.of += ": energy preference"
			return energyPreference{f}, err
		},
	})
}

// energyPreference is a policy's energy_performance_preference, which intel_pstate
// and amd-pstate have. Documentation/admin-guide/pm/intel_pstate.rst and
// amd-pstate.rst. It reads as a word, or as the number that was written; a number
// that is a word's reads as that word.
type energyPreference struct{ kernelFile }

// Traits implements Setting.
func (energyPreference) Traits() Traits {
	return Traits{Needs: WholeNode, Lifetime: WhileThere, Loose: true}
}

// Check implements Setting.
func (s energyPreference) Check(_ context.Context, value string) (string, error) {
	list, err := s.readFile(s.sibling("energy_performance_available_preferences"))
	if err != nil {
		return "", err
	}
	number, err := strconv.ParseUint(value, 10, 8)
	if err == nil {
		return strconv.FormatUint(number, 10), nil
	}
	if words := strings.Fields(list); !slices.Contains(words, value) {
		return "", &ValueError{Of: s.of, Value: shown(value), Accepts: "supported " + strings.Join(words, ", ") + ", or 0 to 255"}
	}
	return value, nil
}

// Read implements Setting.
func (s energyPreference) Read(context.Context) (string, error) { return s.readOfPart() }

// Write implements Setting.
func (s energyPreference) Write(ctx context.Context, value string) error {
	if err := s.write(value); err != nil {
		return err
	}
	if _, err := strconv.ParseUint(value, 10, 8); err == nil {
		return nil
	}
	return readBack(ctx, s, s.of, value)
}
