package topology

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"
)

// maxFileSize bounds what is read of one file. The longest list, every second
// of idset.Limit CPUs, takes 20 KiB.
const maxFileSize = 32 << 10

// firstRead is the smallest page size of Linux.
const firstRead = 4096

// maxFolderEntries bounds what is listed of one folder; machines with
// thousands of SR-IOV functions stay far below it.
const maxFolderEntries = 1 << 16

// tree reads the small files of /sys and /proc below a movable root. It makes
// the system calls itself: package os would register every file with the
// runtime's poller, which costs two more calls for each file and leaves an
// epoll descriptor in the process, here slurmstepd.
type tree struct {
	fd     int
	buf    []byte
	inside bool // symbolic links lead nowhere but below the root
}

// openTree opens the folder that stands for "/".
func openTree(root string) (*tree, error) {
	fd, err := openat(unix.AT_FDCWD, root, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", root, err)
	}
	return &tree{fd: fd, buf: make([]byte, firstRead), inside: root != "/"}, nil
}

// open opens a path below the root. In a copy, a link such as /etc means the
// copy's own /etc, never this machine's; kernels before 5.6 cannot tell the two
// apart, and follow it.
func (t *tree) open(path string, flags int) (int, error) {
	if !t.inside {
		return openat(t.fd, path, flags)
	}
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_IN_ROOT}
	for {
		fd, err := unix.Openat2(t.fd, path, &how)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN): // something was renamed meanwhile
		case errors.Is(err, unix.ENOSYS):
			t.inside = false
			return openat(t.fd, path, flags)
		default:
			return fd, err
		}
	}
}

func (t *tree) close() { _ = unix.Close(t.fd) }

// Read implements Files.
func (t *tree) Read(path string) ([]byte, error) {
	// O_NONBLOCK: a FIFO in a copied tree must not block its reader.
	fd, err := t.open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	if strings.HasPrefix(path, "sys/") {
		// A sysfs file comes whole with the first read, or a page of it does
		// (fs/kernfs/file.c). To read on until 0 would be a quarter of all
		// system calls.
		n, err := unix.Read(fd, t.buf[:firstRead])
		if err == nil && n < firstRead {
			return t.buf[:n], nil
		}
		if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
			return nil, err
		}
	}
	content, err := readAll(fd, t.buf, maxFileSize)
	if cap(content) > cap(t.buf) {
		t.buf = content[:cap(content)]
	}
	return content, err
}

// readAll reads fd to its end into buf, or into a larger slice when needed.
func readAll(fd int, buf []byte, limit int) ([]byte, error) {
	filled := 0
	for {
		if filled == len(buf) {
			if filled >= limit {
				return nil, fmt.Errorf("longer than %d bytes", limit)
			}
			buf = append(buf, make([]byte, len(buf))...)
		}
		n, err := unix.Read(fd, buf[filled:])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, err
		case n == 0:
			return buf[:filled], nil
		default:
			filled += n
		}
	}
}

// Names implements Files.
func (t *tree) Names(path string) ([]string, error) {
	fd, err := t.open(path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	var names []string
	for {
		n, err := unix.ReadDirent(fd, t.buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, err
		case n == 0:
			return names, nil
		}
		_, _, names = unix.ParseDirent(t.buf[:n], -1, names)
		if len(names) > maxFolderEntries {
			return nil, fmt.Errorf("more than %d entries", maxFolderEntries)
		}
	}
}

// Link implements Files.
func (t *tree) Link(path string) (string, error) {
	var target [unix.PathMax]byte
	n, err := unix.Readlinkat(t.fd, path, target[:])
	if err != nil {
		return "", err
	}
	return string(target[:n]), nil
}

func openat(dir int, path string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, path, flags|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// isMissing tells whether err says that there is no such file.
func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

// clip shortens what goes into a message.
func clip(text string) string {
	const longest = 160
	text = strings.TrimSpace(text)
	if len(text) <= longest {
		return text
	}
	return text[:longest] + "…"
}
