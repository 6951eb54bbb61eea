package main

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

var update = flag.Bool("update", false, "write the man pages and the golden files anew")

const manFolder = "../../docs/man"

func pages() []*cobra.Command {
	root := command()
	list := []*cobra.Command{root}
	for _, c := range root.Commands() {
		if isShown(c) {
			list = append(list, c)
		}
	}
	return list
}

// The pages in docs/man are those of this program: "make man" writes them.
func TestManPages(t *testing.T) {
	wanted := make(map[string]bool)
	for _, c := range pages() {
		wanted[manFile(c)] = true
		path := filepath.Join(manFolder, manFile(c))
		page := manPage(c)
		if *update {
			if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if content, err := os.ReadFile(path); err != nil || string(content) != page {
			t.Errorf("%s is not what the program says (%v): write it anew with make man", path, err)
		}
		for _, part := range []string{".TH ", "\n.SH NAME\n", "\n.SH DESCRIPTION\n", "\n.SH SEE ALSO\n"} {
			if strings.Count("\n"+page, part) != 1 {
				t.Errorf("%s: want one %q in\n%s", path, part, page)
			}
		}
	}
	there, err := filepath.Glob(filepath.Join(manFolder, "gputune*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range there {
		name := filepath.Base(path)
		// The programs and files have pages that somebody wrote.
		if !wanted[name] && filepath.Ext(name) != ".8" && filepath.Ext(name) != ".5" {
			t.Errorf("%s: is no command's", path)
		}
	}
}

// The formatter that man(1) uses has nothing to complain about.
func TestManPagesAreRoff(t *testing.T) {
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("no groff here")
	}
	for _, c := range pages() {
		format := exec.Command(groff, "-man", "-Tutf8", "-ww", "-z")
		format.Stdin = strings.NewReader(manPage(c))
		if output, err := format.CombinedOutput(); err != nil || len(output) > 0 {
			t.Errorf("%s: %v\n%s", manFile(c), err, output)
		}
	}
}
