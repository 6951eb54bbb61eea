package topology

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"gputune/internal/idset"
)

const (
	snapshotFormat  = "gputune topology"
	snapshotVersion = 1

	// maxSnapshotSize bounds what is read; a machine with 512 CPUs and 16 GPUs
	// takes some 30 KiB.
	maxSnapshotSize = 4 << 20
)

var (
	// ErrUntrusted is returned for a snapshot that somebody else than root
	// could have written.
	ErrUntrusted = errors.New("not trusted")
	// ErrNotSnapshot is returned for a file that is no snapshot, or a torn one.
	ErrNotSnapshot = errors.New("not a topology snapshot")
	// ErrSnapshotVersion is returned for a snapshot of another version of
	// gputune.
	ErrSnapshotVersion = errors.New("unknown snapshot version")
)

// StaleError is returned for a snapshot of a machine that has changed since.
type StaleError struct {
	What      string // "boot id", "driver version", "GPUs", "online CPUs" or "online NUMA nodes"
	Then, Now string // its value in the snapshot and at present
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("topology snapshot is stale: %s was %q and is %q now", e.What, clip(e.Then), clip(e.Now))
}

type snapshot struct {
	Format      string      `json:"format"`
	Version     int         `json:"version"`
	Fingerprint fingerprint `json:"fingerprint"`
	Machine     *Machine    `json:"machine"`
}

// WriteSnapshot writes what is known about the machine below root to path, so
// that ReadSnapshot can answer without reading sysfs and asking NVML. The file
// is replaced in one step and has mode 0644; its folder is made, mode 0755,
// if there is none.
//
// MIG devices that are made or destroyed later do not make a snapshot stale:
// whoever changes them writes a new one.
func WriteSnapshot(root, path string, m *Machine) error {
	t, err := openTree(root)
	if err != nil {
		return fmt.Errorf("topology snapshot: %w", err)
	}
	defer t.close()
	now, err := readFingerprint(t)
	if err != nil {
		return fmt.Errorf("topology snapshot: %w", err)
	}
	content, err := json.Marshal(snapshot{Format: snapshotFormat, Version: snapshotVersion, Fingerprint: now, Machine: m})
	if err != nil {
		return fmt.Errorf("topology snapshot: %w", err)
	}
	if err := replaceFile(path, append(content, '\n')); err != nil {
		return fmt.Errorf("topology snapshot: %w", err)
	}
	return nil
}

// replaceFile puts content at path so that a reader, also after a crash, finds
// the old or the new content and nothing in between.
func replaceFile(path string, content []byte) (err error) {
	folder := filepath.Dir(path)
	if err := makeFolder(folder); err != nil {
		return err
	}
	file, err := os.CreateTemp(folder, "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = file.Close()
			_ = os.Remove(file.Name())
		}
	}()
	if _, err = file.Write(content); err != nil {
		return err
	}
	if err = file.Chmod(0o644); err != nil { // CreateTemp's is 0600, and umask does not count here
		return err
	}
	if err = file.Sync(); err != nil {
		return err
	}
	if err = file.Close(); err != nil {
		return err
	}
	if err = os.Rename(file.Name(), path); err != nil {
		return err
	}
	return syncFolder(folder)
}

// makeFolder makes the folder with mode 0755 whatever the umask is.
func makeFolder(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	return os.Chmod(path, 0o755)
}

func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	return folder.Sync()
}

// ReadSnapshot returns the machine that WriteSnapshot wrote to path, provided
// that the machine below root is still the same. It is called in slurmstepd as
// root: a file that root does not own, or that others can write to, is refused
// (ErrUntrusted), as is one that is no whole snapshot (ErrNotSnapshot) or one
// of another version (ErrSnapshotVersion). A snapshot that no longer holds is
// a *StaleError. No file at all is fs.ErrNotExist. Callers fall back to Read.
func ReadSnapshot(root, path string) (*Machine, error) {
	return readSnapshot(root, path, 0)
}

func readSnapshot(root, path string, owner uint32) (*Machine, error) {
	content, err := readTrusted(path, owner)
	if err != nil {
		return nil, fmt.Errorf("topology snapshot %s: %w", path, err)
	}
	s, err := decodeSnapshot(content)
	if err != nil {
		return nil, fmt.Errorf("topology snapshot %s: %w", path, err)
	}
	t, err := openTree(root)
	if err != nil {
		return nil, fmt.Errorf("topology snapshot %s: %w", path, err)
	}
	defer t.close()
	now, err := readFingerprint(t)
	if err != nil {
		return nil, fmt.Errorf("topology snapshot %s: cannot tell whether it holds: %w", path, err)
	}
	if stale := s.Fingerprint.differs(now); stale != nil {
		return nil, stale
	}
	return s.Machine, nil
}

// ParseSnapshot returns the machine of a snapshot of any machine, one that was
// copied from elsewhere for example: it asks neither who wrote it nor whether
// it still holds, so nothing that is done to this machine may rest on it.
func ParseSnapshot(content []byte) (*Machine, error) {
	s, err := decodeSnapshot(content)
	if err != nil {
		return nil, err
	}
	return s.Machine, nil
}

// readTrusted reads a regular file that only owner can have written.
func readTrusted(path string, owner uint32) ([]byte, error) {
	fd, err := openat(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%w: is a symbolic link", ErrUntrusted)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, err
	}
	switch {
	case stat.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("%w: is not a regular file", ErrUntrusted)
	case stat.Uid != owner:
		return nil, fmt.Errorf("%w: is owned by uid %d, want %d", ErrUntrusted, stat.Uid, owner)
	case stat.Mode&0o022 != 0:
		return nil, fmt.Errorf("%w: mode is %04o, want it writable by its owner only", ErrUntrusted, stat.Mode&0o7777)
	}
	size := min(max(stat.Size, 0), maxSnapshotSize)
	return readAll(fd, make([]byte, size+1), maxSnapshotSize)
}

// decodeSnapshot parses a snapshot and checks what later code relies on.
func decodeSnapshot(content []byte) (*snapshot, error) {
	var s snapshot
	// The machine of a newer version may not even decode: format and version,
	// which come first, say so better than the error does.
	err := json.Unmarshal(content, &s)
	if s.Format != snapshotFormat {
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNotSnapshot, err)
		}
		return nil, fmt.Errorf("%w: its format is %q", ErrNotSnapshot, clip(s.Format))
	}
	if s.Version != snapshotVersion {
		return nil, fmt.Errorf("%w: %d, want %d", ErrSnapshotVersion, s.Version, snapshotVersion)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSnapshot, err)
	}
	if err := s.Machine.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSnapshot, err)
	}
	return &s, nil
}

// check tells whether a decoded machine is one that Read could have returned.
func (m *Machine) check() error {
	if m == nil || m.CPUs.Empty() {
		return errors.New("has no CPUs")
	}
	last := -1
	for _, node := range m.Nodes {
		if node.ID <= last || node.ID >= idset.Limit || node.MemoryMiB < 0 {
			return fmt.Errorf("node %d after %d with %d MiB: not in order", node.ID, last, node.MemoryMiB)
		}
		last = node.ID
	}
	for i, gpu := range m.GPUs {
		if pci, err := NormalizePCI(gpu.PCI); err != nil || pci != gpu.PCI || gpu.Index != i {
			return fmt.Errorf("GPU %q at %d: not in order", clip(gpu.PCI), gpu.Index)
		}
	}
	return nil
}
