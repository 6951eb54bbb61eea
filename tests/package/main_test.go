//go:build packages

// Package packages tests the rpm and the deb: that the same source gives the
// same bytes, what is in them, and that they come and go without a trace.
package packages

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// scratch is where packages are built a second time.
var scratch string

func TestMain(m *testing.M) {
	flag.Parse()
	var err error
	if scratch, err = os.MkdirTemp("", "gputune-packages-"); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	status := m.Run()
	_ = os.RemoveAll(scratch)
	os.Exit(status)
}

// packages are paths of an rpm and a deb.
type packages struct{ deb, rpm string }

// first builds the packages in the source tree.
var first = sync.OnceValues(func() (packages, error) {
	tree, err := sourceTree()
	if err != nil {
		return packages{}, err
	}
	return makePackages(tree)
})

// second builds them in another folder, with nothing that was built before.
var second = sync.OnceValues(func() (packages, error) {
	tree, err := sourceTree()
	if err != nil {
		return packages{}, err
	}
	other := filepath.Join(scratch, "another", "place")
	if err := copyTree(tree, other); err != nil {
		return packages{}, err
	}
	return makePackages(other)
})

// next builds those of the next release, which has another gputune.toml.
var next = sync.OnceValues(func() (packages, error) {
	tree, err := sourceTree()
	if err != nil {
		return packages{}, err
	}
	changed := filepath.Join(scratch, "next")
	if err := copyTree(tree, changed); err != nil {
		return packages{}, err
	}
	// What is compiled is the same.
	if err := os.CopyFS(filepath.Join(changed, "build"), os.DirFS(filepath.Join(tree, "build"))); err != nil {
		return packages{}, err
	}
	config := filepath.Join(changed, "conf", "gputune.toml")
	text, err := os.ReadFile(config)
	if err != nil {
		return packages{}, err
	}
	if err := os.WriteFile(config, append(text, "# of the next release\n"...), 0o644); err != nil {
		return packages{}, err
	}
	return makePackages(changed, "PACKAGE_RELEASE=2", "LEVEL=0")
})

// made returns packages that were built, or ends the test.
func made(t *testing.T, build func() (packages, error)) packages {
	t.Helper()
	p, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// sourceTree returns the top folder of the source.
var sourceTree = sync.OnceValues(func() (string, error) {
	module, err := exec.Command("go", "env", "GOMOD").Output()
	return filepath.Dir(strings.TrimSpace(string(module))), err
})

// slurmReleases returns what the Makefile builds shims for.
func slurmReleases(t *testing.T) []string {
	t.Helper()
	tree, err := sourceTree()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(tree, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(`(?m)^SLURM_RELEASES := (.*)$`).FindSubmatch(text)
	if match == nil {
		t.Fatal("the Makefile has no SLURM_RELEASES")
	}
	return strings.Fields(string(match[1]))
}

// copyTree copies the source without what was built or is git's. All that a
// package may depend on comes from it, but for the time of the last commit.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, from)
		if name == "/build" || name == "/.git" {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		target := to + name
		if entry.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(target, text, info.Mode())
	})
}

// makePackages makes both packages.
func makePackages(tree string, variables ...string) (packages, error) {
	source, err := sourceTree()
	if err != nil {
		return packages{}, err
	}
	epoch, err := exec.Command("git", "-C", source, "log", "-1", "--format=%ct").Output()
	if err != nil {
		epoch = []byte("1767225600") // no checkout
	}
	command := exec.Command("make", "-s", "deb", "rpm")
	command.Dir = tree
	command.Env = append(os.Environ(), "SOURCE_DATE_EPOCH="+strings.TrimSpace(string(epoch)), "MAKEFLAGS=", "MAKELEVEL=")
	command.Env = append(command.Env, variables...)
	output, err := command.CombinedOutput()
	if err != nil {
		return packages{}, fmt.Errorf("make deb rpm in %s: %w\n%s", tree, err, output)
	}
	var p packages
	for line := range strings.Lines(string(output)) {
		switch line = strings.TrimSpace(line); filepath.Ext(line) {
		case ".deb":
			p.deb = filepath.Join(tree, line)
		case ".rpm":
			p.rpm = filepath.Join(tree, line)
		}
	}
	if p.deb == "" || p.rpm == "" {
		return packages{}, fmt.Errorf("make deb rpm in %s named no packages:\n%s", tree, output)
	}
	return p, nil
}
