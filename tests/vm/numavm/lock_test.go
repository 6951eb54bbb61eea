package numavm

import (
	"context"
	"errors"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	holder, _ := startRole(t, "locker", "LOCK_FILE="+path)
	if _, err := tryLock(path, syscall.LOCK_SH); !errors.Is(err, errLocked) {
		t.Errorf("shared, while another process holds it: %v, want errLocked", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
	defer cancel()
	if _, err := lock(short, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for it: %v, want the context's error", err)
	}
	time.AfterFunc(200*time.Millisecond, func() { _ = holder.Process.Kill() })
	f, err := lock(testContext(t), path)
	if err != nil {
		t.Fatalf("after its holder was killed: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	// Two may share it.
	for range 2 {
		f, err := tryLock(path, syscall.LOCK_SH)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	if _, err := tryLock(path, syscall.LOCK_EX); !errors.Is(err, errLocked) {
		t.Errorf("exclusive, while it is shared: %v, want errLocked", err)
	}
}
