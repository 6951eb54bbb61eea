package bed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// cgroupTree is the folders that slurmd makes for its node in the cgroup v1
// hierarchies, ROOT/CONTROLLER/slurm_NODE. A Slurm built without
// --enable-multiple-slurmd says /slurm; Debian's is built with it.
type cgroupTree struct{ root, node string }

// name is the folder's name within each hierarchy.
func (t cgroupTree) name() string { return "slurm_" + t.node }

// tops are the node's folders, one for each hierarchy that has one.
func (t cgroupTree) tops() ([]string, error) {
	tops, err := filepath.Glob(filepath.Join(t.root, "*", t.name()))
	if err != nil {
		return nil, fmt.Errorf("bed: cgroups of node %s: %w", t.node, err)
	}
	return tops, nil
}

// folders are the node's folders and all below them, parents first.
func (t cgroupTree) folders() ([]string, error) {
	tops, err := t.tops()
	if err != nil {
		return nil, err
	}
	var folders []string
	for _, top := range tops {
		err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // a step has ended meanwhile
			}
			if err == nil && entry.IsDir() {
				folders = append(folders, path)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("bed: %w", err)
		}
	}
	return folders, nil
}

// busy returns one of the folders that holds a process, "" if none does.
func (t cgroupTree) busy() (string, error) {
	folders, err := t.folders()
	if err != nil {
		return "", err
	}
	for _, folder := range folders {
		text, err := os.ReadFile(filepath.Join(folder, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("bed: %w", err)
		}
		if len(text) > 0 {
			return folder, nil
		}
	}
	return "", nil
}

// thaw lets frozen processes run: cgroup v1 delivers no SIGKILL to them.
func (t cgroupTree) thaw() error {
	folders, err := t.folders()
	if err != nil {
		return err
	}
	for _, folder := range folders {
		state, err := os.OpenFile(filepath.Join(folder, "freezer.state"), os.O_WRONLY, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another hierarchy, or removed meanwhile
		}
		if err != nil {
			return fmt.Errorf("bed: %w", err)
		}
		_, err = state.WriteString("THAWED")
		if err := errors.Join(err, state.Close()); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("bed: %w", err)
		}
	}
	return nil
}

// remove removes all folders. A folder stays busy for a moment after the last
// process in it was killed.
func (t cgroupTree) remove() error {
	deadline := time.Now().Add(termTimeout)
	for {
		folders, err := t.folders()
		if err != nil {
			return err
		}
		var errs []error
		for _, folder := range slices.Backward(folders) {
			if err := unix.Rmdir(folder); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("rmdir %s: %w", folder, err))
			}
		}
		if len(errs) == 0 || time.Now().After(deadline) {
			return errors.Join(errs...)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
