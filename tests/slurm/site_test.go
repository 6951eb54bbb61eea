//go:build slurm

package slurm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gputune/tests/slurm/bed"
	"gputune/tests/slurm/site"
)

// Whatever is wrong with gputune.toml, jobs run, and slurmd's log has one line
// for each step that reads it.
func TestConfigurationThatIsNotUsed(t *testing.T) {
	t.Parallel()
	s := start(t, site.Options{})
	path := filepath.Join(s.Folder, "gputune.toml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, line string
		change     func() error
	}{
		{"as it is", "", func() error { return nil }},
		{"broken", "gputune.toml: line ", func() error { return os.WriteFile(path, append(text, "\n[numa_bind]\nitems = \n"...), 0o644) }},
		{"unknown key", "unknown key numa_bind.item", func() error {
			return os.WriteFile(path, append(text, "\n[numa_bind]\nitem = \"on\"\n"...), 0o644)
		}},
		{"others may write", "mode 0666", func() error { return os.Chmod(path, 0o666) }},
		{"group may write", "mode 0664", func() error { return os.Chmod(path, 0o664) }},
		{"not root's", "owner is user 65534", func() error { return os.Chown(path, 65534, 65534) }},
		{"a folder", "want a regular file", func() error { return os.Mkdir(path, 0o755) }},
		{"missing", "no such file", func() error { return nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			if c.name != "a folder" && c.name != "missing" {
				if err := os.WriteFile(path, text, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.change(); err != nil {
				t.Fatal(err)
			}
			before := len(s.Log(bed.Slurmd))
			if result := srun(t, s, "-n2", "--gpus=2", "--gpu-numa-bind", "echo", "ran"); strings.Count(result.Stdout, "ran") != 2 {
				t.Errorf("stdout %q", result.Stdout)
			}
			srun(t, s, "-n1", "--gpus=1", "true") // reads nothing, says nothing
			var said []string
			for line := range strings.Lines(s.Log(bed.Slurmd)[before:]) {
				if strings.Contains(line, "gputune.toml") {
					said = append(said, line)
				}
			}
			switch {
			case c.line == "" && len(said) > 0:
				t.Errorf("said %q", said)
			case c.line != "" && (len(said) != 1 || !strings.Contains(said[0], c.line) || !strings.Contains(said[0], "the defaults are used")):
				t.Errorf("said %q, want one line with %q", said, c.line)
			}
		})
	}
}

// srun, sbatch and salloc list the options together, each line marked, on a
// screen of 80 columns.
func TestHelp(t *testing.T) {
	s := need(t, open)
	for _, name := range []string{"srun", "sbatch", "salloc"} {
		help := must(t, s, name, "--help").Stdout
		_, block, found := strings.Cut(help, "Options provided by plugins:\n")
		if !found {
			t.Fatalf("%s --help names no options of plugins:\n%s", name, help)
		}
		block, _, _ = strings.Cut(strings.TrimLeft(block, "\n"), "\n\n")
		t.Logf("%s:\n%s", name, block)
		for _, option := range []string{"--gpu-numa-bind", "--gpu-mig", "--gpu-clocks", "--gpu-power", "--gpu-compute-mode", "--gpu-mps", "--node-profile", "--thp", "--hugepages", "--drop-caches"} {
			if got := strings.Count(block, option); got != 1 {
				t.Errorf("%s: %s is in the block %d times", name, option, got)
			}
		}
		for line := range strings.Lines(block) {
			line = strings.TrimRight(line, "\n")
			if len(line) > 80 {
				t.Errorf("%s: %d columns: %q", name, len(line), line)
			}
			// Slurm gives a line to a name that is long.
			if name, isName := strings.CutPrefix(line, "      --"); isName && len(name) > 22 {
				continue
			}
			if !strings.Contains(line, "[gputune] ") {
				t.Errorf("%s: not marked: %q", name, line)
			}
		}
	}
}

// A site's plugstack.conf takes in the file that is installed, by a pattern that
// may match nothing once it is gone.
func TestIncludedFile(t *testing.T) {
	s := need(t, open)
	folder := filepath.Join(t.TempDir(), "plugstack.conf.d")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	tree, err := site.Tree()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(tree, "conf/plugstack.conf.d/gputune.conf"))
	if err != nil {
		t.Fatal(err)
	}
	if count := strings.Count(string(text), "/usr/lib/gputune/spank_gputune.so"); count != 1 {
		t.Fatalf("the file has the plugin's place %d times", count)
	}
	installed := strings.ReplaceAll(string(text), "/usr/lib/gputune/spank_gputune.so", s.Shim)
	file := filepath.Join(folder, "gputune.conf")
	if err := os.WriteFile(file, []byte(installed), 0o644); err != nil {
		t.Fatal(err)
	}
	with := start(t, site.Options{Without: true, Bed: bed.Options{PlugstackLines: []string{"include " + folder + "/*.conf"}}})
	if help := must(t, with, "srun", "--help"); !strings.Contains(help.Stdout, "--gpu-numa-bind") {
		t.Error("srun has no option")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	result := srun(t, with, "-n1", "echo", "ran")
	if result.Stderr != "" || !strings.Contains(result.Stdout, "ran") {
		t.Errorf("after the removal: %q, %q", result.Stdout, result.Stderr)
	}
	if err := with.Restart(t.Context(), bed.Slurmd); err != nil {
		t.Error(err)
	}
	if result := srun(t, with, "-n1", "echo", "ran"); result.Stderr != "" || !strings.Contains(result.Stdout, "ran") {
		t.Errorf("after a restart: %q, %q", result.Stdout, result.Stderr)
	}
}

// Slurm drains a node whose Prolog is not there: why gputune is not removed while
// slurm.conf names it.
func TestPrologThatIsGone(t *testing.T) {
	t.Parallel()
	s := start(t, site.Options{Without: true, Bed: bed.Options{
		Prolog: "/nonexistent/gputune-prolog", ExtraSlurmConf: []string{"PrologFlags=Alloc"},
	}})
	command := s.Command("srun", "-n1", "true")
	command.Timeout = 10 * time.Second
	if result, err := command.Run(t.Context()); err == nil && result.Code == 0 {
		t.Errorf("the job ran: %v", result)
	}
	state, reason, err := s.NodeState(t.Context())
	if err != nil || !strings.Contains(state, "drain") {
		t.Errorf("the node is %q (%s), %v", state, reason, err)
	}
}
