package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of linux/mempolicy.h.
const (
	mpolDefault = 0
	mpolBind    = 2
)

// bindMemory asks for memory of one node alone, writes a buffer and returns where
// its pages are, or the errno of asking.
func bindMemory(node int) (string, error) {
	if errno := setPolicy(mpolBind, node); errno != 0 {
		return unix.ErrnoName(errno), nil
	}
	buffer, err := unix.Mmap(-1, 0, bufferSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return "", fmt.Errorf("mmap: %w", err)
	}
	for i := 0; i < len(buffer); i += os.Getpagesize() {
		buffer[i] = 1
	}
	pages, err := nodesOf(buffer)
	if err != nil {
		return "", err
	}
	if errno := setPolicy(mpolDefault, -1); errno != 0 {
		return "", fmt.Errorf("set_mempolicy(MPOL_DEFAULT): %w", errno)
	}
	var nodes []int
	for node := range pages {
		nodes = append(nodes, node)
	}
	slices.Sort(nodes)
	where := make([]string, len(nodes))
	for i, node := range nodes {
		where[i] = fmt.Sprintf("%d:%d", node, pages[node])
	}
	return strings.Join(where, ","), unix.Munmap(buffer)
}

// setPolicy sets the thread's policy; a node below zero stands for none.
func setPolicy(mode, node int) unix.Errno {
	var mask [16]uint64 // 1024 nodes, the kernel's largest number
	if node >= 0 {
		mask[node/64] |= 1 << (node % 64)
	}
	_, _, errno := unix.Syscall(unix.SYS_SET_MEMPOLICY, uintptr(mode), uintptr(unsafe.Pointer(&mask[0])), uintptr(len(mask)*64))
	return errno
}

// nodesOf counts the buffer's pages by node: move_pages(2) without nodes to move
// to tells where they are.
func nodesOf(buffer []byte) (map[int]int, error) {
	size := os.Getpagesize()
	addresses := make([]unsafe.Pointer, len(buffer)/size)
	for i := range addresses {
		addresses[i] = unsafe.Pointer(&buffer[i*size])
	}
	status := make([]int32, len(addresses))
	_, _, errno := unix.Syscall6(unix.SYS_MOVE_PAGES, 0, uintptr(len(addresses)), uintptr(unsafe.Pointer(&addresses[0])), 0,
		uintptr(unsafe.Pointer(&status[0])), 0)
	if errno != 0 {
		return nil, fmt.Errorf("move_pages: %w", errno)
	}
	pages := map[int]int{}
	for i, node := range status {
		if node < 0 {
			return nil, fmt.Errorf("page %d of the buffer: %w", i, unix.Errno(-node))
		}
		pages[int(node)]++
	}
	return pages, nil
}
