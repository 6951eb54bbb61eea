package bed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const procRoot = "/proc"

// process is a line of /proc/PID/stat, proc_pid_stat(5). Pid and start time
// (clock ticks since boot) together name a process for good.
type process struct {
	pid, parent int
	command     string // 15 bytes at most
	state       byte   // Z and X are dead
	start       uint64
}

// procfs reads processes; root is /proc outside of tests.
type procfs struct{ root string }

func (p procfs) path(pid int, name string) string {
	return filepath.Join(p.root, strconv.Itoa(pid), name)
}

// list returns the processes that are alive. Those that end while it reads are
// left out.
func (p procfs) list() ([]process, error) {
	entries, err := os.ReadDir(p.root)
	if err != nil {
		return nil, fmt.Errorf("bed: %w", err)
	}
	var list []process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		found, err := p.read(pid)
		if errors.Is(err, errEnded) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, found)
	}
	return list, nil
}

var errEnded = errors.New("it has ended")

// read returns errEnded for a process that is gone or a zombie.
func (p procfs) read(pid int) (process, error) {
	text, err := os.ReadFile(p.path(pid, "stat"))
	// The file can vanish before open, and reading gives ESRCH after it.
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return process{}, errEnded
	}
	if err != nil {
		return process{}, fmt.Errorf("bed: %w", err)
	}
	found, err := parseStat(string(text))
	if err != nil {
		return process{}, fmt.Errorf("bed: %s: %w", p.path(pid, "stat"), err)
	}
	if found.state == 'Z' || found.state == 'X' {
		return process{}, errEnded
	}
	return found, nil
}

func parseStat(text string) (process, error) {
	// The command is in parentheses and may hold any character.
	first, last := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if first < 0 || last < first {
		return process{}, fmt.Errorf("%q: want a command in parentheses", text)
	}
	const (
		stateField  = 3
		parentField = 4
		startField  = 22
	)
	fields := strings.Fields(text[last+1:])
	field := func(n int) string { return fields[n-stateField] }
	if len(fields) <= startField-stateField {
		return process{}, fmt.Errorf("%q: want at least %d fields", text, startField)
	}
	pid, errPID := strconv.Atoi(strings.TrimSpace(text[:first]))
	parent, errParent := strconv.Atoi(field(parentField))
	start, errStart := strconv.ParseUint(field(startField), 10, 64)
	if err := errors.Join(errPID, errParent, errStart); err != nil {
		return process{}, fmt.Errorf("%q: %w", text, err)
	}
	return process{pid: pid, parent: parent, command: text[first+1 : last], state: field(stateField)[0], start: start}, nil
}

// environment holds the variables that a process was executed with, unless it
// has written over them, as slurmstepd does.
func (p procfs) environment(pid int) []string {
	text, err := os.ReadFile(p.path(pid, "environ"))
	if err != nil {
		return nil // it has ended
	}
	return strings.Split(string(text), "\x00")
}

// inCgroup reports whether a process is in the folder /name of some cgroup
// hierarchy, or below it.
func (p procfs) inCgroup(pid int, name string) bool {
	text, err := os.ReadFile(p.path(pid, "cgroup"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) == 3 && (parts[2] == "/"+name || strings.HasPrefix(parts[2], "/"+name+"/")) {
			return true
		}
	}
	return false
}

// program is the base name of what a process executes. Debian's is
// slurmstepd-wlm, and one that was replaced on disk ends in " (deleted)".
func (p procfs) program(pid int) string {
	path, err := os.Readlink(p.path(pid, "exe"))
	if err != nil {
		return ""
	}
	return filepath.Base(path)
}

// openFiles are the paths of the files that a process has open, and for sockets
// and pipes what stands in their place.
func (p procfs) openFiles(pid int) []string {
	entries, err := os.ReadDir(p.path(pid, "fd"))
	if err != nil {
		return nil
	}
	var paths []string
	for _, entry := range entries {
		path, err := os.Readlink(p.path(pid, filepath.Join("fd", entry.Name())))
		if err == nil {
			paths = append(paths, path)
		}
	}
	return paths
}

// mappedFiles are the paths of the files that a process has mapped into memory.
func (p procfs) mappedFiles(pid int) []string {
	text, err := os.ReadFile(p.path(pid, "maps"))
	if err != nil {
		return nil
	}
	var paths []string
	for line := range strings.Lines(string(text)) {
		// address, permissions, offset, device, inode, path
		if _, path, found := strings.Cut(line, " /"); found {
			paths = append(paths, "/"+strings.TrimSuffix(path, "\n"))
		}
	}
	return paths
}

// commandLine is what ps shows.
func (p procfs) commandLine(target process) string {
	text, err := os.ReadFile(p.path(target.pid, "cmdline"))
	line := strings.TrimSpace(strings.ReplaceAll(string(text), "\x00", " "))
	if err != nil || line == "" {
		return "[" + target.command + "]"
	}
	return line
}

// signal sends a signal to this very process, never to one that got its pid
// after it. A process that has ended is no error.
func (p procfs) signal(target process, sig unix.Signal) error {
	fd, err := unix.PidfdOpen(target.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("bed: pidfd_open %d: %w", target.pid, err)
	}
	defer unix.Close(fd)
	// fd is of whoever has the pid now; only then is it certain who that is.
	now, err := p.read(target.pid)
	if errors.Is(err, errEnded) || (err == nil && now.start != target.start) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("bed: signal %d to process %d: %w", sig, target.pid, err)
	}
	return nil
}
