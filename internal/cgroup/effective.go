package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gputune/internal/idset"
)

// Cpuset is what processes of a cgroup may use.
type Cpuset struct {
	CPUs idset.Set
	Mems idset.Set // NUMA nodes
}

// ErrNoCpuset is in the error of functions for a process that no cpuset holds
// anywhere: no hierarchy has the controller.
var ErrNoCpuset = errors.New("no hierarchy has the cpuset controller")

// CPUs returns the CPUs that the process's cgroup may use, see Effective.
func (p Paths) CPUs() (idset.Set, error) {
	set, err := p.Effective()
	return set.CPUs, err
}

// Effective returns the CPUs and nodes that the process's cgroup may use: of v1
// where there is such a hierarchy, since the controller is in one of the two,
// else of v2. Where the controller is not enabled in a v2 cgroup, the nearest one
// above decides.
func (p Paths) Effective() (Cpuset, error) {
	if !p.Cpuset.None() {
		return effectiveV1(p.Cpuset.Dir)
	}
	if p.V2.None() {
		return Cpuset{}, ErrNoCpuset
	}
	dir, err := p.V2.cpusetDir()
	if err != nil {
		return Cpuset{}, err
	}
	return effectiveV2(dir)
}

// cpusetDir returns the folder of the nearest cgroup, p or above, whose cpuset
// files are there.
func (p Place) cpusetDir() (string, error) {
	dir := p.Dir
	for path := p.Path; ; path = filepath.Dir(path) {
		_, err := os.Stat(filepath.Join(dir, effectiveCPUs))
		if err == nil {
			return dir, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if path == "/" || path == "." {
			return "", fmt.Errorf("%s: %w", p.Dir, ErrNoCpuset)
		}
		dir = filepath.Dir(dir)
	}
}

const (
	cpusFile      = "cpuset.cpus"
	memsFile      = "cpuset.mems"
	effectiveCPUs = "cpuset.cpus.effective"
	effectiveMems = "cpuset.mems.effective"
)

func effectiveV2(dir string) (Cpuset, error) {
	return readCpuset(filepath.Join(dir, effectiveCPUs), filepath.Join(dir, effectiveMems))
}

// effectiveV1 prefers the effective sets, which kernels since 3.17 have: without
// the mount option cpuset_v2_mode they equal the configured ones but for CPUs
// that are offline.
func effectiveV1(dir string) (Cpuset, error) {
	set, err := readCpuset(filepath.Join(dir, "cpuset.effective_cpus"), filepath.Join(dir, "cpuset.effective_mems"))
	if errors.Is(err, fs.ErrNotExist) {
		return readCpuset(filepath.Join(dir, cpusFile), filepath.Join(dir, memsFile))
	}
	return set, err
}

func readCpuset(cpus, mems string) (Cpuset, error) {
	var set Cpuset
	var err error
	if set.CPUs, err = readSet(cpus); err != nil {
		return Cpuset{}, err
	}
	if set.Mems, err = readSet(mems); err != nil {
		return Cpuset{}, err
	}
	return set, nil
}

func readSet(file string) (idset.Set, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return idset.Set{}, err
	}
	set, err := idset.Parse(string(text))
	if err != nil {
		return idset.Set{}, fmt.Errorf("%s: %w", file, err)
	}
	return set, nil
}

// MemsAllowed returns the NUMA nodes that process pid may take memory from:
// Mems_allowed_list of /proc/PID/status below root. Unlike a cgroup's files it is
// there in every setup.
func MemsAllowed(root string, pid int) (idset.Set, error) {
	name := filepath.Join(root, "proc", strconv.Itoa(pid), "status")
	file, err := os.Open(name)
	if err != nil {
		return idset.Set{}, err
	}
	defer file.Close()
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		if list, found := strings.CutPrefix(scanner.Text(), "Mems_allowed_list:"); found {
			set, err := idset.Parse(list)
			if err != nil {
				return idset.Set{}, fmt.Errorf("%s: %w", name, err)
			}
			return set, nil
		}
	}
	if err := scanner.Err(); err != nil {
		return idset.Set{}, fmt.Errorf("%s: %w", name, err)
	}
	return idset.Set{}, fmt.Errorf("%s: no Mems_allowed_list: %w", name, fs.ErrNotExist)
}
