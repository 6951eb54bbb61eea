//go:build packages

package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gputune/conf"
)

// The manual of files and of programs for administrators is well-formed, and
// that of gputune.toml has every key.
func TestManPages(t *testing.T) {
	tree, err := sourceTree()
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(tree, "docs/man/*.[58]"))
	if err != nil || len(pages) < 4 {
		t.Fatalf("%v, %v", pages, err)
	}
	for _, page := range pages {
		if output, err := exec.Command("mandoc", "-Tlint", "-Wwarning", page).CombinedOutput(); err != nil || len(output) > 0 {
			t.Errorf("%s: %v\n%s", filepath.Base(page), err, output)
		}
	}
	text, err := os.ReadFile(filepath.Join(tree, "docs/man/gputune.toml.5"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range conf.Keys() {
		table, key, _ := strings.Cut(name, ".")
		_, section, found := strings.Cut(string(text), "["+table+"]")
		if !found || !strings.Contains(section, key) {
			t.Errorf("gputune.toml(5) lacks %s of [%s]", key, table)
		}
	}
}
