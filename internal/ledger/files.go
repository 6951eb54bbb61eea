package ledger

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// files is the ledger's folder. Names are relative to it, with slashes. Errors
// are the kernel's, for errors.Is with fs.ErrNotExist and fs.ErrExist.
//
// Each method is one change on disk, so that tests can stop between any two.
type files interface {
	makeBase() error                      // makes the folder itself, durably; it may exist
	list(folder string) ([]string, error) // names in a folder
	read(name string) ([]byte, error)     // errForeign unless it is a file of the ledger's making
	makeFolder(name string) error
	create(name string) (file, error) // for writing; it must not exist
	rename(from, to string) error
	remove(name string) error
	removeFolder(name string) error // an empty one
	syncFolder(name string) error   // makes the names in it durable
}

type file interface {
	io.WriteCloser
	Sync() error
}

// errForeign is what stands in the place of a file and was not put there by
// the ledger: a symlink, a device, somebody else's file.
var errForeign = errors.New("not a file of the ledger")

// maxRecord is far more than a job can hold: a key takes some 200 bytes.
const maxRecord = 4 << 20

// Folders in the ledger's.
const (
	jobsFolder  = "jobs"
	locksFolder = "locks"
	asideFolder = "aside"
)

// disk is the folder on disk. Every part of a name is opened by itself and no
// symlink followed, and folders that others may write to are refused.
type disk struct{ dir string }

// makeBase implements files.
func (d disk) makeBase() error {
	err := os.Mkdir(d.dir, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(d.dir), 0o755); err == nil {
			err = os.Mkdir(d.dir, 0o700)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := d.tighten(); err != nil {
		return err
	}
	parent, err := os.Open(filepath.Dir(d.dir))
	if err != nil {
		return err
	}
	defer parent.Close()
	return parent.Sync()
}

// tighten takes away what the folder, which may have been made by a package
// or by systemd, lets others see. One that others can write to is refused.
func (d disk) tighten() error {
	fd, err := d.open("", 0, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&0o777 == 0o700 {
		return err
	}
	return unix.Fchmod(fd, 0o700)
}

// open opens a name part by part.
func (d disk) open(name string, flags int, perm uint32) (int, error) {
	fail := func(err error) (int, error) {
		return -1, &fs.PathError{Op: "open", Path: filepath.Join(d.dir, name), Err: err}
	}
	const folder = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := retry(func() (int, error) { return unix.Open(d.dir, folder, 0) })
	if err != nil {
		return fail(err)
	}
	if err := checkFolder(fd); err != nil {
		unix.Close(fd)
		return fail(err)
	}
	if name == "" {
		return fd, nil
	}
	parts := strings.Split(name, "/")
	for i, part := range parts {
		last := i == len(parts)-1
		how, mode := folder, uint32(0)
		if last {
			how, mode = flags|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, perm
		}
		next, err := retry(func() (int, error) { return unix.Openat(fd, part, how, mode) })
		unix.Close(fd)
		if errors.Is(err, unix.ELOOP) || !last && errors.Is(err, unix.ENOTDIR) {
			return fail(fmt.Errorf("%w: %w", errForeign, err))
		}
		if err != nil {
			return fail(err)
		}
		fd = next
		if how&unix.O_DIRECTORY != 0 {
			if err := checkFolder(fd); err != nil {
				unix.Close(fd)
				return fail(err)
			}
		}
	}
	return fd, nil
}

// retry repeats a call that a signal interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// checkFolder refuses a folder that somebody else could have put files into.
func checkFolder(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("%w: owner %d, mode %#o: needs owner %d and no writing by others", errForeign, st.Uid, st.Mode&0o7777, os.Geteuid())
	}
	return nil
}

// checkFile refuses everything that create does not make.
func checkFile(fd int) (size int64, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 || st.Nlink > 1 {
		return 0, fmt.Errorf("%w: type and mode %#o, owner %d, %d links: needs a plain file 0600 of owner %d with one link",
			errForeign, st.Mode, st.Uid, st.Nlink, os.Geteuid())
	}
	return st.Size, nil
}

// parent calls do with the folder that a name is in and the name's last part.
func (d disk) parent(op, name string, do func(fd int, base string) error) error {
	folder, base := path.Split(name)
	fd, err := d.open(strings.TrimSuffix(folder, "/"), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := do(fd, base); err != nil {
		return &fs.PathError{Op: op, Path: filepath.Join(d.dir, name), Err: err}
	}
	return nil
}

// list implements files.
func (d disk) list(folder string) ([]string, error) {
	fd, err := d.open(folder, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), filepath.Join(d.dir, folder))
	defer f.Close()
	return f.Readdirnames(-1)
}

// read implements files.
func (d disk) read(name string) ([]byte, error) {
	fd, err := d.open(name, unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), filepath.Join(d.dir, name))
	defer f.Close()
	size, err := checkFile(fd)
	if err != nil {
		return nil, err
	}
	if size > maxRecord {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", errForeign, size, maxRecord)
	}
	return io.ReadAll(io.LimitReader(f, maxRecord))
}

// makeFolder implements files.
func (d disk) makeFolder(name string) error {
	return d.parent("mkdir", name, func(fd int, base string) error { return unix.Mkdirat(fd, base, 0o700) })
}

// create implements files.
func (d disk) create(name string) (file, error) {
	fd, err := d.open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), filepath.Join(d.dir, name)), nil
}

// rename implements files.
func (d disk) rename(from, to string) error {
	return d.parent("rename", from, func(fromFd int, fromBase string) error {
		return d.parent("rename", to, func(toFd int, toBase string) error {
			return unix.Renameat(fromFd, fromBase, toFd, toBase)
		})
	})
}

// remove implements files.
func (d disk) remove(name string) error {
	return d.parent("remove", name, func(fd int, base string) error { return unix.Unlinkat(fd, base, 0) })
}

// removeFolder implements files.
func (d disk) removeFolder(name string) error {
	return d.parent("rmdir", name, func(fd int, base string) error { return unix.Unlinkat(fd, base, unix.AT_REMOVEDIR) })
}

// syncFolder implements files.
func (d disk) syncFolder(name string) error {
	fd, err := d.open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), filepath.Join(d.dir, name))
	defer f.Close()
	return f.Sync()
}
