package source_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gputune/internal/topology"
	"gputune/internal/topology/source"
	"gputune/tests/machines"
)

// TestKinds opens one of each kind, under a name that says nothing or lies.
func TestKinds(t *testing.T) {
	d, err := machines.Get("dgx-a100")
	if err != nil {
		t.Fatal(err)
	}
	root, remove, err := machines.Scratch()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := remove(); err != nil {
			t.Error(err)
		}
	}()
	m, err := d.Machine(root)
	if err != nil {
		t.Fatal(err)
	}
	snapshot := filepath.Join(t.TempDir(), "machine.xml")
	if err := topology.WriteSnapshot(root, snapshot, m); err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	const (
		nccl  = "<!-- x -->\n<system version=\"1\"><cpu numaid=\"0\" affinity=\"f\"><pci busid=\"0000:07:00.0\" class=\"0x030200\"/></cpu></system>"
		hwloc = "<?xml version=\"1.0\"?>\n<topology version=\"2.0\"><object type=\"Machine\" cpuset=\"0x1\"><object type=\"PU\" os_index=\"0\" cpuset=\"0x1\"/></object></topology>"
		table = "$ nvidia-smi topo -m\n\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-7\t0\n"
	)
	for _, c := range []struct {
		name, path, kind string
		gpus             int
	}{
		{"folder", root, topology.KindSysfs, 8},
		{"snapshot", snapshot, topology.KindSnapshot, 8},
		{"compressed snapshot", file(t, compressed(t, kept)), topology.KindSnapshot, 8},
		{"archive", file(t, archive(t, "", machineFiles)), topology.KindSysfs, 1},
		{"NCCL", file(t, []byte(nccl)), topology.KindNCCL, 1},
		{"NCCL after an empty line", file(t, []byte("\n"+nccl)), topology.KindNCCL, 1},
		{"NCCL with a byte order mark", file(t, []byte("\xef\xbb\xbf"+nccl)), topology.KindNCCL, 1},
		{"NCCL with carriage returns", file(t, []byte(strings.ReplaceAll(nccl, "\n", "\r\n"))), topology.KindNCCL, 1},
		{"hwloc", file(t, []byte(hwloc)), topology.KindHwloc, 0},
		{"table", file(t, []byte(table)), topology.KindNVIDIASMI, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, from := open(t, c.path)
			if from.Kind != c.kind || len(m.GPUs) != c.gpus {
				t.Errorf("%+v with %d GPUs, want %s with %d", from, len(m.GPUs), c.kind, c.gpus)
			}
		})
	}
}

func TestThisMachine(t *testing.T) {
	m, from := open(t, "/")
	if from.Kind != topology.KindSysfs || m.CPUs.Empty() {
		t.Errorf("%+v: CPUs %s", from, m.CPUs)
	}
}

func TestRefused(t *testing.T) {
	empty := t.TempDir()
	for name, c := range map[string]struct {
		path string
		want error
	}{
		"nothing there": {filepath.Join(empty, "none"), os.ErrNotExist},
		"empty folder":  {empty, topology.ErrNoCPUs},
		"empty file":    {file(t, nil), source.ErrUnknownFormat},
		"blank file":    {file(t, []byte(" \n\t\n")), source.ErrUnknownFormat},
		"prose":         {file(t, []byte("GPU0 is fast\n")), source.ErrUnknownFormat},
		"other XML":     {file(t, []byte("<a/>")), source.ErrUnknownFormat},
		"other JSON":    {file(t, []byte("{}")), topology.ErrNotSnapshot},
		"too long":      {file(t, []byte(nccl(ncclNode(0, "f", 1))+strings.Repeat("\n", 9<<20))), source.ErrUnknownFormat},
		"zeros":         {file(t, make([]byte, 1<<20)), source.ErrUnknownFormat},
	} {
		t.Run(name, func(t *testing.T) {
			m, _, err := source.Open(c.path)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.path) {
				t.Errorf("%v, %v: want %v and the path", m, err, c.want)
			}
		})
	}
	if m, _, err := source.Open("/dev/null"); err == nil {
		t.Errorf("/dev/null: %v", m)
	}
}

// TestCopyStaysInside shows that a link in a copied root is one of the copy's.
func TestCopyStaysInside(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "online")
	if err := os.WriteFile(outside, []byte("0-63\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	folder := filepath.Join(root, "sys/devices/system/cpu")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(folder, "online")); err != nil {
		t.Fatal(err)
	}
	if m, _, err := source.Open(root); !errors.Is(err, topology.ErrNoCPUs) {
		t.Errorf("%+v, %v: want no CPUs", m, err)
	}
	// The same link, when the copy has what it leads to.
	if err := os.MkdirAll(filepath.Join(root, filepath.Dir(outside)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, outside), []byte("0-7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if m, _ := open(t, root); m.CPUs.String() != "0-7" {
		t.Errorf("CPUs %s, want 0-7", m.CPUs)
	}
}

// garbage is so much of each kind of rubbish.
func garbage(size int) map[string][]byte {
	random := make([]byte, size)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(random) // never fails
	repeated := func(begin, line string) []byte {
		return append([]byte(begin), bytes.Repeat([]byte(line), size/len(line))...)
	}
	lists := strings.Repeat("0-8191,", 9000)
	return map[string][]byte{
		"random":         random,
		"random text":    bytes.Map(func(c rune) rune { return ' ' + c%95 }, random),
		"one line":       repeated("", "GPU0 X SYS 0-7 "),
		"headers":        repeated("", "\tGPU0\tGPU1\tCPU Affinity\n"),
		"long headers":   repeated("", "GPU0 "+strings.Repeat("mlx5_0 ", 500)+"\n"),
		"rows":           repeated("\tGPU0\tCPU Affinity\n", "GPU1\tX\t0-7\n"),
		"lists":          repeated("", "On-line CPU(s) list: "+lists+"\n"),
		"blanks":         repeated("", "GPU0 GPU1                                        \n"),
		"elements":       repeated("<system>", "<cpu>"),
		"more elements":  repeated("<system>", "<cpu/>"),
		"objects":        repeated("<topology>", `<object type="PU" cpuset="0x1" os_index="9999"/>`),
		"one attribute":  repeated(`<topology version="`, "0123456789"),
		"comments":       repeated("", "<!-- -->"),
		"null bytes":     make([]byte, size),
		"JSON":           repeated("", `{"format":`),
		"nodes":          repeated("", "node 0 cpus: 0 1 2 3\n"),
		"long node list": repeated("node 0 cpus:", " 1"),
	}
}

// TestGarbage shows that no rubbish is taken for a machine.
func TestGarbage(t *testing.T) {
	for _, size := range []int{1 << 20, 7 << 20, 10 << 20} {
		for name, content := range garbage(size) {
			m, _, err := source.Open(file(t, content))
			if err == nil && (name != "nodes" || size > 1<<20) {
				t.Errorf("%s: %d GPUs of %s", name, len(m.GPUs), m.Source)
			}
			if err != nil && len(err.Error()) > 1000 {
				t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
			}
		}
	}
}

// BenchmarkGarbage prints how long 10 MiB of rubbish take, and as much as is
// looked at at all; each kind should be refused in less than a second.
func BenchmarkGarbage(b *testing.B) {
	benchmarkGarbage(b, "10M", garbage(10<<20))
	benchmarkGarbage(b, "7M", garbage(7<<20))
	benchmarkGarbage(b, "1900K", garbage(1900<<10))
}

func benchmarkGarbage(b *testing.B, size string, contents map[string][]byte) {
	for name, content := range contents {
		path := filepath.Join(b.TempDir(), "garbage")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			b.Fatal(err)
		}
		b.Run(size+" of "+name, func(b *testing.B) {
			for b.Loop() {
				_, _, _ = source.Open(path)
			}
		})
	}
}
