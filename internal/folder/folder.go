// Package folder keeps files in a folder where nobody else can put any: root's
// own, below /var/lib and /run. Each method is one change on disk.
package folder

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

// ErrForeign is what stands in the place of a file and was not put there by
// this package: a symlink, a device, somebody else's file.
var ErrForeign = errors.New("not a file of gputune's")

// maxFile bounds what Read returns, in bytes.
const maxFile = 4 << 20

// Folder is a folder on disk. Names are relative to it, with slashes. Every part
// of a name is opened by itself and no symlink followed, and folders that others
// may write to are refused. Files have mode 0600 and folders in it 0700. Errors
// are the kernel's, for errors.Is with fs.ErrNotExist and fs.ErrExist, or
// ErrForeign.
type Folder struct {
	Dir  string
	Mode os.FileMode // of the folder itself: 0700, or 0755 for one that others may look into
	// Shown makes files that everybody may read who gets to their folder (see
	// LetIn), mode 0644. Who reads may then be another user than root, whose files
	// they are.
	Shown bool
}

// File is a file that is being written.
type File interface {
	io.WriteCloser
	Sync() error
}

// MakeBase makes the folder itself, durably; it may exist.
func (d Folder) MakeBase() error {
	err := os.Mkdir(d.Dir, d.Mode)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(d.Dir), 0o755); err == nil {
			err = os.Mkdir(d.Dir, d.Mode)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := d.tighten(); err != nil {
		return err
	}
	parent, err := os.Open(filepath.Dir(d.Dir))
	if err != nil {
		return err
	}
	defer parent.Close()
	return parent.Sync()
}

// tighten takes away what the folder, which may have been made by a package
// or by systemd, lets others see. One that others can write to is refused.
func (d Folder) tighten() error {
	fd, err := d.open("", 0, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || os.FileMode(st.Mode&0o777) == d.Mode {
		return err
	}
	return unix.Fchmod(fd, uint32(d.Mode))
}

// open opens a name part by part.
func (d Folder) open(name string, flags int, perm uint32) (int, error) {
	fail := func(err error) (int, error) {
		return -1, &fs.PathError{Op: "open", Path: filepath.Join(d.Dir, name), Err: err}
	}
	const folder = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := retry(func() (int, error) { return unix.Open(d.Dir, folder, 0) })
	if err != nil {
		return fail(err)
	}
	if err := d.checkFolder(fd); err != nil {
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
			return fail(fmt.Errorf("%w: %w", ErrForeign, err))
		}
		if err != nil {
			return fail(err)
		}
		fd = next
		if how&unix.O_DIRECTORY != 0 {
			if err := d.checkFolder(fd); err != nil {
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
func (d Folder) checkFolder(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if !d.owner(st.Uid) || st.Mode&0o022 != 0 {
		return fmt.Errorf("%w: owner %d, mode %#o: needs owner %d and no writing by others", ErrForeign, st.Uid, st.Mode&0o7777, os.Geteuid())
	}
	return nil
}

// owner tells whether a file of that user can be one of this folder's.
func (d Folder) owner(uid uint32) bool { return int(uid) == os.Geteuid() || d.Shown && uid == 0 }

// fileMode is the mode of files.
func (d Folder) fileMode() uint32 {
	if d.Shown {
		return 0o644
	}
	return 0o600
}

// checkFile refuses everything that create does not make.
func (d Folder) checkFile(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || !d.owner(st.Uid) || st.Mode&0o777&^d.fileMode() != 0 || st.Nlink > 1 {
		return fmt.Errorf("%w: type and mode %#o, owner %d, %d links: needs a plain file %#o of owner %d with one link",
			ErrForeign, st.Mode, st.Uid, st.Nlink, d.fileMode(), os.Geteuid())
	}
	return nil
}

// parent calls do with the folder that a name is in and the name's last part.
func (d Folder) parent(op, name string, do func(fd int, base string) error) error {
	folder, base := path.Split(name)
	fd, err := d.open(strings.TrimSuffix(folder, "/"), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := do(fd, base); err != nil {
		return &fs.PathError{Op: op, Path: filepath.Join(d.Dir, name), Err: err}
	}
	return nil
}

// List returns the names in a folder, "" this one.
func (d Folder) List(folder string) ([]string, error) {
	fd, err := d.open(folder, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), filepath.Join(d.Dir, folder))
	defer f.Close()
	return f.Readdirnames(-1)
}

// Open opens a file with flags of open(2), such as O_RDWR and O_CREAT.
func (d Folder) Open(name string, flags int) (*os.File, error) {
	fd, err := d.open(name, flags, d.fileMode())
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), filepath.Join(d.Dir, name))
	if err := d.checkFile(fd); err != nil {
		f.Close()
		return nil, &fs.PathError{Op: "open", Path: f.Name(), Err: err}
	}
	return f, nil
}

// Read returns what a file of Create has.
func (d Folder) Read(name string) ([]byte, error) {
	f, err := d.Open(name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrForeign, maxFile)
	}
	return text, err
}

// MakeFolder makes a folder in this one.
func (d Folder) MakeFolder(name string) error {
	return d.parent("mkdir", name, func(fd int, base string) error { return unix.Mkdirat(fd, base, 0o700) })
}

// Create makes a file for writing. It must not exist.
func (d Folder) Create(name string) (File, error) {
	f, err := d.Open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Rename gives a file or folder another name and replaces what had it.
func (d Folder) Rename(from, to string) error {
	return d.parent("rename", from, func(fromFd int, fromBase string) error {
		return d.parent("rename", to, func(toFd int, toBase string) error {
			return unix.Renameat(fromFd, fromBase, toFd, toBase)
		})
	})
}

// Remove removes a file.
func (d Folder) Remove(name string) error {
	return d.parent("remove", name, func(fd int, base string) error { return unix.Unlinkat(fd, base, 0) })
}

// RemoveFolder removes an empty folder.
func (d Folder) RemoveFolder(name string) error {
	return d.parent("rmdir", name, func(fd int, base string) error { return unix.Unlinkat(fd, base, unix.AT_REMOVEDIR) })
}

// SyncFolder makes the names in a folder durable.
func (d Folder) SyncFolder(name string) error {
	fd, err := d.open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), filepath.Join(d.Dir, name))
	defer f.Close()
	return f.Sync()
}
