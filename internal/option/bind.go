// Package option knows the grammar of gputune's command-line options. It is the
// only place that does: the programs that check a value at submission and those
// that act on it on the node both parse with it.
package option

import (
	"fmt"
	"strings"

	"gputune/internal/placement"
)

// MaxLength bounds an option's value, in bytes.
const MaxLength = 1000

// BindName is the name of the option that Bind is the value of.
const BindName = "gpu-numa-bind"

// Enforce says how the kernel is made to hold a task to its CPUs.
type Enforce string

// The values of the item enforce=.
const (
	EnforceCgroup   Enforce = "cgroup"   // cpuset of the task's own cgroup, and affinity
	EnforceAffinity Enforce = "affinity" // affinity alone
)

// Report says what a task tells its user on standard error.
type Report string

// The reports: warnings alone unless the items verbose or quiet are given.
const (
	ReportWarnings Report = "warnings"
	ReportVerbose  Report = "verbose"
	ReportQuiet    Report = "quiet"
)

// Bind is the value of --gpu-numa-bind.
type Bind struct {
	On      bool
	Policy  placement.Policy
	Enforce Enforce
	Strict  bool
	Follow  bool // workers are bound by the GPUs that they use
	Report  Report
}

// DefaultBind is what the bare option means where the site says nothing.
func DefaultBind() Bind {
	return Bind{On: true, Policy: placement.Default(), Enforce: EnforceCgroup, Report: ReportWarnings}
}

// BindForms lists the accepted items, for messages.
const BindForms = "on, off, cpus=node|exclusive|core-complex|socket|none, mem=prefer|bind|interleave|none, " +
	"smt=all|one, gpus=auto|all|local, enforce=cgroup|affinity, follow, strict, verbose, quiet"

// ParseBind reads the value of --gpu-numa-bind, a comma-separated list of items,
// over the given defaults. The empty value, and "(null)" as Slurm writes an
// absent argument, mean that the option was given bare. An error names the item
// and the accepted values.
func ParseBind(value string, defaults Bind) (Bind, error) {
	bind := defaults
	bind.On = true
	if value == "" || value == "(null)" {
		return bind, nil
	}
	if len(value) > MaxLength {
		return Bind{}, fmt.Errorf("--%s: %d bytes long: at most %d are accepted", BindName, len(value), MaxLength)
	}
	given := make(map[string]string)
	for item := range strings.SplitSeq(value, ",") {
		kind, err := bind.set(item)
		if err != nil {
			return Bind{}, fmt.Errorf("--%s: item %q: %w", BindName, item, err)
		}
		if before, twice := given[kind]; twice && before != item {
			return Bind{}, fmt.Errorf("--%s: items %q and %q contradict each other", BindName, before, item)
		}
		given[kind] = item
	}
	return bind, nil
}

// set applies one item and returns what it is about, so that two items about
// the same thing are noticed.
func (b *Bind) set(item string) (kind string, err error) {
	switch item {
	case "on", "off":
		b.On = item == "on"
		return "on", nil
	case "strict":
		b.Strict = true
		return item, nil
	case "follow":
		b.Follow = true
		return item, nil
	case "verbose":
		b.Report = ReportVerbose
		return "report", nil
	case "quiet":
		b.Report = ReportQuiet
		return "report", nil
	}
	key, value, found := strings.Cut(item, "=")
	if !found {
		return "", fmt.Errorf("not known: want %s", BindForms)
	}
	switch key {
	case "cpus":
		err = choose(&b.Policy.CPUs, key, value, placement.CPUsNode, placement.CPUsExclusive,
			placement.CPUsCoreComplex, placement.CPUsSocket, placement.CPUsNone)
	case "mem":
		err = choose(&b.Policy.Mem, key, value, placement.MemPrefer, placement.MemBind,
			placement.MemInterleave, placement.MemNone)
	case "smt":
		err = choose(&b.Policy.SMT, key, value, placement.SMTAll, placement.SMTOne)
	case "gpus":
		err = choose(&b.Policy.GPUs, key, value, placement.GPUsAuto, placement.GPUsAll, placement.GPUsLocal)
	case "enforce":
		err = choose(&b.Enforce, key, value, EnforceCgroup, EnforceAffinity)
	default:
		err = fmt.Errorf("not known: want %s", BindForms)
	}
	return key, err
}

func choose[T ~string](target *T, key, value string, accepted ...T) error {
	names := make([]string, len(accepted))
	for i, a := range accepted {
		if value == string(a) {
			*target = a
			return nil
		}
		names[i] = string(a)
	}
	return fmt.Errorf("want %s=%s", key, strings.Join(names, "|"))
}

// String writes the value back as the user could have given it, with every
// item spelled out.
func (b Bind) String() string {
	items := []string{"on"}
	if !b.On {
		items[0] = "off"
	}
	items = append(items, "cpus="+string(b.Policy.CPUs), "mem="+string(b.Policy.Mem), "smt="+string(b.Policy.SMT),
		"gpus="+string(b.Policy.GPUs), "enforce="+string(b.Enforce))
	if b.Follow {
		items = append(items, "follow")
	}
	if b.Strict {
		items = append(items, "strict")
	}
	if b.Report != ReportWarnings {
		items = append(items, string(b.Report))
	}
	return strings.Join(items, ",")
}
