//go:build packages

package packages

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// bare is a root with what setup works on, and nothing of a package.
func bare(t *testing.T) *root {
	t.Helper()
	tree, err := sourceTree()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(tree, "rpm", "setup"))
	if err != nil {
		t.Fatal(err)
	}
	r := newRoot(t)
	r.write(t, "usr/lib/gputune/setup", string(text), 0o755)
	for _, release := range []string{"24.05", "24.11"} {
		r.write(t, "usr/lib/gputune/slurm-"+release+"/spank_gputune.so", release, 0o644)
	}
	return r
}

func (r *root) setup(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	return r.run(t, "chroot", append([]string{r.dir, "/usr/lib/gputune/setup"}, arguments...)...)
}

func TestSetup(t *testing.T) {
	const debian = "usr/lib/x86_64-linux-gnu/slurm-wlm"
	// A command that wants a configuration before it says its release.
	sinfo := "#!/bin/sh\n[ -r \"$SLURM_CONF\" ] && grep -q ^ClusterName= \"$SLURM_CONF\" && echo 'slurm-wlm 24.05.3' || exit 1\n"
	for _, c := range []struct {
		name          string
		make          func(*testing.T, *root)
		release, said string
		plugins       string
	}{
		{"login node", func(t *testing.T, r *root) {
			r.write(t, "usr/bin/sinfo", sinfo, 0o755)
			r.write(t, debian+"/libslurmfull.so", "", 0o644)
		}, "24.05", "is that for Slurm 24.05", debian},
		{"Slurm in /opt", func(t *testing.T, r *root) {
			r.write(t, "opt/slurm/sbin/slurmd", slurmd("24.11"), 0o755)
			r.write(t, "opt/slurm/lib/slurm/libslurmfull.so", "", 0o644)
		}, "24.11", "is that for Slurm 24.11", "opt/slurm/lib/slurm"},
		{"slurmd that a link names", func(t *testing.T, r *root) {
			r.write(t, "usr/local/slurm-24.11/sbin/slurmd", slurmd("24.11"), 0o755)
			r.write(t, "usr/local/slurm-24.11/lib64/slurm/libslurmfull.so", "", 0o644)
			if err := os.Symlink("/usr/local/slurm-24.11/sbin/slurmd", filepath.Join(r.dir, "usr/sbin/slurmd")); err != nil {
				t.Fatal(err)
			}
		}, "24.11", "is that for Slurm 24.11", "usr/local/slurm-24.11/lib64/slurm"},
		{"slurmd that says nothing", func(t *testing.T, r *root) {
			r.write(t, "usr/sbin/slurmd", "#!/bin/sh\nexit 1\n", 0o755)
		}, "", "no Slurm here", debian},
		{"no plugin for it", func(t *testing.T, r *root) {
			r.slurm(t, "20.11", debian)
		}, "", "Slurm 20.11: no plugin for it: there are those for 24.05 24.11", debian},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := bare(t)
			c.make(t, r)
			before := r.files(t)
			output, err := r.setup(t, "link")
			if (err == nil) != (c.release != "") || !strings.Contains(output, c.said) {
				t.Errorf("%v, %q: want %q", err, output, c.said)
			}
			r.wantLink(t, c.release, c.plugins)
			after := r.files(t)
			if again, _ := r.setup(t, "link"); again != output {
				t.Errorf("a second time: %q, first %q", again, output)
			}
			wantSame(t, after, r.files(t))
			if output, err := r.setup(t, "unlink"); err != nil {
				t.Errorf("%v: %s", err, output)
			}
			wantSame(t, before, r.files(t))
		})
	}
}

// A file of that name which is not gputune's stays, and Slurm finds the plugin
// by its own path.
func TestSetupLeavesOthersFiles(t *testing.T) {
	const theirs = "usr/lib64/slurm/spank_gputune.so"
	r := bare(t)
	r.slurm(t, "24.11", "usr/lib64/slurm")
	r.write(t, theirs, "the site's own", 0o644)
	if output, err := r.setup(t, "link"); err != nil || !strings.Contains(output, "is not gputune's and stays") {
		t.Errorf("%v: %s", err, output)
	}
	if link, err := os.Readlink(filepath.Join(r.dir, "usr/lib/gputune/spank_gputune.so")); err != nil || link != "slurm-24.11/spank_gputune.so" {
		t.Errorf("%q, %v", link, err)
	}
	if _, err := r.setup(t, "unlink"); err != nil {
		t.Error(err)
	}
	if text := r.read(t, theirs); text != "the site's own" {
		t.Errorf("%q", text)
	}
}

// A folder of state that a site has moved is removed if it is gputune's, and
// nothing else ever.
func TestSetupLeave(t *testing.T) {
	for name, c := range map[string]struct {
		state string
		gone  bool
	}{
		"as installed": {"", true}, "moved": {"/srv/gputune/state", true}, "a folder of others": {"/srv/data", false},
	} {
		t.Run(name, func(t *testing.T) {
			r := bare(t)
			folder := "var/lib/gputune"
			if c.state != "" {
				folder = strings.TrimPrefix(c.state, "/")
				r.write(t, "etc/gputune/gputune.toml", "[job]\nstate = \"/\"\n[paths]\n  state = \""+c.state+"\" # moved\n[gpu_power]\n", 0o644)
			}
			r.write(t, folder+"/jobs/file", "", 0o600)
			if output, err := r.setup(t, "leave"); err != nil {
				t.Errorf("%v: %s", err, output)
			}
			if _, err := os.Stat(filepath.Join(r.dir, folder)); (err != nil) != c.gone {
				t.Errorf("%s: %v, gone should be %v", folder, err, c.gone)
			}
		})
	}
}

// systemd is a root with a systemctl that writes down what it is told; the agent
// runs there.
func systemd(t *testing.T) *root {
	t.Helper()
	r := bare(t)
	r.mkdir(t, "run/systemd/system")
	r.write(t, "usr/bin/systemctl", "#!/bin/sh\necho \"systemctl $*\" >>/log\n", 0o755)
	return r
}

// The agent is started anew by an upgrade, and stopped before what jobs hold is
// put back for a removal; where that fails it runs on.
func TestSetupAndTheAgent(t *testing.T) {
	for name, c := range map[string]struct {
		action, restore string
		want            string
	}{
		"installed or upgraded": {"serve", "true", "systemctl --quiet daemon-reload\nsystemctl --quiet try-restart gputuned.service\n"},
		"removed": {"leave", "true", "systemctl --quiet is-active gputuned.service\nsystemctl --quiet stop gputuned.service\ngputune restore --all\n" +
			"systemctl --quiet disable gputuned.service\nsystemctl --quiet stop gputune.slice\nsystemctl --quiet reset-failed gputune*\n"},
		"not removed": {"leave", "false", "systemctl --quiet is-active gputuned.service\nsystemctl --quiet stop gputuned.service\ngputune restore --all\n" +
			"systemctl --quiet start gputuned.service\n"},
	} {
		t.Run(name, func(t *testing.T) {
			r := systemd(t)
			r.write(t, "usr/bin/gputune", "#!/bin/sh\necho \"gputune $*\" >>/log\n"+c.restore+"\n", 0o755)
			if output, err := r.setup(t, c.action); (err == nil) != (c.restore == "true") {
				t.Errorf("%v: %s", err, output)
			}
			if got := r.read(t, "log"); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestSetupRefusesWhatItDoesNotKnow(t *testing.T) {
	r := bare(t)
	before := r.files(t)
	for _, arguments := range [][]string{{}, {"install"}, {"link", "24.11"}, {"link", "--release"}} {
		if output, err := r.setup(t, arguments...); err == nil || !strings.Contains(output, "want link") {
			t.Errorf("%v: %v: %s", arguments, err, output)
		}
	}
	wantSame(t, before, r.files(t))
}
