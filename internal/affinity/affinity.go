// Package affinity reads and sets the CPU affinity of a thread.
//
// golang.org/x/sys/unix has the same two calls over a mask of 1024 CPUs; nodes
// with more exist, so these take masks of any size.
package affinity

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"gputune/internal/idset"
)

// Get returns the CPUs that the thread pid may run on; pid 0 is the caller's
// thread. Source: sched_getaffinity(2), which counts online CPUs alone.
func Get(pid int) (idset.Set, error) {
	var mask [idset.Limit / 8]byte
	n, _, errno := unix.Syscall(unix.SYS_SCHED_GETAFFINITY, uintptr(pid), unsafe.Sizeof(mask), uintptr(unsafe.Pointer(&mask)))
	if errno != 0 {
		return idset.Set{}, fmt.Errorf("read affinity of pid %d: %w", pid, errno)
	}
	return idset.FromBytes(mask[:n]), nil
}

// Set lets the thread pid run on cpus alone; pid 0 is the caller's thread. The
// kernel leaves out CPUs that are outside the thread's cpuset, and refuses with
// EINVAL where none is left. Source: sched_setaffinity(2).
func Set(pid int, cpus idset.Set) error {
	words := cpus.Words()
	if len(words) == 0 {
		return fmt.Errorf("set affinity of pid %d: %w: no CPU given", pid, unix.EINVAL)
	}
	_, _, errno := unix.Syscall(unix.SYS_SCHED_SETAFFINITY, uintptr(pid), uintptr(len(words)*8), uintptr(unsafe.Pointer(&words[0])))
	if errno != 0 {
		return fmt.Errorf("set affinity of pid %d to cpus %s: %w", pid, cpus, errno)
	}
	return nil
}
