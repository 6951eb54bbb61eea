package numavm

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestResolveShares(t *testing.T) {
	dir := t.TempDir()
	for _, sub := range []string{"a", "b/a", ".hidden"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	a, ba := filepath.Join(dir, "a"), filepath.Join(dir, "b/a")
	got, err := resolveShares([]Share{{Dir: a}, {Dir: ba + "/../a/", Name: "other"}})
	if err != nil || len(got) != 2 || got[0] != (Share{a, "a"}) || got[1] != (Share{ba, "other"}) || got[1].GuestPath() != "/host/other" {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, c := range []struct {
		shares []Share
		want   string
	}{
		{[]Share{{Dir: a}, {Dir: ba}}, "would both be /host/a"},
		{[]Share{{Dir: file}}, "is not a folder"},
		{[]Share{{Dir: filepath.Join(dir, "none")}}, "no such file"},
		{[]Share{{Dir: filepath.Join(dir, ".hidden")}}, `".hidden" cannot be its name`},
		{[]Share{{Dir: a, Name: "../x"}}, `"../x" cannot be its name`},
		{[]Share{{Dir: "/"}}, `"/" cannot be its name`},
	} {
		if _, err := resolveShares(c.shares); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.shares, err, c.want)
		}
	}
}

// TestShareScript runs it with a program that looks at its mounts instead of virtiofsd: it sees the folders read-only, and
// this process sees no mount at all.
func TestShareScript(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	look := `cat "$1/x/file"; touch "$1/x/new" 2>&1; rm "$1/x/file" 2>&1; touch "$1/new" 2>&1; true`
	out, err := exec.Command("unshare", "--mount", "--propagation=private", "--", "sh", "-c", shareScript, "sh", root,
		"x", dir, "y", dir, "--", "sh", "-c", look, "sh", root).CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "content") || strings.Count(string(out), "Read-only file system") != 3 {
		t.Errorf("%v, %s", err, out)
	}
	if left, err := os.ReadDir(root); err != nil || len(left) != 0 {
		t.Errorf("this process sees %v, %v", left, err)
	}
}
