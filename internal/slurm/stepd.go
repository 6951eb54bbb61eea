package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// HasStep tells whether a step of a job runs on this node: whether there is a
// slurmstepd that calls itself "slurmstepd: [42.batch]". A job between two steps
// has none unless PrologFlags has Contain. root is prepended to /proc.
func HasStep(root, job string) (bool, error) {
	folder := filepath.Join(root, "proc")
	entries, err := os.ReadDir(folder)
	if err != nil {
		return false, err
	}
	title := fmt.Sprintf("slurmstepd: [%s", job)
	for _, entry := range entries {
		if strings.Trim(entry.Name(), "0123456789") != "" {
			continue
		}
		command, err := os.ReadFile(filepath.Join(folder, entry.Name(), "cmdline"))
		if err != nil {
			continue // it has ended
		}
		if rest, found := strings.CutPrefix(string(command), title); found && strings.ContainsAny(rest[:min(len(rest), 1)], ".+") {
			return true, nil
		}
	}
	return false, nil
}
