package verify

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"gputune/internal/affinity"
	"gputune/internal/idset"
)

// Host is the machine whose tasks are looked at.
type Host struct {
	// Root is prepended to /proc, "/" outside tests.
	Root string
	// Affinity and SetAffinity are package affinity's, for a thread.
	Affinity    func(thread int) (idset.Set, error)
	SetAffinity func(thread int, cpus idset.Set) error
	// Migrate moves the pages of a process from some nodes to others, as
	// migrate_pages(2), and returns how many could not be moved.
	Migrate func(pid int, from, to idset.Set) (left int, err error)
}

// This returns this machine.
func This() Host {
	return Host{Root: "/", Affinity: affinity.Get, SetAffinity: affinity.Set, Migrate: migrate}
}

// Task is one bound task: a process that slurmstepd has started, or one that was
// asked for, and all below it.
type Task struct {
	Job, Step string // "" outside a step
	Plan      Plan
	// Processes begin with the task itself.
	Processes []Process
}

// Process is one process at one moment.
type Process struct {
	PID     int
	Program string // at most 15 bytes, as the kernel has it
	parent  int
	start   string // when it began, in clock ticks: a pid may be another's later
}

var stepTitle = regexp.MustCompile(`^slurmstepd: \[([1-9][0-9]*)(?:\+[0-9]+)?\.([0-9a-z+]+)\]`)

// Tasks returns all bound tasks of steps on this node, by pid. Those of other
// users can be read by root alone; what cannot be read is left out.
func (h Host) Tasks() ([]Task, error) {
	all, err := h.processes()
	if err != nil {
		return nil, err
	}
	var tasks []Task
	for _, stepd := range sorted(all) {
		if stepd.Program != "slurmstepd" || !h.root(stepd.PID) {
			continue
		}
		title := stepTitle.FindStringSubmatch(h.read(stepd.PID, "cmdline"))
		if title == nil {
			continue
		}
		for _, child := range sorted(all) {
			if child.parent != stepd.PID {
				continue
			}
			if plan, err := parsePlan(h.read(child.PID, "environ")); err == nil {
				tasks = append(tasks, Task{Job: title[1], Step: title[2], Plan: plan, Processes: below(all, child.PID)})
			}
		}
	}
	return tasks, nil
}

// Of returns the task of one process, which need not be a step's, and what is
// below it. An error wraps ErrNotBound or, for no such process, fs.ErrNotExist.
func (h Host) Of(pid int) (Task, error) {
	all, err := h.processes()
	if err != nil {
		return Task{}, err
	}
	if _, there := all[pid]; !there {
		return Task{}, fmt.Errorf("process %d: %w", pid, fs.ErrNotExist)
	}
	environ, err := os.ReadFile(h.path(pid, "environ"))
	if err != nil {
		return Task{}, err
	}
	plan, err := parsePlan(string(environ))
	if err != nil {
		return Task{}, fmt.Errorf("process %d: %w", pid, err)
	}
	return Task{Plan: plan, Processes: below(all, pid)}, nil
}

func (h Host) path(pid int, name string) string {
	return filepath.Join(h.Root, "proc", strconv.Itoa(pid), name)
}

// read returns a file of a process, "" if it has ended or is not to be read.
func (h Host) read(pid int, name string) string {
	text, err := os.ReadFile(h.path(pid, name))
	if err != nil {
		return ""
	}
	return string(text)
}

// root tells whether a process is root's: a user can give his any title.
func (h Host) root(pid int) bool {
	info, err := os.Stat(h.path(pid, ""))
	if err != nil {
		return false
	}
	st, known := info.Sys().(*syscall.Stat_t)
	return known && st.Uid == 0
}

func (h Host) processes() (map[int]Process, error) {
	entries, err := os.ReadDir(filepath.Join(h.Root, "proc"))
	if err != nil {
		return nil, err
	}
	all := map[int]Process{}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if p, ok := parseStat(pid, h.read(pid, "stat")); ok {
			all[pid] = p
		}
	}
	return all, nil
}

// parseStat reads /proc/PID/stat (proc(5)): pid (program) state ppid … with the
// start time in field 22. A program's name can have anything in it.
func parseStat(pid int, text string) (Process, bool) {
	begin, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if begin < 0 || end < begin {
		return Process{}, false
	}
	fields := strings.Fields(text[end+1:])
	const state, parent, start = 0, 1, 19 // fields 3, 4 and 22
	if len(fields) <= start || fields[state] == "Z" || fields[state] == "X" {
		return Process{}, false
	}
	ppid, err := strconv.Atoi(fields[parent])
	if err != nil {
		return Process{}, false
	}
	return Process{PID: pid, Program: text[begin+1 : end], parent: ppid, start: fields[start]}, true
}

// still tells whether a process is the one that it was.
func (h Host) still(p Process) bool {
	now, ok := parseStat(p.PID, h.read(p.PID, "stat"))
	return ok && now.start == p.start
}

func sorted(all map[int]Process) []Process {
	list := make([]Process, 0, len(all))
	for _, p := range all {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b Process) int { return a.PID - b.PID })
	return list
}

// below returns a process and its descendants.
func below(all map[int]Process, pid int) []Process {
	children := map[int][]Process{}
	for _, p := range sorted(all) {
		children[p.parent] = append(children[p.parent], p)
	}
	list := []Process{all[pid]}
	for i := 0; i < len(list) && len(list) <= len(all); i++ {
		list = append(list, children[list[i].PID]...)
	}
	return list
}

// threads returns the ids of a process's threads, none if it has ended.
func (h Host) threads(pid int) []int {
	entries, err := os.ReadDir(h.path(pid, "task"))
	if err != nil {
		return nil
	}
	var ids []int
	for _, entry := range entries {
		if id, err := strconv.Atoi(entry.Name()); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }
