package agent

import (
	"encoding/binary"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// folderWatch tells when something happens to files in a folder (inotify(7)).
type folderWatch struct {
	what   uint32 // events, as IN_CLOSE_WRITE
	prefix string // of the files' names that count
	path   string
	file   *os.File
	seen   chan struct{}
	lost   *atomic.Bool // the folder was removed
}

// open watches a folder, unless it does already.
func (w *folderWatch) open(path string) error {
	if w.file != nil && w.path == path && !w.lost.Load() {
		return nil
	}
	w.close()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("inotify_init1", err)
	}
	if _, err := unix.InotifyAddWatch(fd, path, w.what|unix.IN_ONLYDIR); err != nil {
		unix.Close(fd)
		return &fs.PathError{Op: "inotify_add_watch", Path: path, Err: err}
	}
	w.path, w.file, w.seen, w.lost = path, os.NewFile(uintptr(fd), path), make(chan struct{}, 1), &atomic.Bool{}
	go read(w.file, w.prefix, w.seen, w.lost)
	return nil
}

// read turns events into a word that there were some, until the file is closed.
func read(file *os.File, prefix string, seen chan<- struct{}, lost *atomic.Bool) {
	buffer := make([]byte, 4096)
	for {
		n, err := file.Read(buffer)
		if err != nil {
			return
		}
		counts := false
		for at := 0; at+unix.SizeofInotifyEvent <= n; {
			mask, length := binary.NativeEndian.Uint32(buffer[at+4:]), binary.NativeEndian.Uint32(buffer[at+12:])
			at += unix.SizeofInotifyEvent
			if mask&unix.IN_IGNORED != 0 {
				lost.Store(true)
				counts = true
			}
			name := buffer[at:min(at+int(length), n)]
			counts = counts || mask&unix.IN_Q_OVERFLOW != 0 || length > 0 && strings.HasPrefix(string(name), prefix)
			at += int(length)
		}
		if !counts {
			continue
		}
		select {
		case seen <- struct{}{}:
		default: // nobody has looked since the last one
		}
	}
}

// events gets a value when something has changed, never if nothing is watched.
func (w *folderWatch) events() <-chan struct{} {
	if w.file == nil {
		return nil
	}
	return w.seen
}

func (w *folderWatch) close() {
	if w.file != nil {
		w.file.Close()
		w.file = nil
	}
}
