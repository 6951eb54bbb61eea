//go:build slurm

package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gputune/tests/slurm/bed"
	"gputune/tests/slurm/site"
)

// block is a block of commands in a document.
type block struct {
	line   int // of its first command
	text   string
	reason string // why it is not run, "" for one that is
}

// commands returns the blocks that are marked sh. A comment before a block,
// "<!-- not run: REASON -->", says why it cannot be run.
func commands(text string) ([]block, error) {
	var found []block
	reason, indent, inside := "", "", false
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		switch {
		case inside && trimmed == "```":
			inside = false
		case inside:
			found[len(found)-1].text += strings.TrimPrefix(line, indent) + "\n"
		case strings.HasPrefix(trimmed, "<!-- not run:"):
			reason = strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(trimmed, "<!-- not run:"), "-->"))
			if reason == "" {
				return nil, fmt.Errorf("line %d: no reason", i+1)
			}
		case trimmed == "```sh":
			indent, inside = line[:strings.Index(line, "`")], true
			found = append(found, block{line: i + 2, reason: reason})
			reason = ""
		case trimmed != "" && reason != "":
			return nil, fmt.Errorf("line %d: a reason without a block", i)
		}
	}
	if inside || reason != "" {
		return nil, fmt.Errorf("a block or a reason without an end")
	}
	return found, nil
}

// What the documents tell people to type works.
func TestCommandsInDocuments(t *testing.T) {
	t.Parallel()
	tree, err := site.Tree()
	if err != nil {
		t.Fatal(err)
	}
	documents, err := filepath.Glob(filepath.Join(tree, "docs", "*.md"))
	if err != nil || len(documents) == 0 {
		t.Fatalf("%v, %v", documents, err)
	}
	s := start(t, site.Options{Jobs: true, Bed: bed.Options{ConstrainDevices: true}})
	ran := 0
	for _, document := range append(documents, filepath.Join(tree, "README.md")) {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		blocks, err := commands(string(text))
		if err != nil {
			t.Errorf("%s: %v", filepath.Base(document), err)
		}
		for _, b := range blocks {
			t.Run(fmt.Sprintf("%s line %d", filepath.Base(document), b.line), func(t *testing.T) {
				if b.reason != "" {
					t.Skip(b.reason)
				}
				ran++
				// gputune with the site's paths and driver.
				script := fmt.Sprintf("gputune() { case $1 in status|restore) set -- \"$@\" --config=%q;; esac; %q \"$@\"; }\n",
					filepath.Join(s.Folder, "gputune.toml"), filepath.Join(tree, "build/bin/gputune"))
				command := s.Command("bash", "-eu", "-o", "pipefail", "-c", script+b.text)
				command.Env = s.NVML.Environ()
				result, err := command.Run(t.Context())
				if err != nil || result.Code != 0 {
					t.Errorf("code %d, %v\n%s\n%s%s", result.Code, err, b.text, result.Stdout, result.Stderr)
				}
			})
		}
	}
	if ran < 5 {
		t.Errorf("%d blocks were run", ran)
	}
}

func TestBlocksOfCommands(t *testing.T) {
	got, err := commands("text\n\n   <!-- not run: a reason -->\n   ```sh\n   one\n     two\n   ```\n```sh\nthree\n```\n    ```\n```toml\nfour\n```\n")
	if want := fmt.Sprint([]block{{5, "one\n  two\n", "a reason"}, {9, "three\n", ""}}); err != nil || fmt.Sprint(got) != want {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	for _, wrong := range []string{"<!-- not run: -->\n```sh\n```\n", "<!-- not run: why -->\ntext\n", "```sh\nend"} {
		if got, err := commands(wrong); err == nil {
			t.Errorf("%q: %v, want an error", wrong, got)
		}
	}
}
