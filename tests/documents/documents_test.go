package documents_test

import (
	"slices"
	"testing"

	"gputune/tests/documents"
)

func TestBlocks(t *testing.T) {
	got, err := documents.Blocks("text\n\n   <!-- not run: a reason -->\n   ```sh\n   one\n     two\n   ```\n```sh\nthree\n```\n" +
		"    ```\n```toml\nfour\n```\n<!-- in the virtual machine: install -->\n```sh\nfive\n\n```\n")
	want := []documents.Block{
		{Line: 5, Text: "one\n  two\n", NotRun: "a reason"},
		{Line: 9, Text: "three\n"},
		{Line: 17, Text: "five\n\n", Machine: "install"},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	for _, wrong := range []string{
		"<!-- not run: -->\n```sh\n```\n", "<!-- not run: why -->\ntext\n", "```sh\nend",
		"<!-- in the virtual machine: -->\n```sh\n```\n", "<!-- in the virtual machine: install -->\n",
	} {
		if got, err := documents.Blocks(wrong); err == nil {
			t.Errorf("%q: %v, want an error", wrong, got)
		}
	}
}
