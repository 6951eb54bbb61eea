package kernel

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gputune/internal/action"
	"gputune/internal/idset"
	"gputune/internal/option"
)

// TestDropCaches: a file that was just written is in memory, and then is not.
func TestDropCaches(t *testing.T) {
	needRoot(t)
	if _, ok := first(t, "/proc/sys/vm/swappiness"); !ok {
		t.Skip("/proc/sys cannot be written here")
	}
	const size = 32 << 20
	// The system's folder for what is temporary may be in memory.
	dir, err := os.MkdirTemp("/var/tmp", "gputune-kernel-test")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var fs unix.Statfs_t
	must(t, unix.Statfs(dir, &fs))
	if fs.Type == unix.TMPFS_MAGIC {
		t.Skip("/var/tmp is in memory")
	}
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, bytes.Repeat([]byte("gputune "), size/8), 0o600))
	f, err := os.Open(file)
	must(t, err)
	defer f.Close()
	memory, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	must(t, err)
	defer func() { must(t, unix.Munmap(memory)) }()
	in := func() (pages int) {
		state := make([]byte, size/os.Getpagesize())
		must(t, mincore(memory, state))
		for _, page := range state {
			pages += int(page & 1)
		}
		return pages
	}
	before := in()
	if before == 0 {
		t.Skip("the file is not kept in memory here")
	}
	h := action.Host{Root: "/", Now: time.Now}
	dropped, err := h.DropCaches(context.Background(), option.CachesPage, time.Minute)
	must(t, err)
	t.Logf("%v; %d pages of the file before, %d after", dropped, before, in())
	if after := in(); !dropped.Synced || after > before/2 {
		t.Errorf("%v; %d pages of the file before, %d after", dropped, before, after)
	}
}

func TestCompact(t *testing.T) {
	needRoot(t)
	if f, err := os.OpenFile("/sys/devices/system/node/node0/compact", os.O_WRONLY, 0); err != nil {
		t.Skipf("memory cannot be compacted here: %v", err)
	} else {
		f.Close()
	}
	got, err := action.Host{Root: "/", Now: time.Now}.Compact(context.Background(), idset.Of(0))
	if err != nil || got.Nodes.String() != "0" {
		t.Errorf("%+v, %v", got, err)
	}
	t.Logf("compacted node 0 in %v", got.Took)
}
