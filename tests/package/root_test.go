//go:build packages

package packages

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// tools are the programs that scripts of packages may use, which every
// distribution has.
var tools = []string{
	"sh", "cat", "chmod", "cp", "cut", "dirname", "grep", "head", "ln", "ls", "mkdir", "mktemp", "mv", "pwd",
	"readlink", "rm", "rmdir", "sed", "sort", "timeout", "tr", "true",
}

// root is a folder with a minimal system, that packages are installed into.
type root struct {
	dir string
	env []string // more variables for the package manager and its scripts
}

// newRoot makes a system of tools and their libraries, with the databases of
// dpkg and rpm.
func newRoot(t *testing.T) *root {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can change its root folder")
	}
	r := &root{dir: t.TempDir()}
	for _, folder := range []string{
		"dev", "etc", "opt", "proc", "run", "tmp", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "var/lib/dpkg/info",
		"var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/log", "var/lib/rpm", "var/tmp",
		// Folders of the system's own packages.
		"usr/share/doc", "usr/share/licenses", "usr/share/man/man5", "usr/share/man/man8", "usr/share/man/man1", "usr/share/man/man7", "usr/lib/systemd/system", "usr/share/zsh/site-functions",
		"usr/share/bash-completion/completions", "usr/share/fish/vendor_completions.d",
	} {
		r.mkdir(t, folder)
	}
	// dpkg takes folders along that nothing else is in.
	for _, name := range []string{
		"etc/hostname", "usr/share/doc/base", "usr/share/licenses/base", "usr/share/man/man5/base", "usr/share/man/man8/base",
		"usr/share/man/man1/base", "usr/share/man/man7/base", "usr/lib/systemd/system/base", "usr/share/bash-completion/completions/base", "usr/share/fish/vendor_completions.d/base",
	} {
		r.write(t, name, "", 0o644)
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+name, filepath.Join(r.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	// dpkg runs no triggers of a package that lacks something.
	libc := fmt.Sprintf("Package: libc6\nStatus: install ok installed\nVersion: 2.36-9\nArchitecture: %s\n"+
		"Maintainer: nobody <nobody@example.org>\nDescription: C library\n", strings.TrimSpace(must(t, exec.Command("dpkg", "--print-architecture"))))
	r.write(t, "var/lib/dpkg/status", libc, 0o644)
	r.write(t, "var/lib/dpkg/info/libc6.list", "", 0o644)
	for _, name := range []string{"available", "diversions", "statoverride"} {
		r.write(t, "var/lib/dpkg/"+name, "", 0o644)
	}
	for _, name := range append([]string{"dpkg-trigger"}, tools...) {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		r.program(t, path, "usr/bin/"+name)
	}
	must(t, exec.Command("mknod", "-m", "666", filepath.Join(r.dir, "dev/null"), "c", "1", "3"))
	return r
}

func (r *root) mkdir(t *testing.T, folder string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(r.dir, folder), 0o755); err != nil {
		t.Fatal(err)
	}
}

// write writes a file and the folders above it.
func (r *root) write(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	r.mkdir(t, filepath.Dir(name))
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func (r *root) read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var library = regexp.MustCompile(`(/\S+) \(0x`)

// program copies a program and the libraries that it is linked to.
func (r *root) program(t *testing.T, path, name string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r.write(t, name, string(text), 0o755)
	output, err := exec.Command("ldd", path).Output()
	if err != nil {
		return // a script, or not linked to any
	}
	for _, match := range library.FindAllStringSubmatch(string(output), -1) {
		if _, err := os.Stat(filepath.Join(r.dir, match[1])); err == nil {
			continue
		}
		text, err := os.ReadFile(match[1])
		if err != nil {
			t.Fatal(err)
		}
		r.write(t, match[1], string(text), 0o755)
	}
}

// slurm puts a Slurm there that is of a release: slurmd's answer, and the folder
// of plugins.
func (r *root) slurm(t *testing.T, release, plugins string) {
	t.Helper()
	r.write(t, "usr/sbin/slurmd", slurmd(release), 0o755)
	r.write(t, plugins+"/libslurmfull.so", "", 0o644)
}

func slurmd(release string) string {
	return fmt.Sprintf("#!/bin/sh\n[ \"$*\" = -V ] && echo 'slurm %s.5'\n", release)
}

// run runs a package manager, in a mount namespace of its own where /proc is in
// the root, and returns what it and its scripts said.
func (r *root) run(t *testing.T, name string, arguments ...string) (string, error) {
	t.Helper()
	script := `mount -t proc proc "$0/proc" && exec "$@"`
	command := exec.CommandContext(t.Context(), "unshare", append([]string{"--mount", "sh", "-c", script, r.dir, name}, arguments...)...)
	command.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C"}, r.env...)
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	err := command.Run()
	return output.String(), err
}

// dpkg runs dpkg on the root; it is a failure if it fails.
func (r *root) dpkg(t *testing.T, arguments ...string) string {
	t.Helper()
	output, err := r.tryDpkg(t, arguments...)
	if err != nil {
		t.Fatalf("dpkg %v: %v\n%s", arguments, err, output)
	}
	return output
}

func (r *root) tryDpkg(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	return r.run(t, "dpkg", append([]string{"--root=" + r.dir, "--force-confdef", "--force-confold"}, arguments...)...)
}

// rpm runs rpm on the root; it is a failure if it fails.
func (r *root) rpm(t *testing.T, arguments ...string) string {
	t.Helper()
	output, err := r.tryRPM(t, arguments...)
	if err != nil {
		t.Fatalf("rpm %v: %v\n%s", arguments, err, output)
	}
	return output
}

func (r *root) tryRPM(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	return r.run(t, "rpm", append([]string{"--root=" + r.dir, "--dbpath=/var/lib/rpm", "--nodeps"}, arguments...)...)
}

// files returns what is in the root, each file with its mode and what is in it.
// The package managers' own records are left out.
func (r *root) files(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(r.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, r.dir)
		switch name {
		case "/var/lib/dpkg", "/var/lib/rpm", "/var/log", "/proc":
			return fs.SkipDir
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		content := ""
		switch {
		case entry.Type() == fs.ModeSymlink:
			if content, err = os.Readlink(path); err != nil {
				return err
			}
		case entry.Type().IsRegular():
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = fmt.Sprintf("%x", sha256.Sum256(text))
		}
		found[name] = info.Mode().String() + " " + content
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// wantSame fails the test for what is in one of two lists of files only, or not
// the same in both.
func wantSame(t *testing.T, before, after map[string]string) {
	t.Helper()
	for name, what := range after {
		if was, there := before[name]; !there {
			t.Errorf("left behind: %s (%s)", name, what)
		} else if was != what {
			t.Errorf("%s is %s and was %s", name, what, was)
		}
	}
	for name := range before {
		if _, there := after[name]; !there {
			t.Errorf("gone: %s", name)
		}
	}
}

// wantLink fails the test unless the plugin that Slurm loads is that of a
// release; "" for no plugin. plugins is Slurm's own folder of them.
func (r *root) wantLink(t *testing.T, release, plugins string) {
	t.Helper()
	for name, want := range map[string]string{
		"usr/lib/gputune/spank_gputune.so": "slurm-" + release + "/spank_gputune.so",
		plugins + "/spank_gputune.so":      "/usr/lib/gputune/spank_gputune.so",
	} {
		got, err := os.Readlink(filepath.Join(r.dir, name))
		switch {
		case release == "" && !errors.Is(err, fs.ErrNotExist):
			t.Errorf("%s: %q, %v: want none", name, got, err)
		case release != "" && got != want:
			t.Errorf("%s: %q, %v: want %q", name, got, err, want)
		}
	}
	if release == "" {
		return
	}
	if _, err := os.Stat(filepath.Join(r.dir, "usr/lib/gputune/spank_gputune.so")); err != nil {
		t.Error(err)
	}
}

// must runs a command that has to succeed and returns its standard output.
func must(t *testing.T, command *exec.Cmd) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		t.Fatalf("%v: %v\n%s%s", command, err, stdout.String(), stderr.String())
	}
	return stdout.String()
}
