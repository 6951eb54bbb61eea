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
	folder, ok := find()
	switch {
	case !ok:
		tb.Skipf("no folder shared/topologies in or beside the repository, and %s is not set", Variable)
	case !isFolder(folder):
		tb.Fatalf("%s=%s has no INDEX.tsv", Variable, folder)
	}
	return folder
}

func find() (string, bool) {
	if named := os.Getenv(Variable); named != "" {
		return named, true
	}
	for up := "."; len(up) < 64; up = filepath.Join(up, "..") {
		if _, err := os.Stat(filepath.Join(up, "go.mod")); err != nil {
			continue
		}
		for _, folder := range []string{"shared/topologies", "../shared/topologies"} {
			if candidate := filepath.Join(up, folder); isFolder(candidate) {
				return candidate, true
			}
		}
		break
	}
	return "", false
}

func isFolder(path string) bool {
	_, err := os.Stat(filepath.Join(path, "INDEX.tsv"))
	return err == nil
}
