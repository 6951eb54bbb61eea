package numavm

import (
	"fmt"
	"slices"
	"strings"
)

// Suite is a Debian release by its codename.
type Suite string

// The releases that a machine can run. Each brings its kernel, systemd and Slurm.
const (
	Bookworm Suite = "bookworm" // Slurm 22.05, kernel 6.1, systemd 252
	Trixie   Suite = "trixie"   // Slurm 24.11, kernel 6.12, systemd 257
	Forky    Suite = "forky"    // Slurm 26.05 and what else is newest
)

// Suites lists all of them, oldest first.
func Suites() []Suite { return []Suite{Bookworm, Trixie, Forky} }

// ParseSuite returns the suite of that name.
func ParseSuite(name string) (Suite, error) {
	if s := Suite(name); slices.Contains(Suites(), s) {
		return s, nil
	}
	names := make([]string, 0, len(Suites()))
	for _, s := range Suites() {
		names = append(names, string(s))
	}
	return "", fmt.Errorf("suite %q: want one of %s", name, strings.Join(names, ", "))
}

// Slurm is the suite's Slurm release, major.minor.
func (s Suite) Slurm() string {
	switch s {
	case Bookworm:
		return "22.05"
	case Trixie:
		return "24.11"
	default:
		return "26.05"
	}
}
