// Package published finds the folder with topologies of real machines that
// people published. Their licences are their own, so they are no part of the
// repository; tests read them where the folder is.
package published

import (
	"os"
	"path/filepath"
	"testing"
)

// Variable is the environment variable that names the folder. Without it the
// folder is shared/topologies in the repository or beside it.
const Variable = "GPUTUNE_TOPOLOGIES"

// Folder returns the folder, and skips the test where there is none. A folder
// that the variable names has to be there.
func Folder(tb testing.TB) string {
	tb.Helper()
	if named := os.Getenv(Variable); named != "" {
		if _, err := os.Stat(filepath.Join(named, "INDEX.tsv")); err != nil {
			tb.Fatalf("%s: %v", Variable, err)
		}
		return named
	}
	for up := "."; ; up = filepath.Join(up, "..") {
		for _, folder := range []string{"shared/topologies", "../shared/topologies"} {
			candidate := filepath.Join(up, folder)
			if _, err := os.Stat(filepath.Join(candidate, "INDEX.tsv")); err == nil {
				return candidate
			}
		}
		if _, err := os.Stat(filepath.Join(up, "go.mod")); err == nil || len(up) > 64 {
			tb.Skipf("no folder shared/topologies in or beside the repository, and %s is not set", Variable)
		}
	}
}
