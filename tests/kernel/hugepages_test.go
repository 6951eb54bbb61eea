package kernel

import (
	"testing"

	"golang.org/x/sys/unix"
)

// useHugepages takes hugepages of 2 MiB on node 0 and returns what gives them back.
func useHugepages(t *testing.T, count int) (release func()) {
	t.Helper()
	const size = 2 << 20
	memory, err := unix.Mmap(-1, 0, count*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB|unix.MAP_HUGE_2MB)
	must(t, err)
	for i := 0; i < len(memory); i += size {
		memory[i] = 1
	}
	done := false
	release = func() {
		if !done {
			done = true
			must(t, unix.Munmap(memory))
		}
	}
	t.Cleanup(release)
	return release
}
