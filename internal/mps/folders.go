package mps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Names in a job's folder.
const (
	pipeName   = "pipe"
	logName    = "log"
	outputName = "control.log"
	socketName = "control" // that the daemon makes for its clients

	longestSocket = "control_privileged" // of those that it makes
	maxSocket     = 107                  // bytes of a socket's path: unix(7)
)

// makeFolders makes a job's folders and the file for the daemon's output. All of
// it is root's alone until it is complete. Whatever stood in the folder's place
// is removed: in root's own folder nobody else has put it there.
func (h Host) makeFolders(s Spec) (output *os.File, err error) {
	if err := h.removeFolder(context.Background(), s.Job); err != nil {
		return nil, err
	}
	base, err := os.OpenRoot(h.base())
	if err != nil {
		return nil, err
	}
	defer base.Close()
	if err := base.Mkdir(s.Job, 0o700); err != nil {
		return nil, err
	}
	job, err := base.OpenRoot(s.Job)
	if err != nil {
		return nil, err
	}
	defer job.Close()
	uid, gid := int(s.UID), int(s.GID)
	for _, name := range []string{pipeName, logName} {
		if err := job.Mkdir(name, 0o700); err != nil {
			return nil, err
		}
	}
	output, err = job.OpenFile(filepath.Join(logName, outputName), os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	err = output.Chown(uid, gid)
	for _, name := range []string{pipeName, logName, "."} {
		if err == nil {
			err = job.Lchown(name, uid, gid)
		}
	}
	if err != nil {
		output.Close()
		return nil, err
	}
	return output, nil
}

// removeFolder removes a job's folder with all that the user and his processes
// have put there. None is no error. Links are removed, not followed; a tree of
// any depth is flattened level by level, so that it takes neither stack nor
// files. ctx bounds it.
func (h Host) removeFolder(ctx context.Context, job string) error {
	base, err := unix.Open(h.base(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: h.base(), Err: err}
	}
	defer unix.Close(base)
	fail := func(err error) error {
		return &fs.PathError{Op: "remove", Path: h.jobFolder(job), Err: err}
	}
	switch done, err := unlink(base, job); {
	case err != nil:
		return fail(err)
	case done:
		return nil
	}
	top, err := seize(base, job)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(top)
	for moved := 0; ; {
		names, err := list(top)
		if err != nil {
			return fail(err)
		}
		if len(names) == 0 {
			break
		}
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return fail(err)
			}
			if err := flatten(top, name, &moved); err != nil {
				return fail(err)
			}
		}
	}
	if err := unix.Unlinkat(base, job, unix.AT_REMOVEDIR); err != nil {
		return fail(err)
	}
	return nil
}

// flatten removes a name from a folder, a folder with all but its folders, which
// become folders of the first one with names that nobody else gives.
func flatten(top int, name string, moved *int) error {
	done, err := unlink(top, name)
	if err != nil || done {
		return err
	}
	fd, err := seize(top, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	names, err := list(fd)
	if err != nil {
		return err
	}
	for _, inner := range names {
		done, err := unlink(fd, inner)
		if err != nil {
			return err
		}
		for !done {
			*moved++
			err := unix.Renameat2(fd, inner, top, ".removed-"+strconv.Itoa(*moved), unix.RENAME_NOREPLACE)
			if err != nil && !errors.Is(err, unix.EEXIST) {
				return err
			}
			done = err == nil
		}
	}
	if err := unix.Unlinkat(top, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// unlink removes a name that is no folder, or an empty folder. It returns false
// for a folder with something in it.
func unlink(dir int, name string) (done bool, err error) {
	err = unix.Unlinkat(dir, name, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	}
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		return true, nil
	case errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST):
		return false, nil
	}
	return false, err
}

// seize opens a folder and takes it from its owner, who can put nothing more
// into it then.
func seize(dir int, name string) (fd int, err error) {
	fd, err = unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	err = unix.Fchown(fd, os.Geteuid(), os.Getegid())
	if err == nil {
		err = unix.Fchmod(fd, 0o700)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// list returns the names in an open folder.
func list(fd int) ([]string, error) {
	// A descriptor of its own, so that each call begins at the first name.
	own, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(own), ".")
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	return names, nil
}

// owner returns the owner's id of a file.
func owner(info fs.FileInfo) uint32 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Uid
	}
	return ^uint32(0)
}
