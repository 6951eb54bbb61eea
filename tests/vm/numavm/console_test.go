package numavm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEndReason(t *testing.T) {
	for _, c := range []struct {
		console string
		err     error
		log     string
		want    string
	}{
		{"x\n[   12.3] Kernel panic - not syncing: Attempted to kill init!\nmore", nil, "", "the guest's kernel panicked: Attempted to kill init!"},
		{"x", errors.New("signal: aborted"), "Assertion failed", "QEMU ended: signal: aborted: Assertion failed"},
		{"x", nil, "a warning", "the guest powered off or restarted"},
	} {
		if got := endReason(c.console, c.err, c.log); got != c.want {
			t.Errorf("endReason(%q, %v, %q) = %q, want %q", c.console, c.err, c.log, got, c.want)
		}
	}
}

func TestFileTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for _, c := range []struct {
		name, content, want string
	}{
		{"short", "\r\na\r\nb\r\n", "a\nb"},
		{"empty", "", ""},
		{"no text", "a\xffb", "a?b"},
		{"long", strings.Repeat("x", 10) + strings.Repeat("y", consoleKept), strings.Repeat("y", consoleKept)},
	} {
		if err := os.WriteFile(path, []byte(c.content), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := fileTail(path); got != c.want {
			t.Errorf("%s: %.80q (%d bytes), want %.80q (%d bytes)", c.name, got, len(got), c.want, len(c.want))
		}
	}
	if got := fileTail(path + ".none"); !strings.Contains(got, "no such file") {
		t.Errorf("a file that is not there: %q", got)
	}
}

func TestTail(t *testing.T) {
	w := &tail{limit: 10}
	for _, s := range []string{"abc ", "defghij", "klmnop "} {
		if n, err := w.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatal(n, err)
		}
	}
	if got := w.String(); got != "hijklmnop" {
		t.Errorf("kept %q", got)
	}
}
