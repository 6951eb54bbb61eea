package doctor

import (
	"context"
	"slices"
	"strings"
)

// memlock: tasks may lock memory, which RDMA and pinned host memory need: slurmd
// has no limit, and the submitting shell's does not replace it.
func memlock(_ context.Context, h *Host) []Finding {
	var found []Finding
	for _, pid := range h.processes("slurmd") {
		limits, err := h.text("/proc/" + pid + "/limits")
		if err != nil {
			found = append(found, warn("run this as root", "limits of slurmd: %v", err))
			continue
		}
		for line := range strings.Lines(limits) {
			words, isIt := strings.CutPrefix(line, "Max locked memory")
			if fields := strings.Fields(words); !isIt || len(fields) == 0 {
				continue
			} else if fields[0] != "unlimited" {
				found = append(found, bad("set LimitMEMLOCK=infinity for slurmd.service", "slurmd (pid %s) may lock %s bytes of memory, and so may tasks", pid, fields[0]))
			} else {
				found = append(found, ok("slurmd may lock all memory"))
			}
		}
	}
	if len(found) == 0 {
		found = append(found, warn("start it", "slurmd does not run here"))
	}
	has := func(list []string, words ...string) bool {
		return slices.ContainsFunc(list, func(word string) bool {
			return slices.ContainsFunc(words, func(w string) bool { return strings.EqualFold(strings.TrimPrefix(strings.ToUpper(word), "RLIMIT_"), w) })
		})
	}
	only, except := h.Slurm.PropagateResourceLimits, h.Slurm.PropagateResourceLimitsExcept
	kept := has(except, "MEMLOCK", "ALL") || len(only) > 0 && !has(only, "MEMLOCK", "ALL")
	if kept {
		return append(found, ok("the submitting shell's limit of locked memory is not propagated"))
	}
	return append(found, warn("set PropagateResourceLimitsExcept=MEMLOCK in slurm.conf", "tasks get the limit of locked memory of the shell that submits"))
}
