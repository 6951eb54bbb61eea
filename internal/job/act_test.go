package job

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gputune/conf"
)

// A deadline that the disks miss is told to the user, and what they have written by
// then is dropped all the same. Nobody waits for them longer than half of the time
// that the Prolog has.
func TestDisksAreSlow(t *testing.T) {
	h, output := host(t, "SPANK_GPUTUNE_DROP_CACHES=", "SLURM_JOB_OVERSUBSCRIBE=NO")
	machine := h.Root
	h.Site.Paths.Machine = conf.Path(machine)
	for name, text := range map[string]string{
		"sys/devices/system/cpu/online": "0-1", "sys/devices/system/node/online": "0", "sys/devices/system/node/node0/cpulist": "0-1",
		"sys/devices/system/node/has_memory": "0", "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 4194304 kB\nNode 0 MemFree: 4000000 kB",
		"proc/sys/vm/drop_caches": "0", "proc/sys/kernel/random/boot_id": "b00b00b0-0000-4000-8000-000000000001",
	} {
		path := filepath.Join(machine, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const all = time.Hour
	var limit time.Duration
	h.Site.DropCaches.SyncDeadline = conf.Duration(2 * all)
	h.Sync = func(ctx context.Context) error {
		end, _ := ctx.Deadline()
		limit = time.Until(end)
		return context.DeadlineExceeded
	}
	ctx, cancel := context.WithTimeout(t.Context(), all)
	defer cancel()
	h.Prolog(ctx)
	if limit > all/2 {
		t.Errorf("the disks had %v of %v", limit, all)
	}
	if text, err := os.ReadFile(filepath.Join(machine, "proc/sys/vm/drop_caches")); err != nil || string(text) != "1\n" {
		t.Errorf("%q, %v", text, err)
	}
	const want = "warn\n--drop-caches: the disks were not done writing in time: what they still had to write stays in memory\n"
	if notice := h.files(t)["/run/gputune/jobs/42.notice"]; notice != want {
		t.Errorf("notice %q, want %q", notice, want)
	}
	if !strings.Contains(output.String(), "job 42: --drop-caches: dropped 0 MiB (node 0: 0) in 0s; the disks were not done writing in time\n") {
		t.Errorf("%s", output)
	}

	// The kernel that is there says no.
	if err := os.Remove(filepath.Join(machine, "proc/sys/vm/drop_caches")); err != nil {
		t.Fatal(err)
	}
	h.Prolog(ctx)
	if notice := h.files(t)["/run/gputune/jobs/42.notice"]; notice != "fail\n--drop-caches: drop caches: this machine has none (/proc/sys/vm/drop_caches)\n" {
		t.Errorf("notice %q", notice)
	}
}
