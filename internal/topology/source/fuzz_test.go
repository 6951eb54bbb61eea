package source_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"testing"

	"gputune/internal/topology/source"
	"gputune/tests/published"
)

// FuzzOpen shows that whatever a file is, it is read or refused with its name,
// and that what is read holds together. The fuzzer's bytes are opened as they
// are and, so that it gets into archives, as the names and contents of files in
// one.
func FuzzOpen(f *testing.F) {
	f.Add(archive(f, "", machineFiles))
	f.Add(compressed(f, archive(f, "host/", machineFiles)))
	f.Add([]byte("sys/devices/system/cpu/online\x000-3\x00sys/bus/pci/devices/0000:07:00.0\x00->../../../devices/pci0000:00/0000:07:00.0"))
	f.Add([]byte(`{"format":"gputune topology","version":1,"fingerprint":{},"machine":{"source":"sysfs","cpus":"0-3"}}`))
	f.Add([]byte("<system version=\"1\"><cpu numaid=\"0\" affinity=\"f\"/></system>"))
	f.Fuzz(func(t *testing.T, content []byte) {
		for name, file := range map[string][]byte{"plain": content, "archive": archiveOf(t, content)} {
			path := filepath.Join(t.TempDir(), name)
			if err := os.WriteFile(path, file, 0o600); err != nil {
				t.Fatal(err)
			}
			m, _, err := source.Open(path)
			if err != nil {
				if m != nil || len(err.Error()) > 2000 || !bytes.HasPrefix([]byte(err.Error()), []byte(path)) {
					t.Fatalf("%s: refused with %v", name, err)
				}
				continue
			}
			if err := published.Check(m); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	})
}

// archiveOf makes an archive of NAME NUL CONTENT NUL NAME NUL …; a content that
// begins with "->" makes a link.
func archiveOf(tb testing.TB, content []byte) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	parts := bytes.Split(content, []byte{0})
	for i := 0; i+1 < len(parts) && i < 64; i += 2 {
		header := &tar.Header{Name: string(parts[i]), Mode: 0o644, Typeflag: tar.TypeReg, Size: int64(len(parts[i+1]))}
		if target, ok := bytes.CutPrefix(parts[i+1], []byte("->")); ok {
			header.Typeflag, header.Linkname, header.Size, parts[i+1] = tar.TypeSymlink, string(target), 0, nil
		}
		if w.WriteHeader(header) != nil {
			continue
		}
		if _, err := w.Write(parts[i+1]); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

func compressed(tb testing.TB, content []byte) []byte {
	tb.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(content); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}
