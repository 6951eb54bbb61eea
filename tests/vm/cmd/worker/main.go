// Command worker is what one task starts for each GPU, in tests: it has threads, a
// child and memory on a node that is not the GPU's, and binds itself to nothing.
//
//	worker NODE MIB FILE
//
// When all is there its pid is in FILE; it ends when it is killed.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of linux/mempolicy.h.
const (
	mpolDefault = 0
	mpolBind    = 2
)

func main() {
	if err := work(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}

func work(arguments []string) error {
	if len(arguments) != 3 {
		return fmt.Errorf("%q: want NODE MIB FILE", arguments)
	}
	node, err := strconv.Atoi(arguments[0])
	if err != nil {
		return err
	}
	mib, err := strconv.Atoi(arguments[1])
	if err != nil {
		return err
	}
	memory, err := allocate(node, mib<<20)
	if err != nil {
		return err
	}
	for range 3 {
		go func() {
			runtime.LockOSThread()
			select {}
		}()
	}
	child := exec.Command("sleep", "600")
	child.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := child.Start(); err != nil {
		return err
	}
	if err := os.WriteFile(arguments[2]+".new", fmt.Appendln(nil, os.Getpid()), 0o600); err != nil {
		return err
	}
	if err := os.Rename(arguments[2]+".new", arguments[2]); err != nil {
		return err
	}
	err = child.Wait()
	runtime.KeepAlive(memory)
	return err
}

// allocate returns memory that is on a node. The thread's policy is the default one
// afterwards.
func allocate(node, size int) ([]byte, error) {
	runtime.LockOSThread() // for good: the policy and the first touch are the same thread's
	if err := policy(mpolBind, node); err != nil {
		return nil, err
	}
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	for i := 0; i < size; i += os.Getpagesize() {
		memory[i] = 1
	}
	return memory, policy(mpolDefault, -1)
}

func policy(mode, node int) error {
	var mask [16]uint64 // 1024 nodes, the kernel's largest number
	if node >= 0 {
		mask[node/64] |= 1 << (node % 64)
	}
	if _, _, errno := unix.Syscall(unix.SYS_SET_MEMPOLICY, uintptr(mode), uintptr(unsafe.Pointer(&mask[0])), uintptr(len(mask)*64)); errno != 0 {
		return fmt.Errorf("set_mempolicy: %w", errno)
	}
	return nil
}
