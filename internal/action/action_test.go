package action

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gputune/internal/idset"
	"gputune/internal/option"
)

// made returns a made-up machine with two nodes that have memory and one that has
// none, and a clock that goes on by a second at each look.
func made(t *testing.T) Host {
	t.Helper()
	root := t.TempDir()
	for file, text := range map[string]string{
		"has_memory": "0,2\n", "node0/meminfo": "Node 0 MemTotal: 4096000 kB\nNode 0 MemFree: 1024000 kB\n", "node2/meminfo": "Node 2 MemFree: 2048 kB\n",
		"node0/compact": "", "node1/compact": "", "node2/compact": "",
	} {
		put(t, filepath.Join(root, nodesFolder, file), text)
	}
	put(t, filepath.Join(root, "proc/sys/vm/drop_caches"), "")
	now := time.Unix(1000, 0)
	return Host{Root: root, Now: func() time.Time { now = now.Add(time.Second); return now }, Sync: func(context.Context) error { return nil }}
}

func put(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (h Host) get(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(h.path(file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func TestDropCaches(t *testing.T) {
	ctx := context.Background()
	for caches, want := range map[option.Caches]string{option.CachesPage: "1", option.CachesSlab: "2", option.CachesAll: "3"} {
		h := made(t)
		h.Sync = func(context.Context) error {
			if is := h.get(t, "/proc/sys/vm/drop_caches"); is != "" {
				t.Errorf("dropped before the disks were written: %q", is)
			}
			return nil
		}
		got, err := h.DropCaches(ctx, caches, time.Minute)
		if err != nil || h.get(t, "/proc/sys/vm/drop_caches") != want || got.String() != "dropped 0 MiB (node 0: 0, node 2: 0) in 1s" {
			t.Errorf("%s: %v, %v, wrote %q", caches, got, err, h.get(t, "/proc/sys/vm/drop_caches"))
		}
	}
	h := made(t)
	if _, err := h.DropCaches(ctx, "everything", time.Minute); err == nil || h.get(t, "/proc/sys/vm/drop_caches") != "" {
		t.Errorf("%v", err)
	}
	// The disks take longer than the deadline.
	h.Sync = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	got, err := h.DropCaches(ctx, option.CachesAll, time.Millisecond)
	if err != nil || got.Synced || h.get(t, "/proc/sys/vm/drop_caches") != "3" || !strings.HasSuffix(got.String(), "in 1s; the disks were not done writing in time") {
		t.Errorf("%v, %v", got, err)
	}
	// The caller's own deadline.
	h = made(t)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	h.Sync = func(ctx context.Context) error { return ctx.Err() }
	if _, err := h.DropCaches(ended, option.CachesAll, time.Minute); !errors.Is(err, context.Canceled) || h.get(t, "/proc/sys/vm/drop_caches") != "" {
		t.Errorf("%v", err)
	}
	h = made(t)
	if err := os.Remove(h.path("/proc/sys/vm/drop_caches")); err != nil {
		t.Fatal(err)
	}
	if _, err := h.DropCaches(ctx, option.CachesAll, time.Minute); !errors.Is(err, ErrMissing) {
		t.Errorf("%v", err)
	}
}

func TestCompact(t *testing.T) {
	h := made(t)
	got, err := h.Compact(context.Background(), idset.Of(1, 2, 7))
	if err != nil || got.Nodes.String() != "2" || got.Took != time.Second {
		t.Errorf("%+v, %v", got, err)
	}
	for node, want := range map[string]string{"node0": "", "node1": "", "node2": "1"} {
		if is := h.get(t, nodesFolder+"/"+node+"/compact"); is != want {
			t.Errorf("%s: wrote %q", node, is)
		}
	}
	if err := os.Remove(h.path(nodesFolder, "node2/compact")); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Compact(context.Background(), idset.Of(2)); !errors.Is(err, ErrMissing) {
		t.Errorf("%v", err)
	}
}

func TestSyncProgram(t *testing.T) {
	if err := SyncProgram(t.Context()); err != nil {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := SyncProgram(ended); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
