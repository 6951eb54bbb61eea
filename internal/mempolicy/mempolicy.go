// Package mempolicy sets and reads the memory policy of a thread.
package mempolicy

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"gputune/internal/idset"
	"gputune/internal/placement"
)

// The kernel's modes, linux/mempolicy.h.
const (
	preferred     = 1 // MPOL_PREFERRED
	bind          = 2 // MPOL_BIND
	interleave    = 3 // MPOL_INTERLEAVE
	preferredMany = 5 // MPOL_PREFERRED_MANY, Linux 5.15
)

// maxNodes is the kernel's largest MAX_NUMNODES.
const maxNodes = 1024

// Set sets the memory policy of the calling thread, which threads and processes
// that it makes later inherit, and programs that it executes. It returns the
// nodes that count: before Linux 5.15 one node alone can be preferred, the lowest.
// Nodes that the thread's cpuset lacks are refused with EINVAL. MemNone changes
// nothing. Source: set_mempolicy(2).
func Set(mode placement.MemMode, nodes idset.Set) (idset.Set, error) {
	kernel := map[placement.MemMode]int{placement.MemBind: bind, placement.MemInterleave: interleave, placement.MemPrefer: preferred}[mode]
	if kernel == 0 {
		return nodes, nil
	}
	if nodes.Empty() || nodes.Max() >= maxNodes {
		return nodes, fmt.Errorf("memory policy %s on nodes %q: %w: want nodes from 0 to %d", mode, nodes, unix.EINVAL, maxNodes-1)
	}
	var errno unix.Errno
	if kernel == preferred && nodes.Len() > 1 {
		if errno = set(preferredMany, nodes); errno == 0 {
			return nodes, nil
		}
		if errno == unix.EINVAL {
			nodes = idset.Of(nodes.Min())
			errno = set(preferred, nodes)
		}
	} else {
		errno = set(kernel, nodes)
	}
	if errno != 0 {
		return nodes, fmt.Errorf("memory policy %s on nodes %s: %w", mode, nodes, errno)
	}
	return nodes, nil
}

func set(mode int, nodes idset.Set) unix.Errno {
	var mask [maxNodes / 64]uint64
	copy(mask[:], nodes.Words())
	// The kernel reads one bit less than it is told.
	_, _, errno := unix.Syscall(unix.SYS_SET_MEMPOLICY, uintptr(mode), uintptr(unsafe.Pointer(&mask)), maxNodes+1)
	return errno
}
