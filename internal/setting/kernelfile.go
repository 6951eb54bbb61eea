package setting

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// MissingError is a setting that this machine does not have: a virtual machine
// without cpufreq, a kernel without transparent hugepages. It is ErrUnsupported.
type MissingError struct {
	Of   string // "CPU frequency policy policy0"
	File string // what is not there
}

// Error names what is missing and the file that would have it.
func (e *MissingError) Error() string {
	return fmt.Sprintf("%s: this machine has none (%s)", e.Of, e.File)
}

// Unwrap returns ErrUnsupported.
func (e *MissingError) Unwrap() error { return ErrUnsupported }

// Wish is a setting and the value that somebody wants it to have.
type Wish struct {
	Key, Value string
}

// kernelFile is what settings in a file of /proc or /sys have in common: one
// line that is read and written whole.
type kernelFile struct {
	env  *Environment
	key  string
	of   string // names it at the beginning of an error
	path string // as on a node
}

// Key implements Setting.
func (f kernelFile) Key() string { return f.key }

// read returns the file's first line without the end of it.
func (f kernelFile) read() (string, error) { return f.readFile(f.path) }

// readOfPart is read for a file of a thing that a machine can lose while it runs,
// as a CPU, and which the kernel sets anew when it comes again. Without its folder
// it is ErrGone as well as a *MissingError.
func (f kernelFile) readOfPart() (string, error) {
	line, err := f.read()
	if missing := (*MissingError)(nil); !errors.As(err, &missing) {
		return line, err
	}
	if _, missing := os.Stat(f.env.Path(filepath.Dir(f.path))); errors.Is(missing, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: %w", ErrGone, err)
	}
	return "", err
}

func (f kernelFile) readFile(path string) (string, error) {
	text, err := os.ReadFile(f.env.Path(path))
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return "", &MissingError{Of: f.of, File: path}
	case err != nil:
		return "", fmt.Errorf("%s: %w", f.of, refined(err))
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	return string(bytes.TrimSpace(line)), nil
}

// write writes a line in a single call, which the kernel takes or refuses whole.
// A value that it refuses is a *ValueError.
func (f kernelFile) write(value string) error { return f.writeFile(f.path, value) }

func (f kernelFile) writeFile(path, value string) error {
	file, err := os.OpenFile(f.env.Path(path), os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return &MissingError{Of: f.of, File: path}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", f.of, refined(err))
	}
	_, err = file.WriteString(value + "\n")
	if closed := file.Close(); err == nil {
		err = closed
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE):
		return &ValueError{Of: f.of, Value: shown(value), Accepts: "the kernel does not take it"}
	default:
		return fmt.Errorf("%s: write %s: %w", f.of, shown(value), refined(err))
	}
}

// refined adds this package's error to one of the kernel's.
func refined(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: %w", ErrDenied, err)
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w: %w", ErrInUse, err)
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	default:
		return err
	}
}
