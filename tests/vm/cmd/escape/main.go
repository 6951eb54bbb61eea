// Command escape tries to leave the CPUs and memory nodes that it was bound to,
// by every way that a program has: its main thread, another thread, a child, and
// a grandchild in a session of its own. It prints a line for each,
//
//	who=child	all=0-3	reached=0-3	refused=4-7	mem0=0:1024	mem1=EINVAL
//
// all is the affinity after asking for every CPU of the machine, reached and
// refused are the CPUs that it could and could not move to one by one, memN is
// where a buffer lies after asking for node N alone, as node:pages, or the errno
// of asking.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"gputune/internal/idset"
)

// The ways out, in the order in which they are tried.
const (
	mainThread  = "main"
	otherThread = "thread"
	child       = "child"
	grandchild  = "grandchild"
)

// bufferSize is what is written after asking for a node.
const bufferSize = 4 << 20

func init() {
	runtime.LockOSThread() // main runs on the process's first thread
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "escape:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case child:
			return try(child)
		case grandchild: // the child that starts it ends at once, which leaves it to init
			if len(args) == 1 {
				return start(grandchild, "now")
			}
			return try(grandchild)
		}
		return fmt.Errorf("argument %q: want %s, %s or none", args[0], child, grandchild)
	}
	if unix.Gettid() != os.Getpid() {
		return errors.New("main does not run on the first thread")
	}
	if err := try(mainThread); err != nil {
		return err
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with what it set
		if unix.Gettid() == os.Getpid() {
			done <- errors.New("the other thread is the first")
			return
		}
		done <- try(otherThread)
	}()
	if err := <-done; err != nil {
		return err
	}
	for _, who := range []string{child, grandchild} {
		if err := descend(who); err != nil {
			return fmt.Errorf("%s: %w", who, err)
		}
	}
	return nil
}

// descend starts this program again and waits until it and its children have let
// go of their output.
func descend(args ...string) error {
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := command(args...)
	cmd.Stdout, cmd.Stderr = writer, writer
	if err := cmd.Run(); err != nil {
		return err
	}
	if err := writer.Close(); err != nil {
		return err
	}
	if _, err := os.Stdout.ReadFrom(reader); err != nil {
		return err
	}
	return reader.Close()
}

func start(args ...string) error {
	cmd := command(args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Start()
}

func command(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: args[0] == grandchild}
	return cmd
}

// try does everything for the calling thread and prints what came of it.
func try(who string) error {
	cpus, err := online("/sys/devices/system/cpu/online")
	if err != nil {
		return err
	}
	nodes, err := online("/sys/devices/system/node/has_memory")
	if err != nil {
		return err
	}
	var line strings.Builder
	fmt.Fprintf(&line, "who=%s", who)
	_ = setAffinity(cpus) // what came of it is what is read back
	all, err := affinity()
	if err != nil {
		return err
	}
	var reached, refused idset.Set
	for cpu := range cpus.All() {
		if setAffinity(idset.Of(cpu)) != nil {
			refused.Add(cpu)
			continue
		}
		now, err := currentCPU()
		if err != nil {
			return err
		}
		if now != cpu {
			return fmt.Errorf("%s: on CPU %d after moving to CPU %d", who, now, cpu)
		}
		reached.Add(cpu)
	}
	_ = setAffinity(all) // so that what is started now is as free as it can be
	fmt.Fprintf(&line, "\tall=%s\treached=%s\trefused=%s", all, reached, refused)
	for node := range nodes.All() {
		where, err := bindMemory(node)
		if err != nil {
			return err
		}
		fmt.Fprintf(&line, "\tmem%d=%s", node, where)
	}
	fmt.Println(line.String())
	return nil
}

func online(file string) (idset.Set, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return idset.Set{}, err
	}
	return idset.Parse(string(text))
}

func setAffinity(cpus idset.Set) error {
	var set unix.CPUSet
	for cpu := range cpus.All() {
		set.Set(cpu)
	}
	return unix.SchedSetaffinity(0, &set)
}

func affinity() (idset.Set, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return idset.Set{}, err
	}
	var cpus idset.Set
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			cpus.Add(cpu)
		}
	}
	return cpus, nil
}

func currentCPU() (int, error) {
	var cpu uint32
	if _, _, errno := unix.Syscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0); errno != 0 {
		return 0, fmt.Errorf("getcpu: %w", errno)
	}
	return int(cpu), nil
}
