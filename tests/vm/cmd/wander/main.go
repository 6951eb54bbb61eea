// Command wander is a task that is bound and starts a worker that leaves:
//
//	wander FOLDER
//
// The worker says in FOLDER/started that it runs and leaves when FOLDER/leave
// appears: its threads give themselves every CPU of the machine, and it writes
// memory on the node that the file names, which it asks for for that long alone.
// Then it says so in FOLDER/left, and ends, as the task does, when FOLDER/go
// appears. Its own files have its pid.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// threads is how many of a worker leave, beside those of Go's runtime.
const threads = 3

// away is what is written on the other node, in bytes.
const away = 40 << 20

const mpolBind = 2 // of linux/mempolicy.h

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "wander:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 1 {
		self, err := os.Executable() // by its name, which is the process's
		if err != nil {
			return err
		}
		worker := exec.Command(self, append(args, "worker")...)
		worker.Stderr = os.Stderr
		return worker.Run()
	}
	if len(args) != 2 || args[1] != "worker" {
		return errors.New("want FOLDER")
	}
	folder := args[0]
	if err := say(folder, "started"); err != nil {
		return err
	}
	await(folder, "leave")
	text, err := os.ReadFile(filepath.Join(folder, "leave"))
	if err != nil {
		return err
	}
	node, err := strconv.Atoi(string(text))
	if err != nil {
		return err
	}
	failed := make(chan error, threads)
	var memory []byte
	for i := range threads {
		go func() {
			runtime.LockOSThread()
			if err := widen(); err != nil || i > 0 {
				failed <- err
			} else {
				memory, err = write(node)
				failed <- err
			}
			select {} // the thread stays
		}()
	}
	for range threads {
		if err := <-failed; err != nil {
			return err
		}
	}
	if err := say(folder, "left"); err != nil {
		return err
	}
	await(folder, "go")
	return unix.Munmap(memory)
}

// say makes a file with this process's pid in it at once.
func say(folder, name string) error {
	path := filepath.Join(folder, name)
	if err := os.WriteFile(path+".new", []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func await(folder, name string) {
	for {
		if _, err := os.Stat(filepath.Join(folder, name)); err == nil {
			return
		}
		time.Sleep(300 * time.Millisecond)
	}
}

func widen() error {
	var all unix.CPUSet
	for cpu := range len(all) * 64 {
		all.Set(cpu)
	}
	return unix.SchedSetaffinity(0, &all)
}

// write writes memory on a node. Afterwards the thread prefers the nodes that it
// did before.
func write(node int) ([]byte, error) {
	var before [16]uint64 // 1024 nodes, the kernel's largest number
	var mode int32
	bits := uintptr(len(before) * 64)
	if _, _, errno := unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&mode)), uintptr(unsafe.Pointer(&before[0])), bits, 0, 0, 0); errno != 0 {
		return nil, fmt.Errorf("get_mempolicy: %w", errno)
	}
	var there [16]uint64
	there[node/64] = 1 << (node % 64)
	if err := policy(mpolBind, there); err != nil {
		return nil, err
	}
	memory, err := unix.Mmap(-1, 0, away, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	for i := 0; i < len(memory); i += os.Getpagesize() {
		memory[i] = 1
	}
	return memory, policy(int(mode), before)
}

func policy(mode int, nodes [16]uint64) error {
	if _, _, errno := unix.Syscall(unix.SYS_SET_MEMPOLICY, uintptr(mode), uintptr(unsafe.Pointer(&nodes[0])), uintptr(len(nodes)*64)); errno != 0 {
		return fmt.Errorf("set_mempolicy(%d): %w", mode, errno)
	}
	return nil
}
