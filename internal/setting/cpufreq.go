package setting

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"gputune/internal/idset"
)

const cpufreqFolder = "/sys/devices/system/cpu/cpufreq"

// newPolicy returns the file of a CPU frequency policy, which is what the CPUs
// that change their frequency together have. Documentation/admin-guide/pm/cpufreq.rst.
func newPolicy(env *Environment, key, policy, file string) (kernelFile, error) {
	if _, ok := suffixNumber(policy, "policy"); !ok {
		return kernelFile{}, fmt.Errorf("%w: %s: want cpufreq/policyN/…", ErrUnknownKey, key)
	}
	return kernelFile{env: env, key: key, of: "CPU frequency " + policy, path: cpufreqFolder + "/" + policy + "/" + file}, nil
}

// sibling returns another file of the same policy.
func (f kernelFile) sibling(file string) string {
	return f.path[:strings.LastIndexByte(f.path, '/')+1] + file
}

// FrequencyPolicies returns the CPU frequency policies that have any of the
// CPUs, in order: policy0, policy1. A machine without them, as most virtual ones
// are, is a *MissingError.
func FrequencyPolicies(env *Environment, cpus idset.Set) ([]string, error) {
	f := kernelFile{env: env, of: "CPU frequency"}
	entries, err := os.ReadDir(env.Path(cpufreqFolder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", f.of, err)
	}
	var policies []string
	for _, entry := range entries {
		if _, ok := suffixNumber(entry.Name(), "policy"); !ok {
			continue
		}
		// The list has blanks between the CPUs.
		list, err := f.readFile(cpufreqFolder + "/" + entry.Name() + "/affected_cpus")
		if errors.Is(err, ErrInUse) {
			continue // EBUSY: all of its CPUs are offline, as second threads with SMT off
		}
		if err != nil {
			return nil, err
		}
		of, err := idset.Parse(strings.Join(strings.Fields(list), ","))
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", f.of, entry.Name(), err)
		}
		if !of.And(cpus).Empty() {
			policies = append(policies, entry.Name())
		}
	}
	if len(policies) == 0 {
		return nil, &MissingError{Of: fmt.Sprintf("CPU frequency of CPUs %s", cpus), File: cpufreqFolder + "/policy*"}
	}
	slices.SortFunc(policies, func(a, b string) int {
		first, _ := suffixNumber(a, "policy")
		second, _ := suffixNumber(b, "policy")
		return cmp.Compare(first, second)
	})
	return policies, nil
}
