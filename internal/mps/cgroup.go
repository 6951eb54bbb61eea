package mps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// cgroupMounts are the places of cgroup v2: alone, and beside v1.
var cgroupMounts = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}

// cgroupMount returns where cgroup v2 is mounted, "" if it is nowhere.
func (h Host) cgroupMount() string {
	for _, place := range cgroupMounts {
		var st unix.Statfs_t
		if unix.Statfs(h.path(place), &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			return h.path(place)
		}
	}
	return ""
}

// readPIDs reads a cgroup.procs. A cgroup that is not there has no processes.
// One that is in another pid namespace has the number 0 and is left out.
func readPIDs(path string) ([]int, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []int
	for field := range strings.FieldsSeq(string(text)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if pid != 0 {
			list = append(list, pid)
		}
	}
	return list, nil
}

// openFolder opens a cgroup's folder, nil if there is none.
func openFolder(path string) *os.File {
	if path == "" {
		return nil
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), path)
}
