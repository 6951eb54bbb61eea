package verify

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"gputune/internal/idset"
)

// ErrNotMended is a finding that nothing but the process itself can mend.
var ErrNotMended = errors.New("only the process itself can set its memory policy")

// Repair puts a process back to its plan: the affinity of its threads to all
// planned CPUs, or its pages to the planned nodes. Only nodes that the process
// may use count. A process that has ended meanwhile is right.
func (h Host) Repair(plan Plan, f Finding) error {
	if !h.still(f.Process) {
		return nil
	}
	switch f.Kind {
	case CPUs:
		var errs []error
		for _, id := range f.Threads {
			if err := h.SetAffinity(id, plan.CPUs); err != nil && !gone(err) {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	case Pages:
		to := plan.Mems.And(h.allowed(f.PID))
		if to.Empty() {
			return fmt.Errorf("process %d: none of the planned nodes %s is in its cpuset", f.PID, plan.Mems)
		}
		left, err := h.Migrate(f.PID, f.Away, to)
		if err == nil && left > 0 {
			err = fmt.Errorf("process %d: %d pages could not be moved from nodes %s", f.PID, left, f.Away)
		}
		if gone(err) {
			return nil
		}
		return err
	default:
		return ErrNotMended
	}
}

// allowed returns the memory nodes of a process's cpuset: root can move pages
// beyond it. Source: Mems_allowed_list of /proc/PID/status.
func (h Host) allowed(pid int) idset.Set {
	for line := range strings.Lines(h.read(pid, "status")) {
		if list, found := strings.CutPrefix(line, "Mems_allowed_list:"); found {
			set, err := idset.Parse(strings.TrimSpace(list))
			if err != nil {
				return idset.Set{}
			}
			return set
		}
	}
	return idset.Set{}
}

// migrate is migrate_pages(2).
func migrate(pid int, from, to idset.Set) (left int, err error) {
	old, next := from.Words(), to.Words()
	for len(old) < len(next) {
		old = append(old, 0)
	}
	for len(next) < len(old) {
		next = append(next, 0)
	}
	if len(old) == 0 {
		return 0, nil
	}
	bits := uintptr(len(old)*64 + 1) // the kernel takes one fewer
	n, _, errno := unix.Syscall6(unix.SYS_MIGRATE_PAGES, uintptr(pid), bits,
		uintptr(unsafe.Pointer(&old[0])), uintptr(unsafe.Pointer(&next[0])), 0, 0)
	if errno != 0 {
		return 0, fmt.Errorf("move pages of process %d from nodes %s to %s: %w", pid, from, to, errno)
	}
	return int(n), nil
}
