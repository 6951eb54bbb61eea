package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// The exit statuses of a program that runs another one, as those of env(1) and
// nohup(1).
const (
	StatusOwnFault      = 125 // the program itself failed
	StatusNotExecutable = 126 // the command is there and cannot be run
	StatusNotFound      = 127
)

// Find returns the file of a command: the name itself if it has a slash, else the
// first that can be run of that name in PATH.
func Find(name string) (string, error) {
	path, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrDot) { // the user's own PATH may name the current folder
		return path, nil
	}
	var reason *exec.Error
	if errors.As(err, &reason) {
		err = reason.Err
	}
	if errors.Is(err, exec.ErrNotFound) {
		err = errors.New("no such command in PATH")
		for _, folder := range filepath.SplitList(os.Getenv("PATH")) {
			if _, there := os.Stat(filepath.Join(folder, name)); there == nil {
				err = fmt.Errorf("%s: %w", filepath.Join(folder, name), unix.EACCES)
				break
			}
		}
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return path, nil
}

// Status returns the exit status for a command that Find or Exec could not run.
func Status(err error) int {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENOEXEC) || errors.Is(err, unix.EISDIR) {
		return StatusNotExecutable
	}
	return StatusNotFound
}

// Exec makes this process the command; it returns only if that fails. The
// goroutine must be locked to the thread whose affinity and memory policy the
// command shall have: of all threads the one that calls execve(2) stays. Open
// files and the limit on them are as they were before Go's runtime began.
func Exec(path string, arguments, environment []string) error {
	// syscall's, and not a call of execve: it gives the limit on files back.
	return fmt.Errorf("%s: %w", path, syscall.Exec(path, arguments, environment))
}
