package source_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gputune/internal/topology"
	"gputune/internal/topology/source"
)

// entry is one of an archive: a link if it has a target, a folder if its name
// ends in a slash, else a file.
type entry struct{ name, content, target string }

// machineFiles is a machine of four CPUs, two nodes and a GPU.
var machineFiles = []entry{
	{name: "sys/devices/system/cpu/online", content: "0-3\n"},
	{name: "sys/devices/system/cpu/present", content: "0-3\n" + strings.Repeat("\x00", 4092)}, // as tar copies sysfs
	{name: "sys/devices/system/node/online", content: "0-1\n"},
	{name: "sys/devices/system/node/node0/cpulist", content: "0-1\n"},
	{name: "sys/devices/system/node/node0/distance", content: "10 21\n" + strings.Repeat("\x00", 4090)},
	{name: "sys/devices/system/node/node0/meminfo", content: "Node 0 MemTotal: 1048576 kB\n"},
	{name: "sys/devices/system/node/node1/cpulist", content: "2-3\n"},
	{name: "sys/devices/system/node/node1/distance", content: "21 10\n"},
	{name: "sys/devices/system/node/node1/meminfo", content: "Node 1 MemTotal: 1048576 kB\n"},
	{name: "sys/devices/pci0000:00/0000:00:01.0/numa_node", content: "1\n"},
	{name: "sys/devices/pci0000:00/0000:00:01.0/local_cpulist", content: "2-3\n"},
	{name: "sys/devices/pci0000:00/0000:00:01.0/class", content: "0x060400\n"},
	{name: "sys/devices/pci0000:00/0000:00:01.0/0000:07:00.0/class", content: "0x030200\n"},
	{name: "sys/devices/pci0000:00/0000:00:01.0/0000:07:00.0/vendor", content: "0x10de\n"},
	{name: "sys/devices/pci0000:00/0000:00:01.0/0000:07:00.0/numa_node", content: "1\n"},
	{name: "sys/devices/pci0000:00/0000:00:01.0/0000:07:00.0/local_cpulist", content: "2-3\n"},
	{name: "sys/bus/pci/devices/0000:00:01.0", target: "../../../devices/pci0000:00/0000:00:01.0"},
	{name: "sys/bus/pci/devices/0000:07:00.0", target: "../../../devices/pci0000:00/0000:00:01.0/0000:07:00.0"},
}

func archive(tb testing.TB, prefix string, entries []entry) []byte {
	tb.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		header := &tar.Header{Name: prefix + e.name, Mode: 0o644, Typeflag: tar.TypeReg, Size: int64(len(e.content)), Linkname: e.target}
		switch {
		case e.target != "":
			header.Typeflag = tar.TypeSymlink
		case strings.HasSuffix(e.name, "/"):
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			tb.Fatal(err)
		}
		if _, err := io.WriteString(w, e.content); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

func file(t *testing.T, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "machine")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestArchive(t *testing.T) {
	absolute := slices.Clone(machineFiles)
	for i := range absolute {
		absolute[i].target = strings.ReplaceAll(absolute[i].target, "../../../", "/sys/")
	}
	for name, content := range map[string][]byte{
		"absolute links":             archive(t, "host/", absolute),
		"plain":                      archive(t, "", machineFiles),
		"gzip":                       compressed(t, archive(t, "", machineFiles)),
		"in a folder":                archive(t, "node17/", machineFiles),
		"absolute":                   archive(t, "/", machineFiles),
		"with a dot":                 archive(t, "./", machineFiles),
		"beside other files":         archive(t, "a/", append([]entry{{name: "b/readme", content: "x"}, {name: "etc/passwd", content: "x"}}, machineFiles...)),
		"written twice":              archive(t, "", append(machineFiles, machineFiles...)),
		"a file where a link wants":  archive(t, "", append(machineFiles, entry{name: "sys/bus/pci/devices/0000:07:00.0/class", content: "0x060000"})),
		"a link out":                 archive(t, "", append([]entry{{name: "sys/devices/system/cpu/possible", target: "../../../../../../etc/passwd"}}, machineFiles...)),
		"an entry with ..":           archive(t, "", append([]entry{{name: "sys/../../etc/cron.d/x", content: "x"}}, machineFiles...)),
		"links that lead in circles": archive(t, "", append([]entry{{name: "sys/a", target: "b"}, {name: "sys/b", target: "a"}}, machineFiles...)),
	} {
		t.Run(name, func(t *testing.T) {
			m, from, err := source.Open(file(t, content))
			if err != nil {
				t.Fatal(err)
			}
			if from.Kind != topology.KindSysfs || m.CPUs.String() != "0-3" || len(m.Nodes) != 2 || m.Nodes[0].Distances[1] != 21 {
				t.Errorf("%+v of %+v", m, from)
			}
			if len(m.GPUs) != 1 || m.GPUs[0].Nodes.String() != "1" || len(m.GPUs[0].Bridges) != 1 {
				t.Errorf("GPUs %+v", m.GPUs)
			}
		})
	}
}

// TestArchiveStaysInside shows that a link of an archive never leads to a file
// of this machine, however it is written.
func TestArchiveStaysInside(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("0-63\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	up := strings.Repeat("../", 40)
	for name, entries := range map[string][]entry{
		"absolute":       {{name: "sys/devices/system/cpu/online", target: outside}},
		"relative":       {{name: "sys/devices/system/cpu/online", target: up + outside}},
		"through a link": {{name: "sys/up", target: up}, {name: "sys/devices/system/cpu/online", target: "/sys/up" + outside}},
		"a folder":       {{name: "sys/devices/system/cpu", target: filepath.Dir(outside)}, {name: "sys/devices/system/cpu/online", content: "0-63\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			m, _, err := source.Open(file(t, archive(t, "", append(entries, entry{name: "sys/devices/"}))))
			if !errors.Is(err, topology.ErrNoCPUs) {
				t.Errorf("%+v, %v: want no CPUs", m, err)
			}
		})
	}
}

func TestArchiveRefused(t *testing.T) {
	whole := archive(t, "", machineFiles)
	for name, c := range map[string]struct {
		content []byte
		want    string
	}{
		"nothing of a machine": {archive(t, "", []entry{{name: "readme", content: "x"}}), "has no sys/devices"},
		"two machines":         {append(archive(t, "a/", machineFiles)[:len(whole)-1024], archive(t, "b/", machineFiles)...), "in /a and /b: want one"},
		"cut":                  {whole[:len(whole)/2+100], "the archive is cut"},
		"cut in a file":        {whole[:600], "the archive is cut"},
		"cut gzip":             {compressed(t, whole)[:300], "unexpected EOF"},
		"not gzip":             {[]byte("\x1f\x8b\x08 is how gzip begins"), "corrupt input"},
		"not bzip2":            {[]byte("BZh9 is how bzip2 begins"), "bzip2"},
	} {
		t.Run(name, func(t *testing.T) {
			path := file(t, c.content)
			m, _, err := source.Open(path)
			if err == nil || !strings.HasPrefix(err.Error(), path+": ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, %v: want %q", m, err, c.want)
			}
		})
	}
}

// zeros reads as null bytes without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestArchiveBombs opens files that unpack to far more than they are, of each
// kind: one large file, many files, a text.
func TestArchiveBombs(t *testing.T) {
	bomb := func(write func(w io.Writer)) []byte {
		var out bytes.Buffer
		w, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
		if err != nil {
			t.Fatal(err)
		}
		write(w)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	large := bomb(func(w io.Writer) {
		archive := tar.NewWriter(w)
		const size = 300 << 20
		if err := archive.WriteHeader(&tar.Header{Name: "sys/large", Typeflag: tar.TypeReg, Size: size}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(archive, zeros{}, size); err != nil {
			t.Fatal(err)
		}
	})
	many := bomb(func(w io.Writer) {
		content := strings.Repeat("x", 64<<10)
		chunk := archive(t, "sys/", []entry{{name: "a", content: content}})
		chunk = chunk[:len(chunk)-1024]
		for range 1100 {
			if _, err := w.Write(chunk); err != nil {
				t.Fatal(err)
			}
		}
	})
	text := bomb(func(w io.Writer) {
		if _, err := io.CopyN(w, zeros{}, 300<<20); err != nil {
			t.Fatal(err)
		}
	})
	for name, c := range map[string]struct {
		content []byte
		want    error
	}{
		"one large file": {large, source.ErrTooLarge},
		"many files":     {many, source.ErrTooLarge},
		"text":           {text, source.ErrUnknownFormat},
	} {
		t.Run(name, func(t *testing.T) {
			m, _, err := source.Open(file(t, c.content))
			if !errors.Is(err, c.want) {
				t.Errorf("%v, %v: want %v", m, err, c.want)
			}
			t.Logf("%d bytes: %v", len(c.content), err)
		})
	}
}
