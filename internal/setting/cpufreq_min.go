package setting

import (
	"context"
	"fmt"
	"strconv"
)

func init() {
	register(kind{
		Kind: Kind{
			Pattern: "cpufreq/*/min", Example: "cpufreq/policy0/min",
			Doc: "lowest frequency in kHz that CPUs may run at, or max, by policy",
		},
		open: func(env *Environment, key string, wild []string) (Setting, error) {
			f, err := newPolicy(env, key, wild[0], "scaling_min_freq")
			f.of += ": lowest frequency"
			return minFrequency{f}, err
		},
	})
}

// minFrequency is a policy's scaling_min_freq. Documentation/admin-guide/pm/cpufreq.rst.
// Drivers round it to what the processor has, so what it reads then is what was
// set.
type minFrequency struct{ kernelFile }

// Traits implements Setting.
func (minFrequency) Traits() Traits {
	return Traits{Needs: WholeNode, Lifetime: WhileThere, Loose: true}
}

// Check implements Setting. "max" is the highest that the policy allows now.
func (s minFrequency) Check(_ context.Context, value string) (string, error) {
	low, err := s.khz("cpuinfo_min_freq")
	if err != nil {
		return "", err
	}
	high, err := s.khz("scaling_max_freq")
	if err != nil {
		return "", err
	}
	if value == "max" {
		return strconv.FormatUint(high, 10), nil
	}
	khz, err := strconv.ParseUint(value, 10, 32)
	if err != nil || khz < low || khz > high {
		fail := &ValueError{Of: s.of, Value: shown(value), Accepts: fmt.Sprintf("supported %d–%d kHz, or max", low, high)}
		if err == nil {
			fail.Nearest = strconv.FormatUint(min(max(khz, low), high), 10)
		}
		return "", fail
	}
	return strconv.FormatUint(khz, 10), nil
}

func (s minFrequency) khz(file string) (uint64, error) {
	text, err := s.readFile(s.sibling(file))
	if err != nil {
		return 0, err
	}
	khz, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%s: %s: %w", s.of, file, err)
	}
	return khz, nil
}

// Read implements Setting.
func (s minFrequency) Read(context.Context) (string, error) { return s.readOfPart() }

// Write implements Setting.
func (s minFrequency) Write(_ context.Context, value string) error { return s.write(value) }
