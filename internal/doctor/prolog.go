package doctor

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
)

// prologAndEpilog: slurm.conf calls both, by themselves or by a script that does,
// when the job begins and not with its first step.
func prologAndEpilog(_ context.Context, h *Host) []Finding {
	var found []Finding
	for _, p := range []struct {
		key, program string
		set          []string
	}{
		{"Prolog", "gputune-prolog", h.Slurm.Prolog},
		{"Epilog", "gputune-epilog", h.Slurm.Epilog},
	} {
		switch {
		case len(p.set) == 0:
			found = append(found, bad("add to slurm.conf: "+p.key+"=/usr/sbin/"+p.program, "%s is not set: options of jobs do nothing", p.key))
		case slices.ContainsFunc(p.set, func(set string) bool { return h.calls(set, p.program) }):
			found = append(found, ok("%s calls %s", p.key, p.program))
		default:
			found = append(found, warn("let it call "+p.program+", first in the Prolog and last in the Epilog", "%s=%s does not name %s", p.key, strings.Join(p.set, ", "), p.program))
		}
	}
	if slices.ContainsFunc(h.Slurm.PrologFlags, func(flag string) bool { return strings.EqualFold(flag, "Alloc") || strings.EqualFold(flag, "Contain") }) {
		return append(found, ok("PrologFlags=%s", strings.Join(h.Slurm.PrologFlags, ",")))
	}
	return append(found, bad("add to slurm.conf: PrologFlags=Alloc", "PrologFlags lacks Alloc: the Prolog runs with the first step, and not at all on nodes without one"))
}

// calls tells whether a program is another one, or a script that names it.
func (h *Host) calls(set, program string) bool {
	names, err := filepath.Glob(h.path(set)) // slurm.conf takes patterns
	if err != nil {
		return false
	}
	for _, name := range append(names, set) {
		if filepath.Base(name) == program {
			return true
		}
		script, err := h.text(strings.TrimPrefix(name, strings.TrimRight(h.Root, "/")))
		if err == nil && strings.HasPrefix(script, "#!") && strings.Contains(script, program) {
			return true
		}
	}
	return false
}
