//go:build slurm

package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"gputune/tests/documents"
	"gputune/tests/slurm/bed"
	"gputune/tests/slurm/site"
)

// What the documents tell people to type works.
func TestCommandsInDocuments(t *testing.T) {
	t.Parallel()
	tree, err := site.Tree()
	if err != nil {
		t.Fatal(err)
	}
	guides, err := filepath.Glob(filepath.Join(tree, "docs", "*.md"))
	if err != nil || len(guides) == 0 {
		t.Fatalf("%v, %v", guides, err)
	}
	s := start(t, site.Options{Jobs: true, MPS: "\n", Bed: bed.Options{ConstrainDevices: true, ExtraSlurmConf: []string{"PrologFlags=Alloc"}}})
	ran := 0
	for _, document := range append(guides, filepath.Join(tree, "README.md")) {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		blocks, err := documents.Blocks(string(text))
		if err != nil {
			t.Errorf("%s: %v", filepath.Base(document), err)
		}
		for _, b := range blocks {
			t.Run(fmt.Sprintf("%s line %d", filepath.Base(document), b.Line), func(t *testing.T) {
				if b.NotRun != "" {
					t.Skip(b.NotRun)
				}
				if b.Machine != "" {
					t.Skip("it runs in the virtual machine")
				}
				ran++
				// gputune with the site's paths and driver.
				script := fmt.Sprintf("gputune() { case $1 in status|restore|exec) set -- \"$1\" --config=%q \"${@:2}\";; esac; %q \"$@\"; }\n",
					filepath.Join(s.Folder, "gputune.toml"), filepath.Join(tree, "build/bin/gputune"))
				command := s.Command("bash", "-eu", "-o", "pipefail", "-c", script+b.Text)
				command.Env = s.NVML.Environ()
				result, err := command.Run(t.Context())
				if err != nil || result.Code != 0 {
					t.Errorf("code %d, %v\n%s\n%s%s", result.Code, err, b.Text, result.Stdout, result.Stderr)
				}
			})
		}
	}
	if ran < 5 {
		t.Errorf("%d blocks were run", ran)
	}
}
