package job

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"gputune/conf"
)

// What jobs hold is found although the file that says where cannot be read any
// longer.
func TestMovedLedgerIsFound(t *testing.T) {
	h, _, _ := flakyHost(t)
	for _, folder := range []string{"srv", "data"} {
		if err := os.Mkdir(filepath.Join(h.Root, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(filepath.Join(h.Root, "var/lib/gputune"), filepath.Join(h.Root, "srv/gputune")); err != nil {
		t.Fatal(err)
	}
	h.usual = true
	h.Site.Paths.State, h.Site.Paths.Run = "/srv/gputune", "/data/gputune"
	if err := h.noteMoved("42"); err != nil {
		t.Fatal(err)
	}
	if err := h.noteMoved("43"); err != nil { // as it is
		t.Fatal(err)
	}
	broken := *h
	broken.Site, broken.SiteError = conf.Default(), errors.New("owner is user 1000")
	broken.findMoved()
	if broken.Site.Paths.State != "/srv/gputune" || broken.Site.Paths.Run != "/data/gputune" || !broken.Holds() {
		t.Errorf("%+v", broken.Site.Paths)
	}
	if err := broken.Epilog(t.Context()); err != nil || broken.Holds() {
		t.Errorf("%v, still held: %v", err, broken.Holds())
	}

	// What the file says all the same counts.
	broken.Site.Paths = conf.Default().Paths
	broken.Site.Paths.State = "/elsewhere"
	broken.findMoved()
	if broken.Site.Paths.State != "/elsewhere" {
		t.Errorf("%+v", broken.Site.Paths)
	}

	// At the usual places again.
	h.Site.Paths = conf.Default().Paths
	if err := h.noteMoved("44"); err != nil {
		t.Fatal(err)
	}
	broken.Site.Paths = conf.Default().Paths
	broken.findMoved()
	if broken.Site.Paths != conf.Default().Paths {
		t.Errorf("%+v", broken.Site.Paths)
	}
	if left, err := os.ReadDir(filepath.Join(h.Root, "run/gputune")); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

func TestMovedIsNotBelieved(t *testing.T) {
	for _, text := range []string{"", "{", `{"state": "srv/x", "run": "/y"}`, `{"state": "/srv/x"}`, `[]`} {
		h, _ := host(t)
		h.usual = true
		if err := h.movedFolder().MakeBase(); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(h.Root, "run/gputune/moved")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if h.findMoved(); h.Site.Paths != conf.Default().Paths {
			t.Errorf("%q: %+v", text, h.Site.Paths)
		}
		// Another file than the usual one says nothing about it.
		if err := os.WriteFile(path, []byte(`{"state": "/srv/x", "run": "/y"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		h.usual = false
		if h.findMoved(); h.Site.Paths != conf.Default().Paths {
			t.Errorf("%+v", h.Site.Paths)
		}
	}
}
