package snapshot

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gputune/internal/topology"
	"gputune/tests/machines"
)

type never struct{ t *testing.T }

func (n never) Facts(int, int) topology.NVMLFacts {
	n.t.Error("NVML was asked about a machine that it does not run on")
	return topology.NVMLFacts{}
}

// A snapshot holds until the driver is loaded again or MIG devices come or go.
func TestStale(t *testing.T) {
	root, remove, err := machines.Scratch()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := remove(); err != nil {
			t.Error(err)
		}
	}()
	description, err := machines.Get("demo-dual")
	if err != nil {
		t.Fatal(err)
	}
	if err := description.Render(root); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "gputune", "topology.json")
	wants := func(key, want string) {
		t.Helper()
		err := Stale(root, path, key)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("stale: %v, want %q", err, want)
		}
	}
	wants("", "there is none")
	if os.Getuid() != 0 {
		t.Skip("only root's snapshots are believed")
	}
	machine, err := Take(root, path, never{t})
	if err != nil || len(machine.GPUs) != 4 {
		t.Fatalf("%v, %+v", err, machine)
	}
	wants("", "an earlier run")
	key := Key(root)
	wants(key, "")
	const changed = "loaded again, or GPUs or MIG devices"
	instance := filepath.Join(root, capabilities, "gpu0/mig/gi1/ci0")
	if err := os.MkdirAll(instance, 0o755); err != nil {
		t.Fatal(err)
	}
	wants(key, changed)
	key = Key(root)
	wants(key, "")
	if err := os.Remove(instance); err != nil {
		t.Fatal(err)
	}
	wants(key, changed)
	key = Key(root)
	// Loaded again: the same names, made anew.
	aside := filepath.Join(root, driver+".before")
	if err := os.Rename(filepath.Join(root, driver), aside); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(root, driver), os.DirFS(aside)); err != nil {
		t.Fatal(err)
	}
	wants(key, changed)
}
