package numavm

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestRunDirsOfRunnersThatAreGone(t *testing.T) {
	ctx := testContext(t)
	cache := t.TempDir()
	mine, err := newRunDir(ctx, cache)
	if err != nil {
		t.Fatal(err)
	}
	leftProcess := exec.Command("sleep", "1000")
	left, err := newRunDir(ctx, cache)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(left.file("root.qcow2"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := startChild(leftProcess, left.file("qemu.pid"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.kill()
	// What the end of its process does to a lock.
	if err := left.owner.Close(); err != nil {
		t.Fatal(err)
	}

	next, err := newRunDir(ctx, cache)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.done:
	case <-time.After(10 * time.Second):
		t.Error("the process that was left behind still runs")
	}
	if _, err := os.Stat(left.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder that was left behind: %v, want it gone", err)
	}
	if _, err := os.Stat(mine.path); err != nil {
		t.Errorf("the folder of a machine that runs: %v", err)
	}
	for _, r := range []*runDir{mine, next} {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	}
	if dirs, err := filepath.Glob(filepath.Join(cache, "run", "vm-*")); err != nil || len(dirs) != 0 {
		t.Errorf("left: %v, %v", dirs, err)
	}
}

// TestSharedFolderIsNeverDeleted: were a shared folder visible below the run folder, it would be full.
func TestSharedFolderIsNeverDeleted(t *testing.T) {
	r, err := newRunDir(testContext(t), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	precious := filepath.Join(r.file(shareRoot), "tree", "file")
	if err := os.MkdirAll(filepath.Dir(precious), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(precious, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.close(); err == nil || !strings.Contains(err.Error(), "left where it is") {
		t.Errorf("got %v, want a refusal", err)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Errorf("a file below the share folder: %v", err)
	}
}
