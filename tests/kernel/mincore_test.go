package kernel

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mincore is mincore(2): which pages of a mapping are in memory.
func mincore(memory, state []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&memory[0])), uintptr(len(memory)), uintptr(unsafe.Pointer(&state[0])))
	if errno != 0 {
		return errno
	}
	return nil
}
