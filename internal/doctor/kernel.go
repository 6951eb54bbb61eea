package doctor

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// transparentHugepages: the kernel may use them.
func transparentHugepages(_ context.Context, h *Host) []Finding {
	text, err := h.text("/sys/kernel/mm/transparent_hugepage/enabled")
	_, after, _ := strings.Cut(text, "[")
	mode, _, _ := strings.Cut(after, "]")
	switch {
	case err != nil:
		return []Finding{ok("a kernel without transparent hugepages")}
	case mode == "never":
		return []Finding{warn("echo madvise >/sys/kernel/mm/transparent_hugepage/enabled, or let jobs choose", "transparent hugepages are off")}
	}
	return []Finding{ok("transparent hugepages: %s", mode)}
}

// governor: CPUs are not slowed down to save power.
func governor(_ context.Context, h *Host) []Finding {
	files, err := filepath.Glob(h.path("/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"))
	if err != nil || len(files) == 0 {
		return []Finding{ok("CPU frequencies are not the kernel's to set")}
	}
	count := make(map[string]int)
	for _, file := range files {
		if content, err := os.ReadFile(file); err == nil {
			count[strings.TrimSpace(string(content))]++
		}
	}
	names := slices.Sorted(maps.Keys(count))
	if len(names) == 1 && (names[0] == "performance" || names[0] == "schedutil") {
		return []Finding{ok("governor %s on %d CPUs", names[0], len(files))}
	}
	return []Finding{warn("set the governor performance, at least while jobs run", "governors: %s", strings.Join(names, ", "))}
}
