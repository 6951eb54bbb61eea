//go:build packages

package packages

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gputune/tests/node"
)

// The same source gives the same bytes, in another folder too.
func TestReproducible(t *testing.T) {
	one, two := made(t, first), made(t, second)
	for a, b := range map[string]string{one.deb: two.deb, one.rpm: two.rpm} {
		want, err := os.ReadFile(a)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(b)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(want, got) {
			t.Errorf("%s: %d bytes and, built a second time, %d others", filepath.Base(a), len(want), len(got))
		}
	}
}

// wanted are the files of a package, without man pages and texts.
func wanted(t *testing.T) []string {
	t.Helper()
	list := []string{
		"/etc/gputune/gputune.toml",
		"/usr/bin/gputune", "/usr/sbin/gputune-prolog", "/usr/sbin/gputune-epilog",
		"/usr/lib/gputune/libgputune.so", "/usr/lib/gputune/setup",
		"/usr/share/gputune/plugstack.conf.d/gputune.conf", "/usr/share/gputune/slurm.conf",
		"/usr/share/bash-completion/completions/gputune", "/usr/share/fish/vendor_completions.d/gputune.fish",
	}
	for _, release := range slurmReleases(t) {
		list = append(list, "/usr/lib/gputune/slurm-"+release+"/spank_gputune.so")
	}
	return list
}

func missing(want []string, have string) []string {
	files := strings.Fields(have)
	return slices.DeleteFunc(slices.Clone(want), func(name string) bool { return slices.Contains(files, name) })
}

func TestFiles(t *testing.T) {
	if len(slurmReleases(t)) < 9 {
		t.Fatalf("shims for %v: want 22.05 to 26.11", slurmReleases(t))
	}
	built := made(t, first)
	deb := strings.ReplaceAll(must(t, exec.Command("dpkg-deb", "-c", built.deb)), " ./", " /")
	rpm := must(t, exec.Command("rpm", "-qlp", built.rpm))
	for name, c := range map[string]struct{ list, zsh string }{
		"deb": {deb, "/usr/share/zsh/vendor-completions/_gputune"},
		"rpm": {rpm, "/usr/share/zsh/site-functions/_gputune"},
	} {
		if lost := missing(append(wanted(t), c.zsh), c.list); len(lost) > 0 {
			t.Errorf("the %s lacks %v", name, lost)
		}
		for _, page := range []string{"man5/gputune.toml.5.gz", "man8/gputune-prolog.8.gz", "man8/gputune-epilog.8.gz", "man8/spank_gputune.8.gz"} {
			if !strings.Contains(c.list, "/usr/share/man/"+page) {
				t.Errorf("the %s lacks %s", name, page)
			}
		}
	}
	for line := range strings.Lines(deb) {
		if !strings.Contains(line, " root/root ") {
			t.Errorf("not root's: %s", line)
		}
		if fields := strings.Fields(line); !slices.Contains([]string{"drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x"}, fields[0]) {
			t.Errorf("mode: %s", line)
		}
	}
	for query, want := range map[string]string{"-qcp": "/etc/gputune/gputune.toml\n"} {
		if got := must(t, exec.Command("rpm", query, built.rpm)); got != want {
			t.Errorf("rpm %s: %q, want %q", query, got, want)
		}
	}
}

// lintian and rpmlint have nothing to say but what their files here explain.
// The man page of gputune itself is made from its commands.
func TestLint(t *testing.T) {
	built := made(t, first)
	tree, err := sourceTree()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][]string{
		{"lintian", "--allow-root", "--tag-display-limit=0", "--fail-on=none", built.deb},
		{"rpmlint", "-c", filepath.Join(tree, "rpm", "rpmlint.toml"), built.rpm, filepath.Join(tree, "rpm", "gputune.spec")},
	} {
		output, _ := exec.Command(c[0], c[1:]...).CombinedOutput()
		if !bytes.Contains(output, []byte("packages and 1 specfiles checked")) && c[0] == "rpmlint" {
			t.Errorf("rpmlint did not check:\n%s", output)
		}
		for line := range strings.Lines(string(output)) {
			_, page := os.Stat(filepath.Join(tree, "docs", "man", "gputune.1"))
			if page != nil && strings.Contains(line, "no-manual-page") && strings.Contains(strings.TrimRight(line, "]\n")+"\n", "gputune\n") {
				continue
			}
			if strings.Contains(line, "W: ") || strings.Contains(line, "E: ") {
				t.Errorf("%s: %s", c[0], line)
			}
		}
	}
}

// manager is a package manager on a root.
type manager struct {
	name             string
	of               func(packages) string // its package
	plugins          string                // Slurm's folder of plugins as that kind of distribution has it
	install, upgrade func(*root, *testing.T, string) string
	remove           func(*root, *testing.T) (string, error)
	purge            func(*root, *testing.T)                 // configuration, too
	slurm            func(*root, *testing.T, string)         // installs or upgrades a package of Slurm
	noSlurm          func(*root, *testing.T)                 // removes it
	slurmPackage     func(*testing.T, string, string) string // makes it: folder, release
}

var managers = []manager{
	{
		name:    "deb",
		of:      func(p packages) string { return p.deb },
		plugins: "usr/lib/x86_64-linux-gnu/slurm-wlm",
		install: func(r *root, t *testing.T, path string) string { return r.dpkg(t, "-i", path) },
		upgrade: func(r *root, t *testing.T, path string) string { return r.dpkg(t, "-i", path) },
		remove:  func(r *root, t *testing.T) (string, error) { return r.tryDpkg(t, "-r", "gputune") },
		purge:   func(r *root, t *testing.T) { r.dpkg(t, "-P", "gputune") },
		slurm:   func(r *root, t *testing.T, path string) { r.dpkg(t, "-i", path) },
		noSlurm: func(r *root, t *testing.T) { r.dpkg(t, "-r", "slurmd") },
		slurmPackage: func(t *testing.T, plugins, release string) string {
			tree := &root{dir: t.TempDir()}
			tree.slurm(t, release, plugins)
			tree.write(t, "DEBIAN/control", "Package: slurmd\nVersion: "+release+"\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: Slurm\n", 0o644)
			path := filepath.Join(t.TempDir(), "slurmd.deb")
			must(t, exec.Command("dpkg-deb", "-Zgzip", "--root-owner-group", "-b", tree.dir, path))
			return path
		},
	},
	{
		name:    "rpm",
		of:      func(p packages) string { return p.rpm },
		plugins: "usr/lib64/slurm",
		install: func(r *root, t *testing.T, path string) string { return r.rpm(t, "-i", path) },
		upgrade: func(r *root, t *testing.T, path string) string { return r.rpm(t, "-U", path) },
		remove:  func(r *root, t *testing.T) (string, error) { return r.tryRPM(t, "-e", "gputune") },
		purge: func(r *root, t *testing.T) {
			// What an administrator does with the changed file that rpm keeps.
			if err := os.RemoveAll(filepath.Join(r.dir, "etc/gputune")); err != nil {
				t.Fatal(err)
			}
		},
		slurm:   func(r *root, t *testing.T, path string) { r.rpm(t, "-U", path) },
		noSlurm: func(r *root, t *testing.T) { r.rpm(t, "-e", "slurm-slurmd") },
		slurmPackage: func(t *testing.T, plugins, release string) string {
			tree, top := &root{dir: t.TempDir()}, t.TempDir()
			tree.slurm(t, release, plugins)
			spec := "Name: slurm-slurmd\nVersion: " + release + "\nRelease: 1\nSummary: Slurm\nLicense: GPL\nBuildArch: noarch\n" +
				"%description\nSlurm\n%install\ncp -r " + tree.dir + "/. %{buildroot}\n%files\n/usr/sbin/slurmd\n/" + plugins + "\n"
			tree.write(t, "../slurm.spec", spec, 0o644)
			command := exec.Command("rpmbuild", "--quiet", "-bb", "--define", "_topdir "+top, filepath.Join(filepath.Dir(tree.dir), "slurm.spec"))
			command.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=1767225600")
			must(t, command)
			found, err := filepath.Glob(filepath.Join(top, "RPMS/noarch/*.rpm"))
			if err != nil || len(found) != 1 {
				t.Fatalf("%v, %v", found, err)
			}
			return found[0]
		},
	},
}

func eachManager(t *testing.T, test func(*testing.T, manager)) {
	for _, m := range managers {
		t.Run(m.name, func(t *testing.T) { test(t, m) })
	}
}

// All that gputune brings goes again.
func TestInstallAndRemove(t *testing.T) {
	eachManager(t, func(t *testing.T, m manager) {
		r := newRoot(t)
		r.slurm(t, "24.11", m.plugins)
		before := r.files(t)
		if output := m.install(r, t, m.of(made(t, first))); !strings.Contains(output, "is that for Slurm 24.11") {
			t.Errorf("said %q", output)
		}
		r.wantLink(t, "24.11", m.plugins)
		installed := strings.Join(slices.Collect(maps.Keys(r.files(t))), "\n")
		if lost := missing(wanted(t), installed); len(lost) > 0 {
			t.Errorf("not installed: %v", lost)
		}
		if output, err := r.run(t, "chroot", r.dir, "/usr/bin/gputune", "check", "--gpu-clocks=1200"); err != nil {
			t.Errorf("%v: %s", err, output)
		}
		// What Prolog and Epilog leave behind them.
		r.write(t, "var/lib/gputune/jobs/.keep", "", 0o600)
		r.write(t, "run/gputune/topology.json", "{}", 0o644)
		if output, err := m.remove(r, t); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		if m.name == "deb" {
			m.purge(r, t)
		}
		wantSame(t, before, r.files(t))
	})
}

// The link follows Slurm: each release, one that there is no plugin for, none.
func TestLinkFollowsSlurm(t *testing.T) {
	eachManager(t, func(t *testing.T, m manager) {
		r := newRoot(t)
		if output := m.install(r, t, m.of(made(t, first))); !strings.Contains(output, "no Slurm here") {
			t.Errorf("said %q", output)
		}
		r.wantLink(t, "", m.plugins)
		for _, release := range []string{"22.05", "23.11", "25.05", "26.11"} {
			m.slurm(r, t, m.slurmPackage(t, m.plugins, release))
			r.wantLink(t, release, m.plugins)
		}
		m.slurm(r, t, m.slurmPackage(t, m.plugins, "27.05"))
		r.wantLink(t, "", m.plugins)
		m.noSlurm(r, t)
		r.wantLink(t, "", m.plugins)
		m.slurm(r, t, m.slurmPackage(t, m.plugins, "24.05"))
		r.wantLink(t, "24.05", m.plugins)
		m.noSlurm(r, t)
		r.wantLink(t, "", m.plugins)
		if entries, err := os.ReadDir(filepath.Join(r.dir, m.plugins)); err == nil {
			t.Errorf("in Slurm's folder: %v", entries)
		}
	})
}

// An upgrade keeps what the site has changed, and a removal what rpm and dpkg
// call configuration.
func TestUpgradeKeepsConfiguration(t *testing.T) {
	eachManager(t, func(t *testing.T, m manager) {
		const file, own = "etc/gputune/gputune.toml", "# the site's own\n[job]\non_refusal = \"warn\"\n"
		r := newRoot(t)
		r.slurm(t, "25.11", m.plugins)
		before := r.files(t)
		m.install(r, t, m.of(made(t, first)))
		shipped := r.read(t, file)

		m.upgrade(r, t, m.of(made(t, next)))
		if text := r.read(t, file); !strings.Contains(text, "of the next release") || text == shipped {
			t.Errorf("as it came, it is not upgraded: %.60q", text)
		}
		r.write(t, file, own, 0o644)
		switch m.name { // back and forth, with a file that is the site's own
		case "deb":
			r.dpkg(t, "--force-downgrade", "-i", m.of(made(t, first)))
		default:
			r.rpm(t, "-U", "--oldpackage", m.of(made(t, first)))
		}
		m.upgrade(r, t, m.of(made(t, next)))
		if text := r.read(t, file); text != own {
			t.Errorf("the site's own is %q", text)
		}
		r.wantLink(t, "25.11", m.plugins)
		if output, err := m.remove(r, t); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		kept, err := filepath.Glob(filepath.Join(r.dir, file+"*"))
		if err != nil || !slices.ContainsFunc(kept, func(path string) bool {
			text, err := os.ReadFile(path)
			return err == nil && string(text) == own
		}) {
			t.Errorf("the site's own is gone: %v, %v", kept, err)
		}
		m.purge(r, t)
		wantSame(t, before, r.files(t))
	})
}

// holding is a root with gputune and a job whose power limit is set on a GPU of
// a made-up driver.
func holding(t *testing.T, m manager) (*root, *node.Node) {
	t.Helper()
	r := newRoot(t)
	r.slurm(t, "24.11", m.plugins)
	m.install(r, t, m.of(made(t, first)))
	// The same path inside and outside.
	r.mkdir(t, filepath.Dir(r.dir))
	if err := os.Symlink("/", filepath.Join(r.dir, r.dir)); err != nil {
		t.Fatal(err)
	}
	r.mkdir(t, "node")
	n, err := node.Make(t.Context(), filepath.Join(r.dir, "node"), "demo-dual", "")
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(n.Config)
	if err != nil {
		t.Fatal(err)
	}
	r.write(t, "etc/gputune/gputune.toml", string(config), 0o644)
	r.env = n.NVML.Environ()
	return r, n
}

func (r *root) hold(t *testing.T, n *node.Node) (before, held string) {
	t.Helper()
	before = state(t, n)
	result, err := n.Prolog(t.Context(), node.Job{ID: 7, GPUs: "0", Options: map[string]string{"gpu-power": "500"}})
	if err != nil || result.Code != 0 {
		t.Fatalf("%v, %v", result, err)
	}
	if held = state(t, n); held == before {
		t.Fatalf("the Prolog set nothing: %s", result.Output)
	}
	return before, held
}

func state(t *testing.T, n *node.Node) string {
	t.Helper()
	text, err := n.NVML.StateText()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// What a job has changed is put back before gputune goes.
func TestRemovalRestores(t *testing.T) {
	eachManager(t, func(t *testing.T, m manager) {
		r, n := holding(t, m)
		before, _ := r.hold(t, n)
		output, err := m.remove(r, t)
		if err != nil || !strings.Contains(output, "700 again") {
			t.Errorf("%v\n%s", err, output)
		}
		if now := state(t, n); now != before {
			t.Errorf("the GPUs are\n%s, want\n%s", now, before)
		}
		for _, folder := range []string{n.State, n.Run} {
			if _, err := os.Stat(folder); err == nil {
				t.Errorf("%s is left", folder)
			}
		}
	})
}

// gputune stays where removing it would leave GPUs changed for good, or a node
// without its Prolog.
func TestRemovalThatWouldDoHarm(t *testing.T) {
	eachManager(t, func(t *testing.T, m manager) {
		r, n := holding(t, m)
		before, held := r.hold(t, n)
		fault := filepath.Join(n.NVML.Folder, "fakenvml.faults")
		if err := os.WriteFile(fault, []byte("fault SetPowerManagementLimit error=NO_PERMISSION\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		refused := func(why string) {
			t.Helper()
			output, err := m.remove(r, t)
			if err == nil || !strings.Contains(output, why) {
				t.Errorf("%v, want %q in\n%s", err, why, output)
			}
			r.wantLink(t, "24.11", m.plugins)
			if lost := missing(wanted(t), strings.Join(slices.Collect(maps.Keys(r.files(t))), "\n")); len(lost) > 0 {
				t.Fatalf("gone: %v", lost)
			}
		}
		refused("could not be put back")
		if now := state(t, n); now != held {
			t.Errorf("the GPUs are\n%s, want\n%s", now, held)
		}
		if err := os.Remove(fault); err != nil {
			t.Fatal(err)
		}
		r.write(t, "etc/slurm/slurm.conf", "# Prolog=/usr/sbin/gputune-prolog\nEpilog = /usr/sbin/gputune-epilog\n", 0o644)
		refused("slurm.conf: Epilog = /usr/sbin/gputune-epilog")
		r.write(t, "etc/slurm/slurm.conf", "# Prolog=/usr/sbin/gputune-prolog\n", 0o644)
		if output, err := m.remove(r, t); err != nil {
			t.Errorf("%v\n%s", err, output)
		}
		if now := state(t, n); now != before {
			t.Errorf("the GPUs are\n%s, want\n%s", now, before)
		}
	})
}
