package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"gputune/internal/idset"
)

// NotOwnError says that a task has no cgroup of its own whose cpuset can be set;
// its affinity and memory policy can.
type NotOwnError struct {
	Reason string // for users
}

func (e *NotOwnError) Error() string { return "cpuset not set: " + e.Reason }

// NotTakenError says that the kernel took a value and did not use it: what is
// effective is not what was written. That is so for a value outside of what the
// cgroup above may use.
type NotTakenError struct {
	File      string // what was written to
	Wrote     idset.Set
	Effective idset.Set // what the kernel uses in its place
}

func (e *NotTakenError) Error() string {
	return fmt.Sprintf("%s: wrote %s, the kernel uses %s: want a part of what the cgroup above may use", e.File, e.Wrote, e.Effective)
}

// TakenOverError says that a cpuset was not put back since somebody else has
// changed it in the meantime.
type TakenOverError struct {
	File         string
	Wrote, Found idset.Set
}

func (e *TakenOverError) Error() string {
	return fmt.Sprintf("%s: is %s, not %s as set here: left as it is", e.File, e.Found, e.Wrote)
}

// Confined is a cpuset that was set, to be put back with Restore.
type Confined struct {
	changes []change // in the order they were made
	parent  string
}

// change is one file that was written.
type change struct {
	kind          kind
	dir           string
	before, wrote idset.Set
}

func (c change) file() string { return filepath.Join(c.dir, c.kind.file) }

// kind is one of the two sets of a cpuset.
type kind struct {
	file, effective string
	of              func(Cpuset) idset.Set
}

// kinds lists nodes first: where both change, CPUs without memory near them are
// never in effect together.
func kinds() []kind {
	return []kind{
		{memsFile, effectiveMems, func(s Cpuset) idset.Set { return s.Mems }},
		{cpusFile, effectiveCPUs, func(s Cpuset) idset.Set { return s.CPUs }},
	}
}

// files is the kernel's side; tests put one in its place that behaves like the
// kernel over plain files.
type files interface {
	read(file string) (idset.Set, error)
	write(file, value string) error
}

type kernel struct{}

func (kernel) read(file string) (idset.Set, error) { return readSet(file) }

// write makes one write(2) and never the file: a cgroup's files are there or
// their controller is not enabled.
func (kernel) write(name, value string) error {
	file, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(value)
	return errors.Join(err, file.Close())
}

// Confine is Set for callers that leave the cpuset to Slurm, which removes a
// task's cgroup when the step ends.
func (p Paths) Confine(pid int, cpus, mems idset.Set) error {
	_, err := p.Set(pid, Cpuset{CPUs: cpus, Mems: mems})
	return err
}

// Set lets the processes of task pid's own v2 cgroup use want alone; an empty set
// in it is left as it is. They cannot leave it, nor can their children.
//
// The order is nodes, CPUs, one write each, and what is effective is read back.
// The kernel moves the pages of a task whose nodes change, and before 6.2 sets
// the affinity of a task whose CPUs change to all of them: set affinity
// afterwards.
//
// A *NotOwnError says that the task has no v2 cgroup of its own with a cpuset,
// and nothing was written. After any other error, a *NotTakenError for values
// outside of what the cgroup above may use among them, what was written before it
// is put back.
func (p Paths) Set(pid int, want Cpuset) (Confined, error) {
	if err := p.own(pid); err != nil {
		return Confined{}, err
	}
	return set(kernel{}, p.V2.Dir, want)
}

// own returns why Set refuses, nil if it does not.
func (p Paths) own(pid int) error {
	if !p.Cpuset.None() {
		return &NotOwnError{Reason: "the cpusets of cgroup v1 belong to whole steps"}
	}
	if exclusive, reason := p.V2.Exclusive(pid); !exclusive {
		return &NotOwnError{Reason: reason}
	}
	if _, err := os.Stat(filepath.Join(p.V2.Dir, cpusFile)); err != nil {
		return &NotOwnError{Reason: fmt.Sprintf("the cpuset controller is not enabled in %s: %v", p.V2.Path, cause(err))}
	}
	return nil
}

func set(f files, dir string, want Cpuset) (Confined, error) {
	confined := Confined{parent: filepath.Dir(dir)}
	for _, kind := range kinds() {
		ids := kind.of(want)
		if ids.Empty() {
			continue
		}
		c := change{kind: kind, dir: dir, wrote: ids}
		var err error
		if c.before, err = f.read(c.file()); err == nil {
			if err = write(f, c.file(), ids); err == nil {
				confined.changes = append(confined.changes, c)
				err = c.check(f)
			}
		}
		if err != nil {
			return Confined{}, errors.Join(err, confined.restore(f))
		}
	}
	return confined, nil
}

// check tells whether what was written is in effect.
func (c change) check(f files) error {
	effective, err := f.read(filepath.Join(c.dir, c.kind.effective))
	if err != nil {
		return err
	}
	if !effective.Equal(c.wrote) {
		return &NotTakenError{File: c.file(), Wrote: c.wrote, Effective: effective}
	}
	return nil
}

func write(f files, file string, ids idset.Set) error {
	if err := f.write(file, ids.String()); err != nil {
		return fmt.Errorf("write %s to %s: %w", ids, file, cause(err))
	}
	return nil
}

// cause drops the operation and path that an error of package os repeats.
func cause(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}

// Restore puts back what was there before Set, nodes first. A set that was empty,
// which lets a cgroup use all that the one above may, cannot be made empty again
// while a process is inside (ENOSPC): it gets all that the cgroup above may use.
// A set that is no longer the one written is left alone, a *TakenOverError. A
// cgroup that is gone is nothing to restore. Doing it twice does no harm.
func (c Confined) Restore() error { return c.restore(kernel{}) }

func (c Confined) restore(f files) error {
	var errs []error
	for _, change := range c.changes {
		if err := change.undo(f, c.parent); err != nil && !gone(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (c change) undo(f files, parent string) error {
	found, err := f.read(c.file())
	if err != nil {
		return err
	}
	before := c.before
	if before.Empty() {
		if before, err = f.read(filepath.Join(parent, c.kind.effective)); err != nil {
			return err
		}
	}
	switch {
	case found.Equal(before):
		return nil
	case !found.Equal(c.wrote):
		return &TakenOverError{File: c.file(), Wrote: c.wrote, Found: found}
	}
	return write(f, c.file(), before)
}

// gone tells whether a cgroup was removed, before its file was opened or after.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV)
}
