package numavm

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

var quiet = slog.New(slog.DiscardHandler)

// fakeTree is a tree whose recipe is build, a shell script that gets the suite and the folder.
func fakeTree(t *testing.T, build string) string {
	t.Helper()
	tree := t.TempDir()
	writeRecipe(t, tree, "build.sh", "#!/bin/sh\n"+build)
	return tree
}

func writeRecipe(t *testing.T, tree, name, content string) {
	t.Helper()
	path := filepath.Join(tree, recipeDir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestImageIsBuiltOnce(t *testing.T) {
	needRoot(t)
	ctx := testContext(t)
	cache := t.TempDir()
	count := filepath.Join(t.TempDir(), "builds")
	tree := fakeTree(t, "echo $1 >> "+count+"; sleep 0.3; echo disk > $2/root.img; echo kernel > $2/vmlinuz\n")
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			img, err := EnsureImage(ctx, tree, cache, Trixie, quiet)
			if err != nil {
				t.Error(err)
				return
			}
			for _, f := range []string{img.Disk(), img.Kernel()} {
				if _, err := os.Stat(f); err != nil {
					t.Error(err)
				}
			}
			if err := img.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	built := func() string {
		b, err := os.ReadFile(count)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(string(b)), " ")
	}
	if built() != "trixie" {
		t.Errorf("five at once built %q, want it once", built())
	}
	for _, change := range []func(){
		func() { writeRecipe(t, tree, "packages", "systemd\n") },
		func() { writeRecipe(t, tree, "packages", "systemd\nstrace\n") },
		func() { writeRecipe(t, tree, qemuScript, "another QEMU does not change the image") },
	} {
		change()
		img, err := EnsureImage(ctx, tree, cache, Trixie, quiet)
		if err != nil {
			t.Fatal(err)
		}
		if err := img.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if built() != "trixie trixie trixie" {
		t.Errorf("after two changes of the recipe: built %q, want three", built())
	}
	if left, err := filepath.Glob(filepath.Join(cache, "images", "trixie-*")); err != nil || len(left) != imagesKept {
		t.Errorf("images %v, %v; want %d kept", left, err, imagesKept)
	}
	img, err := EnsureImage(ctx, tree, cache, Bookworm, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if built() != "trixie trixie trixie bookworm" {
		t.Errorf("another suite: built %q", built())
	}
	// One in use stays, whatever its age.
	if err := CleanImages(ctx, cache); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(cache, "images", "*-*"))
	if err != nil || len(left) != 1 || left[0] != img.Dir {
		t.Errorf("cleaned: %v, %v; want %s alone", left, err, img.Dir)
	}
	if err := img.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestFailedBuildLeavesNothing(t *testing.T) {
	needRoot(t)
	cache := t.TempDir()
	tree := fakeTree(t, "echo half > $2/root.img; echo why it failed >&2; exit 7\n")
	_, err := EnsureImage(testContext(t), tree, cache, Forky, quiet)
	if err == nil || !strings.Contains(err.Error(), "image of forky") || !strings.Contains(err.Error(), "exit status 7: why it failed") {
		t.Errorf("got %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(cache, "images", "forky-*")); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
	// The next try is a fresh one, and clears away what a killed build left.
	if err := os.MkdirAll(filepath.Join(cache, "images", "forky-0123.building-1"), 0o755); err != nil {
		t.Fatal(err)
	}
	writeRecipe(t, tree, "build.sh", "#!/bin/sh\n[ -z \"$(ls $2 | grep -v build.pid)\" ] && touch $2/root.img\n")
	img, err := EnsureImage(testContext(t), tree, cache, Forky, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	entries, err := os.ReadDir(img.Dir)
	if err != nil || len(entries) != 2 { // root.img and use.lock
		t.Errorf("image has %v, %v", entries, err)
	}
}

// TestCancelledBuild: a build ends with its context, and so does what it started.
func TestCancelledBuild(t *testing.T) {
	needRoot(t)
	cache := t.TempDir()
	beat := filepath.Join(t.TempDir(), "beat")
	tree := fakeTree(t, "(setsid sh -c 'while :; do date +%s%N > "+beat+"; sleep 0.05; done' &) ; sleep 1000\n")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for range 500 {
			if _, err := os.Stat(beat); err == nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		cancel()
	}()
	if _, err := EnsureImage(ctx, tree, cache, Forky, quiet); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
	if left, err := filepath.Glob(filepath.Join(cache, "images", "forky-*")); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
	read := func() string {
		b, err := os.ReadFile(beat)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	eventually(t, "what the build started in the background has ended", func() bool {
		before := read()
		time.Sleep(300 * time.Millisecond)
		return read() == before
	})
}

func TestRecipeKey(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write := func(path, content string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	key := func(files []string, more ...string) string {
		t.Helper()
		k, err := recipeKey(files, more...)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	write(a, "1", 0o644)
	write(b, "2", 0o644)
	both := []string{a, b}
	seen := map[string]string{key(both, "trixie"): "first"}
	if k := key(both, "trixie"); seen[k] == "" {
		t.Errorf("the same recipe twice has another key: %s", k)
	}
	fresh := func(what, k string) {
		t.Helper()
		if was, ok := seen[k]; ok {
			t.Errorf("%s has the key of %s", what, was)
		}
		seen[k] = what
	}
	fresh("another suite", key(both, "forky"))
	fresh("one file less", key([]string{a}, "trixie"))
	write(b, "3", 0o644)
	fresh("other content", key(both, "trixie"))
	write(b, "3", 0o755)
	fresh("executable", key(both, "trixie"))
	if _, err := recipeKey([]string{filepath.Join(dir, "none")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}
