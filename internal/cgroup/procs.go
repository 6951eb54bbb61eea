package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const procsFile = "cgroup.procs"

// Procs returns the processes in the cgroup, without those of cgroups below it,
// in the order of its cgroup.procs. Zombies are not there on v2, and a process of
// another PID namespace reads 0.
func Procs(p Place) ([]int, error) { return readPIDs(filepath.Join(p.Dir, procsFile)) }

// Threads returns the threads in the cgroup by their ids, as Procs. The file is
// cgroup.threads on v2 and tasks on v1.
func Threads(p Place) ([]int, error) {
	threads, err := readPIDs(filepath.Join(p.Dir, "cgroup.threads"))
	if os.IsNotExist(err) {
		return readPIDs(filepath.Join(p.Dir, "tasks"))
	}
	return threads, err
}

func readPIDs(file string) ([]int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var pids []int
	for field := range strings.FieldsSeq(string(text)) {
		pid, err := strconv.ParseUint(field, 10, 31)
		if err != nil {
			return nil, fmt.Errorf("%s: %q: want a process id", file, field)
		}
		pids = append(pids, int(pid))
	}
	return pids, nil
}
