package topology_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gputune/internal/topology"
	"gputune/tests/machines"
)

// kept is a machine with a snapshot of it.
func kept(t *testing.T, name string) (tree, string, *topology.Machine) {
	t.Helper()
	root := scratch(t)
	m, err := described(t, name).Machine(root)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "run/gputune/topology.json")
	if err := topology.WriteSnapshot(root, path, m); err != nil {
		t.Fatal(err)
	}
	return tree{t, root}, path, m
}

// readOwn reads a snapshot that the user of the test wrote, who need not be
// root.
func readOwn(root, path string) (*topology.Machine, error) {
	return topology.ReadSnapshotOwned(root, path, uint32(os.Geteuid()))
}

func TestSnapshotComesBack(t *testing.T) {
	for _, d := range machines.All() {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			tree, path, m := kept(t, d.Name)
			back, err := readOwn(tree.root, path)
			if err != nil {
				t.Fatal(err)
			}
			want := readableJSON(t, m)
			if got := readableJSON(t, back); !bytes.Equal(got, want) {
				t.Errorf("back came\n%s\nwant\n%s", got, want)
			}
			back.Resolve() // must not say anything twice
			if got := readableJSON(t, back); !bytes.Equal(got, want) {
				t.Errorf("resolved again\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestWriteSnapshot(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	tree, path, m := kept(t, "demo-dual")
	for name, want := range map[string]fs.FileMode{path: 0o644, filepath.Dir(path): fs.ModeDir | 0o755} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", name, info.Mode(), want)
		}
	}
	// A second one replaces the first, and nothing is left beside it.
	m.Warnings = []string{"second"}
	if err := topology.WriteSnapshot(tree.root, path, m); err != nil {
		t.Fatal(err)
	}
	back, err := readOwn(tree.root, path)
	if err != nil || len(back.Warnings) != 1 || back.Warnings[0] != "second" {
		t.Errorf("%v, %v", back, err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("%v, %v: want the snapshot only", entries, err)
	}
	// Where it cannot be put in place it leaves nothing either.
	blocked := filepath.Join(tree.root, "run/blocked/topology.json")
	tree.write("run/blocked/topology.json/in/the/way", "")
	if err := topology.WriteSnapshot(tree.root, blocked, m); err == nil {
		t.Error("replaced a folder")
	}
	if entries, err := os.ReadDir(filepath.Dir(blocked)); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v: want the folder only", entries, err)
	}
	tree.remove("proc/sys/kernel/random/boot_id")
	if err := topology.WriteSnapshot(tree.root, path, m); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "boot_id") {
		t.Errorf("%v, want an error about boot_id", err)
	}
}

func TestSnapshotGoesStale(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(tree)
		what   string
		then   string
		now    string
	}{
		{
			"reboot", func(t tree) { t.write("proc/sys/kernel/random/boot_id", "00000000-1111-2222-3333-444444444444\n") },
			"boot id", machines.BootID, "00000000-1111-2222-3333-444444444444",
		},
		{
			"driver updated",
			func(t tree) {
				t.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  590.10.01  Mon\n")
			},
			"driver version", "535.183.06", "590.10.01",
		},
		{
			"driver unloaded", func(t tree) { t.remove("proc/driver/nvidia/version") },
			"driver version", "535.183.06", "",
		},
		{
			"GPU gone", func(t tree) { t.remove(gpuFolder + "0000:17:00.0") },
			"GPUs", "0000:17:00.0,0000:b1:00.0", "0000:b1:00.0",
		},
		{
			"GPU come", func(t tree) { t.write(gpuFolder+"0000:31:00.0/information", "") },
			"GPUs", "0000:17:00.0,0000:b1:00.0", "0000:17:00.0,0000:31:00.0,0000:b1:00.0",
		},
		{
			"CPU offline", func(t tree) { t.write(cpuFolder+"online", "0-30\n") },
			"online CPUs", "0-31", "0-30",
		},
		{
			"node come", func(t tree) { t.write(nodeFolder+"online", "0-2\n") },
			"online NUMA nodes", "0-1", "0-2",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			tree, path, _ := kept(t, "gpu-at-minus-one")
			if _, err := readOwn(tree.root, path); err != nil {
				t.Fatal(err)
			}
			tree.T = t
			test.change(tree)
			_, err := readOwn(tree.root, path)
			var stale *topology.StaleError
			if !errors.As(err, &stale) {
				t.Fatalf("%v, want a StaleError", err)
			}
			if stale.What != test.what || stale.Then != test.then || stale.Now != test.now {
				t.Errorf("%+v", stale)
			}
			for _, part := range []string{test.what, test.then, test.now} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not name %q", err, part)
				}
			}
		})
	}
}

func TestSnapshotIsRefused(t *testing.T) {
	edit := func(from, to string) func(*testing.T, tree, string) {
		return func(t *testing.T, _ tree, path string) {
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			changed := bytes.Replace(content, []byte(from), []byte(to), 1)
			if bytes.Equal(changed, content) {
				t.Fatalf("%q is not in the snapshot", from)
			}
			if err := os.WriteFile(path, changed, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name   string
		change func(t *testing.T, tree tree, path string)
		want   error
		says   string
	}{
		{"missing", func(_ *testing.T, _ tree, path string) { must(os.Remove(path)) }, fs.ErrNotExist, "topology.json"},
		{"writable by the group", func(_ *testing.T, _ tree, path string) { must(os.Chmod(path, 0o664)) }, topology.ErrUntrusted, "0664"},
		{"writable by others", func(_ *testing.T, _ tree, path string) { must(os.Chmod(path, 0o646)) }, topology.ErrUntrusted, "0646"},
		{
			"a link", func(_ *testing.T, _ tree, path string) {
				must(os.Rename(path, path+".real"))
				must(os.Symlink(path+".real", path))
			}, topology.ErrUntrusted, "symbolic link",
		},
		{
			"a FIFO", func(_ *testing.T, _ tree, path string) {
				must(os.Remove(path))
				must(syscall.Mkfifo(path, 0o644))
			}, topology.ErrUntrusted, "regular file",
		},
		{
			"a folder", func(_ *testing.T, _ tree, path string) {
				must(os.Remove(path))
				must(os.Mkdir(path, 0o755))
			}, topology.ErrUntrusted, "regular file",
		},
		{
			"torn", func(t *testing.T, _ tree, path string) {
				info, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				must(os.Truncate(path, info.Size()/2))
			}, topology.ErrNotSnapshot, "unexpected end of JSON",
		},
		{"empty", func(_ *testing.T, _ tree, path string) { must(os.Truncate(path, 0)) }, topology.ErrNotSnapshot, ""},
		{"zeroes after a crash", func(_ *testing.T, _ tree, path string) { must(os.WriteFile(path, make([]byte, 4096), 0o644)) }, topology.ErrNotSnapshot, ""},
		{"other JSON", func(_ *testing.T, _ tree, path string) { must(os.WriteFile(path, []byte(`{"cpus":"0-3"}`), 0o644)) }, topology.ErrNotSnapshot, `format is ""`},
		{"JSON of another kind", func(_ *testing.T, _ tree, path string) { must(os.WriteFile(path, []byte(`[1,2]`), 0o644)) }, topology.ErrNotSnapshot, ""},
		{"foreign format", edit(`"gputune topology"`, `"hwloc"`), topology.ErrNotSnapshot, `format is "hwloc"`},
		{"newer version", edit(`"version":1`, `"version":2`), topology.ErrSnapshotVersion, "2, want 1"},
		{"newer version with another machine", edit(`"version":1,`, `"version":2,"machine":[],`), topology.ErrSnapshotVersion, "2, want 1"},
		{"no version", edit(`"version":1,`, ``), topology.ErrSnapshotVersion, "0, want 1"},
		{"malformed set", edit(`"source":"sysfs","cpus":"0-31"`, `"source":"sysfs","cpus":"0-3x"`), topology.ErrNotSnapshot, "0-3x"},
		{"huge set", edit(`"source":"sysfs","cpus":"0-31"`, `"source":"sysfs","cpus":"0-4294967296"`), topology.ErrNotSnapshot, "4294967296"},
		{"no CPUs", edit(`"machine":{"source":"sysfs","cpus":"0-31"`, `"machine":{"source":"sysfs","cpus":""`), topology.ErrNotSnapshot, "no CPUs"},
		{"no machine", edit(`"machine":{`, `"machine":null,"other":{`), topology.ErrNotSnapshot, "no CPUs"},
		{"node out of range", edit(`"id":1,"cpus":"8-15`, `"id":-1,"cpus":"8-15`), topology.ErrNotSnapshot, "node -1 after 0"},
		{"node id too large", edit(`"id":1,"cpus":"8-15`, `"id":8192,"cpus":"8-15`), topology.ErrNotSnapshot, "node 8192 after 0"},
		{"node twice", edit(`"id":1,"cpus":"8-15`, `"id":0,"cpus":"8-15`), topology.ErrNotSnapshot, "node 0 after 0"},
		{"GPU index out of range", edit(`"index":1`, `"index":7`), topology.ErrNotSnapshot, "0000:b1:00.0"},
		{"GPU address malformed", edit(`"pci":"0000:17:00.0"`, `"pci":"../../x"`), topology.ErrNotSnapshot, "../../x"},
		{
			"too long", func(_ *testing.T, _ tree, path string) {
				content, err := os.ReadFile(path)
				must(err)
				must(os.WriteFile(path, append(content, bytes.Repeat([]byte(" "), 5<<20)...), 0o644))
			}, nil, "longer than 4194304 bytes",
		},
		{"boot id not to be had", func(_ *testing.T, tree tree, _ string) { tree.remove("proc/sys/kernel/random/boot_id") }, fs.ErrNotExist, "cannot tell whether it holds"},
	} {
		t.Run(test.name, func(t *testing.T) {
			tree, path, _ := kept(t, "gpu-at-minus-one")
			test.change(t, tree, path)
			m, err := readOwn(tree.root, path)
			if err == nil {
				t.Fatalf("accepted: %+v", m)
			}
			if test.want != nil && !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want %v that says %q", err, test.want, test.says)
			}
		})
	}
}

// TestSnapshotOwner shows that ReadSnapshot trusts root alone.
func TestSnapshotOwner(t *testing.T) {
	tree, path, _ := kept(t, "demo-dual")
	if os.Geteuid() == 0 {
		if _, err := topology.ReadSnapshot(tree.root, path); err != nil {
			t.Errorf("root's: %v", err)
		}
		if err := os.Chown(path, 65534, 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := topology.ReadSnapshot(tree.root, path); !errors.Is(err, topology.ErrUntrusted) || !strings.Contains(err.Error(), "want 0") {
		t.Errorf("a user's: %v, want ErrUntrusted", err)
	}
}
