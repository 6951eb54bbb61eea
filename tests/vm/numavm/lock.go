package numavm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// errLocked is returned by tryLock when somebody else holds the lock.
var errLocked = errors.New("locked by another process")

// tryLock takes a flock(2) on path, which it creates, with LOCK_EX or LOCK_SH. The lock lasts until the file is closed or the
// process ends, however it ends.
func tryLock(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", path, errLocked)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// lock is tryLock for LOCK_EX that waits for as long as ctx lets it.
func lock(ctx context.Context, path string) (*os.File, error) {
	for {
		f, err := tryLock(path, syscall.LOCK_EX)
		if !errors.Is(err, errLocked) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for %s: %w", path, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
