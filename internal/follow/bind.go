package follow

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"gputune/internal/cgroup"
	"gputune/internal/idset"
	"gputune/internal/verify"
)

// Binder binds workers, and remembers which it has.
type Binder struct {
	Host verify.Host

	bound map[int]*bound // by pid
	said  map[Left]bool
}

// bound is a worker that was bound.
type bound struct {
	verify.Process
	gpus string
	cpus idset.Set // that its threads were given, empty: none were
}

// Bound is one worker that was bound now.
type Bound struct {
	Job, Step string
	verify.Process
	GPUs []string // PCI addresses
	Share
	Processes, Threads int // that were there, its children's included
	// Moves are the pages that are still to be moved, one for each process.
	Moves []Move
	Err   error // what could not be done
}

// Move is to bring a process's pages to some nodes.
type Move struct {
	verify.Process
	To idset.Set
}

// Bind binds the workers that use other GPUs than when they were last looked at.
// It returns those, and what is left alone and was not said before. Pages are the
// caller's to move (Binder.Move), since that takes its time.
func (b *Binder) Bind(steps []Step, lists []List) ([]Bound, []Left, error) {
	table, err := b.Host.Processes()
	if err != nil {
		return nil, nil, err
	}
	found, left := workers(steps, lists,
		func(pid int, s *Step) bool { return inStep(b.Host, table, pid, s) },
		func(pid int) bool { _, there := table[pid]; return there })
	if b.bound == nil {
		b.bound, b.said = map[int]*bound{}, map[Left]bool{}
	}
	for pid, was := range b.bound {
		if table[pid] != was.Process {
			delete(b.bound, pid)
		}
	}
	var now []Bound
	for _, pid := range sortedKeys(found) {
		w := found[pid]
		gpus := strings.Join(w.gpus, ",")
		was := b.bound[pid]
		if was != nil && was.gpus == gpus {
			continue
		}
		group := table.Below(pid, func(other int) bool { return found[other] != nil })
		if len(group) == 0 { // it came after the table was read
			continue
		}
		one := Bound{Job: w.step.Job, Step: w.step.Step, Process: group[0], GPUs: w.gpus, Share: w.Share, Processes: len(group)}
		var before idset.Set
		if was != nil {
			before = was.cpus
		}
		one.CPUs, one.Err = b.within(pid, w.CPUs)
		if one.Err == nil && !one.CPUs.Empty() {
			one.Threads, one.Err = b.bindAll(group, one.CPUs, before)
		}
		if w.step.MovePages && !w.Mems.Empty() {
			for _, p := range group {
				one.Moves = append(one.Moves, Move{p, w.Mems})
			}
		}
		b.bound[pid] = &bound{Process: group[0], gpus: gpus, cpus: one.CPUs}
		now = append(now, one)
	}
	return now, b.unsaid(left), nil
}

// within returns those of the CPUs that the cpuset of a process has: a task can have
// fewer than its step.
func (b *Binder) within(pid int, cpus idset.Set) (idset.Set, error) {
	if cpus.Empty() {
		return cpus, nil
	}
	paths, err := cgroup.Of(b.Host.Root, pid)
	if err != nil && paths == (cgroup.Paths{}) {
		return cpus, nil // the kernel leaves out what the cpuset has not
	}
	has, err := paths.CPUs()
	if err != nil {
		return cpus, nil //nolint:nilerr // no cpuset holds it
	}
	if has.And(cpus).Empty() {
		return idset.Set{}, fmt.Errorf("none of the cpus %s is in its cpuset, which has %s", cpus, has)
	}
	return has.And(cpus), nil
}

// rounds bounds how often threads are listed anew: each was made by one that had
// not been bound yet.
const rounds = 20

// bindAll sets the affinity of all threads of the processes. Threads on some of the
// CPUs alone are so by the program's own choice, unless they are where this
// package put them before.
func (b *Binder) bindAll(group []verify.Process, cpus, before idset.Set) (threads int, err error) {
	var errs []error
	for _, p := range group {
		n, err := b.bindProcess(p, cpus, before)
		threads += n
		errs = append(errs, err)
	}
	return threads, errors.Join(errs...)
}

func (b *Binder) bindProcess(p verify.Process, cpus, before idset.Set) (threads int, err error) {
	seen := map[int]bool{}
	for range rounds {
		ids := slices.DeleteFunc(b.Host.Threads(p.PID), func(id int) bool { return seen[id] })
		if len(ids) == 0 || !b.Host.Still(p) {
			break
		}
		slices.Sort(ids)
		for _, id := range ids {
			seen[id] = true
			has, err := b.Host.Affinity(id)
			if err == nil && (!has.SubsetOf(cpus) || !before.Empty() && has.Equal(before)) {
				err = b.Host.SetAffinity(id, cpus)
			}
			if gone(err) {
				continue
			}
			if err != nil {
				return len(seen), err
			}
		}
	}
	return len(seen), nil
}

// Move moves the pages of a process to its nodes, as far as it may use them, and
// returns how many could not be moved, such as those that the driver has pinned.
// A process that has ended has none.
func (b *Binder) Move(m Move) (left int, err error) {
	if !b.Host.Still(m.Process) {
		return 0, nil
	}
	allowed, err := cgroup.MemsAllowed(b.Host.Root, m.PID)
	if gone(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	to, from := m.To.And(allowed), allowed.AndNot(m.To)
	if from.Empty() {
		return 0, nil
	}
	if to.Empty() {
		return 0, fmt.Errorf("process %d: none of the nodes %s is in its cpuset, which has %s", m.PID, m.To, allowed)
	}
	left, err = b.Host.Migrate(m.PID, from, to)
	if gone(err) {
		return 0, nil
	}
	return left, err
}

// unsaid returns what is left alone and was not before, and forgets what no longer is.
func (b *Binder) unsaid(left []Left) []Left {
	now := map[Left]bool{}
	var list []Left
	for _, l := range left {
		if !b.said[l] && !now[l] {
			list = append(list, l)
		}
		now[l] = true
	}
	b.said = now
	return list
}

func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }
