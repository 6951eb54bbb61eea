package numavm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

const (
	ownerLock = "owner.lock"
	pidSuffix = ".pid"
	// shareRoot is where the shared folders are mounted, in a mount namespace of virtiofsd's own.
	shareRoot = "share"
)

// runDir is the folder with the files of one running machine. Its owner holds a lock in it, so one whose lock is free
// was left by a process that is gone.
type runDir struct {
	path  string
	owner *os.File
}

// newRunDir makes one below cache, after clearing away those that were left behind.
func newRunDir(ctx context.Context, cache string) (*runDir, error) {
	parent := filepath.Join(cache, "run")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, err
	}
	// A folder whose owner has not locked it yet would look left behind: one at a time.
	turn, err := lock(ctx, filepath.Join(parent, "lock"))
	if err != nil {
		return nil, err
	}
	defer turn.Close()
	if err := sweepRunDirs(parent); err != nil {
		return nil, err
	}
	path, err := os.MkdirTemp(parent, "vm-")
	if err != nil {
		return nil, err
	}
	owner, err := tryLock(filepath.Join(path, ownerLock), syscall.LOCK_EX)
	if err != nil {
		return nil, err
	}
	r := &runDir{path: path, owner: owner}
	if err := os.Mkdir(r.file(shareRoot), 0o755); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *runDir) file(name string) string { return filepath.Join(r.path, name) }

// close removes the folder. What ran in it has ended before.
func (r *runDir) close() error {
	defer r.owner.Close()
	return removeRunDir(r.path)
}

// removeRunDir removes a run folder, but never walks into its share folder: should a shared folder be mounted there in this
// mount namespace, against all expectation, its files would be deleted. rmdir(2) fails on both a mount point and a full folder.
func removeRunDir(path string) error {
	if err := os.Remove(filepath.Join(path, shareRoot)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("left where it is: %w", err)
	}
	return os.RemoveAll(path)
}

// sweepRunDirs ends and removes what runs whose owner is gone have left in parent.
func sweepRunDirs(parent string) error {
	dirs, err := filepath.Glob(filepath.Join(parent, "vm-*"))
	if err != nil {
		return fmt.Errorf("run folders: %w", err)
	}
	for _, dir := range dirs {
		owner, err := tryLock(filepath.Join(dir, ownerLock), syscall.LOCK_EX)
		if errors.Is(err, errLocked) {
			continue
		}
		if errors.Is(err, os.ErrNotExist) { // its owner has just removed it
			continue
		}
		if err != nil {
			return err
		}
		err = sweepRunDir(dir)
		_ = owner.Close()
		if err != nil {
			return fmt.Errorf("clearing away what an earlier run left: %w", err)
		}
	}
	return nil
}

func sweepRunDir(dir string) error {
	pidFiles, err := filepath.Glob(filepath.Join(dir, "*"+pidSuffix))
	if err != nil {
		return fmt.Errorf("pid files: %w", err)
	}
	for _, p := range pidFiles {
		if err := killLeftover(p); err != nil {
			return err
		}
	}
	return removeRunDir(dir)
}
