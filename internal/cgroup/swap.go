package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ErrNoSwapLimit is in the error of NoSwap where nothing limits a job's swap by
// itself: Slurm uses cgroup v1, or the kernel does not count swap.
var ErrNoSwapLimit = errors.New("no memory.swap.max of its own")

const swapMax = "memory.swap.max"

// NoSwap keeps the memory of the whole job that process pid belongs to from being
// swapped out: it writes 0 to memory.swap.max of the job's cgroup v2, and of the
// cgroup of the process's step, where no later step of the job writes what
// ConstrainSwapSpace of cgroup.conf says. Both end with the job.
//
// Documentation/admin-guide/cgroup-v2.rst: what is swapped out already stays so.
func (h Hierarchies) NoSwap(pid int) error {
	paths, err := h.Of(pid)
	if err != nil && paths.V2.None() {
		return err
	}
	job, inJob := JobOf(paths.V2.Path)
	if !inJob {
		return fmt.Errorf("process %d is in no job's cgroup v2: %w", pid, ErrNoSwapLimit)
	}
	limited := []string{job}
	if step, inStep := stepOf(paths.V2.Path); inStep {
		limited = append(limited, step)
	}
	for _, path := range limited {
		place, err := h.Unified(path)
		if err != nil {
			return err
		}
		if err := place.noSwap(); err != nil {
			return err
		}
	}
	return nil
}

func (p Place) noSwap() error {
	file := filepath.Join(p.Dir, swapMax)
	err := kernel{}.write(file, "0")
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w: the memory controller is not on there, or the kernel counts no swap", p.Path, ErrNoSwapLimit)
	}
	if err != nil {
		return err
	}
	is, err := os.ReadFile(file)
	if err == nil && strings.TrimSpace(string(is)) != "0" {
		err = fmt.Errorf("%s: wrote 0, reads %.40q", file, is)
	}
	return err
}

// stepOf returns the path of the cgroup v2 of the step that a process in the
// cgroup at path belongs to.
func stepOf(path string) (string, bool) {
	job, is := JobOf(path)
	if !is {
		return "", false
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(path, job), "/"), "/")
	return job + "/" + name, strings.HasPrefix(name, "step_")
}

// CountsSwap tells whether jobs' swap can be limited on this machine: Slurm's
// cgroups are v2, and the kernel counts what each swaps out. False
// where that cannot be told.
func CountsSwap(root string) bool {
	hierarchies, err := Mounted(root)
	if err != nil {
		return false
	}
	top, err := hierarchies.Unified("/")
	if err != nil || top.None() {
		return false
	}
	controllers, err := os.ReadFile(filepath.Join(top.Dir, "cgroup.controllers"))
	if err != nil || !slices.Contains(strings.Fields(string(controllers)), "memory") {
		return false
	}
	// The file is in no top cgroup; any below it with the controller has it.
	for _, pattern := range []string{"*", "*/*"} {
		if found, _ := filepath.Glob(filepath.Join(top.Dir, pattern, "memory.max")); len(found) > 0 {
			_, err := os.Stat(filepath.Join(filepath.Dir(found[0]), swapMax))
			return err == nil
		}
	}
	return true // nothing says that it does not
}
