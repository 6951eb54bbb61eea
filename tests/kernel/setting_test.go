package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gputune/internal/ledger"
	"gputune/internal/setting"
)

func TestSetAndPutBack(t *testing.T) {
	needRoot(t)
	ctx := context.Background()
	list := parts(t)
	if len(list) == 0 {
		t.Skip("this machine lets no setting be changed")
	}
	all := list
	all = append(all, part{name: "all together"})
	for _, p := range list {
		last := &all[len(all)-1]
		last.wishes = append(last.wishes, p.wishes...)
	}
	for _, p := range all {
		t.Run(p.name, func(t *testing.T) {
			was := watch(t, list)
			l, env, err := open(t.TempDir())
			must(t, err)
			c, err := changes(env, p.wishes)
			must(t, err)
			report, err := l.Apply(ctx, job, c)
			must(t, err)
			if p.reads == nil {
				p.reads = map[string]string{}
				for _, one := range list {
					for file, want := range one.reads {
						p.reads[file] = want
					}
				}
			}
			for file, want := range p.reads {
				if is := text(t, file); is != want {
					t.Errorf("%s reads %q, want %q", file, is, want)
				}
			}
			for _, o := range report.Outcomes {
				t.Logf("%s: %s, was %s", o.Key, o.Set, o.Prior)
				if o.Action != ledger.Set {
					t.Errorf("%s: %s", o.Key, o.Action)
				}
			}
			// A second Prolog of the job changes nothing.
			again, err := l.Apply(ctx, job, c)
			must(t, err)
			for _, o := range again.Outcomes {
				if o.Action != ledger.Already {
					t.Errorf("again: %s: %s", o.Key, o.Action)
				}
			}
			report, err = l.Release(ctx, job)
			must(t, err)
			for _, o := range report.Outcomes {
				if o.Action != ledger.Restored {
					t.Errorf("%s: %s", o.Key, o.Action)
				}
			}
			was.back(t, "after the job")
		})
	}
}

// TestKilled kills the program that sets everything, and the one that puts
// everything back, at each of its system calls that touch files.
func TestKilled(t *testing.T) {
	needRoot(t)
	strace, err := exec.LookPath("strace")
	if err != nil || testing.Short() {
		t.Skip("needs strace and time")
	}
	if output, err := exec.Command(strace, "-f", "-o", os.DevNull, "true").CombinedOutput(); err != nil {
		t.Skipf("strace does not work here: %s", output)
	}
	list := parts(t)
	var wishes []setting.Wish
	for _, p := range list {
		wishes = append(wishes, p.wishes...)
	}
	was := watch(t, list)
	tried := 0
	for _, release := range []bool{false, true} {
		for _, call := range []string{"openat", "write", "fsync", "renameat", "unlinkat"} {
			for n := 1; ; n++ {
				state := t.TempDir()
				if release {
					if output, err := run(nil, order{State: state, Wishes: wishes}); err != nil {
						t.Fatalf("%v: %s", err, output)
					}
				}
				inject := fmt.Sprintf("inject=%s:signal=KILL:when=%d", call, n)
				output, err := run([]string{strace, "-f", "-o", os.DevNull, "-e", "trace=" + call, "-e", inject}, order{state, release, wishes})
				if err != nil && !strings.Contains(err.Error(), "killed") {
					t.Fatalf("%s %d: %v: %s", call, n, err, output)
				}
				if output, err := run(nil, order{State: state, Release: true}); err != nil {
					t.Fatalf("killed at %s %d, then released: %v: %s", call, n, err, output)
				}
				was.back(t, fmt.Sprintf("killed at %s %d, release %v", call, n, release))
				if left, _ := filepath.Glob(state + "/jobs/*"); len(left) > 0 {
					t.Errorf("killed at %s %d: left %v", call, n, left)
				}
				if t.Failed() {
					t.FailNow()
				}
				if err == nil {
					break
				}
				tried++
			}
		}
	}
	t.Logf("%d runs killed", tried)
	if tried < 100 {
		t.Errorf("only %d runs killed", tried)
	}
}

// TestDirtyPair: of a ratio and bytes only one counts, whichever a site and a job
// have, and a ratio of 0 needs a step between.
func TestDirtyPair(t *testing.T) {
	needRoot(t)
	const ratio, bytes = "/proc/sys/vm/dirty_ratio", "/proc/sys/vm/dirty_bytes"
	if _, ok := first(t, ratio); !ok {
		t.Skip("/proc/sys/vm cannot be written here")
	}
	watch(t, []part{{reads: map[string]string{ratio: "", bytes: ""}}})
	ctx := context.Background()
	for _, c := range []struct {
		file, value string // the site's
		set         setting.Wish
		ratio       string
		bytes       string
	}{
		{bytes, "100001", setting.Sysctl("vm.dirty_ratio", "0"), "0", "0"},
		{bytes, "100001", setting.Sysctl("vm.dirty_ratio", "33"), "33", "0"},
		{bytes, "100001", setting.Sysctl("vm.dirty_bytes", "200002"), "0", "200002"},
		{ratio, "17", setting.Sysctl("vm.dirty_bytes", "200002"), "0", "200002"},
		{ratio, "17", setting.Sysctl("vm.dirty_ratio", "0"), "0", "0"},
	} {
		must(t, os.WriteFile(c.file, []byte(c.value), 0))
		was := [2]string{text(t, ratio), text(t, bytes)}
		l, env, err := open(t.TempDir())
		must(t, err)
		list, err := changes(env, []setting.Wish{c.set})
		must(t, err)
		_, err = l.Apply(ctx, job, list)
		must(t, err)
		if is := [2]string{text(t, ratio), text(t, bytes)}; is != [2]string{c.ratio + "\n", c.bytes + "\n"} {
			t.Errorf("%s=%s, then %v: %q", c.file, c.value, c.set, is)
		}
		_, err = l.Release(ctx, job)
		must(t, err)
		if is := [2]string{text(t, ratio), text(t, bytes)}; is != was {
			t.Errorf("%s=%s, %v, put back: %q, was %q", c.file, c.value, c.set, is, was)
		}
	}
}

// TestHugepageReserve: writing thp/enabled makes the kernel raise a lower
// vm.min_free_kbytes of the site's, and that is put back, too.
func TestHugepageReserve(t *testing.T) {
	needRoot(t)
	const file = "/proc/sys/vm/min_free_kbytes"
	if _, ok := first(t, thp+"enabled"); !ok {
		t.Skip("no transparent hugepages here")
	}
	if _, ok := first(t, file); !ok {
		t.Skip("min_free_kbytes cannot be changed here")
	}
	outer := watch(t, choicePart(t, "thp/enabled", thp+"enabled"))
	present := chosen(text(t, thp+"enabled"))
	for _, c := range []struct{ was, word string }{{"madvise", "always"}, {"always", "madvise"}, {"always", "never"}, {"never", "madvise"}} {
		reserve(t, file, c.was, c.word)
	}
	must(t, os.WriteFile(thp+"enabled", []byte(present), 0))
	must(t, os.WriteFile(file, []byte(strings.TrimSpace(outer[file])), 0))
	outer.back(t, "at the end")
}

// reserve goes from one word of thp/enabled to another and back, with a value of
// the site's that the kernel raises.
func reserve(t *testing.T, file, was, word string) {
	t.Helper()
	const low = "3000"
	begin := func() {
		must(t, os.WriteFile(thp+"enabled", []byte(was), 0))
		must(t, os.WriteFile(file, []byte(low), 0))
	}
	// What the kernel does by itself.
	begin()
	must(t, os.WriteFile(thp+"enabled", []byte(word), 0))
	raised, err := strconv.Atoi(strings.TrimSpace(text(t, file)))
	must(t, err)
	must(t, os.WriteFile(thp+"enabled", []byte(was), 0))
	after := strings.TrimSpace(text(t, file))
	if after == low {
		t.Errorf("from %s to %s and back the kernel changes nothing", was, word)
	}

	begin()
	ctx := context.Background()
	l, env, err := open(t.TempDir())
	must(t, err)
	wishes, err := setting.THP(env, word)
	must(t, err)
	t.Logf("from %s to %s the kernel makes %d of %s, and back %s; wishes %v", was, word, raised, low, after, wishes)
	c, err := changes(env, wishes)
	must(t, err)
	_, err = l.Apply(ctx, job, c)
	must(t, err)
	is, err := strconv.Atoi(strings.TrimSpace(text(t, file)))
	must(t, err)
	if plain := was != "never" && word != "never"; is < raised || plain && is != raised || chosen(text(t, thp+"enabled")) != word {
		t.Errorf("min_free_kbytes %d, the kernel itself makes it %d; thp %s", is, raised, text(t, thp+"enabled"))
	}
	report, err := l.Release(ctx, job)
	must(t, err)
	if is := text(t, file); is != low+"\n" || chosen(text(t, thp+"enabled")) != was {
		t.Errorf("%s to %s: min_free_kbytes %q; thp %s; %+v", was, word, is, text(t, thp+"enabled"), report)
	}
}

// unchecked is a setting that says yes to every value.
type unchecked struct{ setting.Setting }

// Check implements setting.Setting.
func (unchecked) Check(_ context.Context, value string) (string, error) { return value, nil }

// TestTooManyHugepages: what the kernel cannot make is refused, and the pool is
// what it was.
func TestTooManyHugepages(t *testing.T) {
	needRoot(t)
	env := setting.NewEnvironment("/", nil)
	const pool = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
	if _, ok := first(t, pool); !ok {
		t.Skip("no hugepages of 2 MiB here")
	}
	kib := 0
	if _, err := fmt.Sscanf(text(t, "/proc/meminfo"), "MemTotal: %d kB", &kib); err != nil {
		t.Fatal(err)
	}
	if gib := kib >> 20; gib > 4 && os.Getenv("GPUTUNE_KERNEL_SLOW") == "" {
		t.Skipf("takes half a minute with %d GiB and all free memory: GPUTUNE_KERNEL_SLOW=1 does it", gib)
	}
	was := watch(t, []part{{reads: map[string]string{pool: ""}}})
	key := setting.HugepagesKey(0, 2048)
	s, err := setting.Parse(env, key)
	must(t, err)
	ctx := context.Background()
	refused := (*setting.ValueError)(nil)
	if _, err := s.Check(ctx, "1000000000"); !errors.As(err, &refused) || refused.Nearest == "" {
		t.Fatalf("%v", err)
	}
	t.Log(refused)
	// As many as the whole memory of the node, which the kernel and this program
	// are in.
	if _, err := s.Check(ctx, refused.Nearest); !errors.As(err, new(*setting.ValueError)) {
		t.Fatalf("%v", err)
	}
	c := ledger.Change{Setting: unchecked{s}, Value: refused.Nearest}
	l, _, err := open(t.TempDir())
	must(t, err)
	report, err := l.Apply(ctx, job, []ledger.Change{c})
	failed := (*ledger.ApplyError)(nil)
	if !errors.As(err, &failed) || !failed.Clean() || !errors.As(err, &refused) || refused.Nearest == "" {
		t.Fatalf("%+v, %v", report, err)
	}
	t.Log(err)
	was.back(t, "after the refusal")
}

// TestHugepagesInUse: the pool cannot be put back while somebody has pages, is in
// the ledger until then, and can be later.
func TestHugepagesInUse(t *testing.T) {
	needRoot(t)
	env := setting.NewEnvironment("/", nil)
	const pool = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
	if is, ok := first(t, pool); !ok || is != "0" {
		t.Skip("no empty pool of hugepages here")
	}
	was := watch(t, []part{{reads: map[string]string{pool: ""}}})
	wish, err := setting.Hugepages(env, 0, 2048, 6)
	must(t, err)
	l, _, err := open(t.TempDir())
	must(t, err)
	c, err := changes(env, []setting.Wish{wish})
	must(t, err)
	ctx := context.Background()
	_, err = l.Apply(ctx, job, c)
	must(t, err)
	release := useHugepages(t, 2)
	if wish, err := setting.Hugepages(env, 0, 2048, 6); err != nil || wish.Value != "8" {
		t.Errorf("6 more when 2 are in use: %v, %v", wish, err)
	}
	if _, err := l.Release(ctx, job); !errors.Is(err, setting.ErrInUse) {
		t.Errorf("released while they are in use: %v", err)
	} else {
		t.Log(err)
	}
	release()
	_, err = l.Release(ctx, job)
	must(t, err)
	was.back(t, "after the program")
	if is, _ := strconv.Atoi(strings.TrimSpace(text(t, pool))); is != 0 {
		t.Errorf("%d pages are left", is)
	}
}

// TestManagedInterrupts: those of a disk's queues, where there are any.
func TestManagedInterrupts(t *testing.T) {
	needRoot(t)
	env := setting.NewEnvironment("/", nil)
	ctx := context.Background()
	seen := 0
	for _, pci := range devices(t) {
		free, managed, err := setting.MovableInterrupts(env, pci)
		must(t, err)
		t.Logf("%s: movable %v, managed %v", pci, free, managed)
		for _, irq := range managed {
			seen++
			file := fmt.Sprintf("/proc/irq/%d/smp_affinity_list", irq)
			was := text(t, file)
			s, err := setting.Parse(env, setting.IRQKey(pci, irq))
			must(t, err)
			if _, err := s.Check(ctx, "0"); !errors.Is(err, setting.ErrUnmovable) {
				t.Errorf("%d: %v", irq, err)
			}
			if err := s.Write(ctx, "0"); !errors.Is(err, setting.ErrUnmovable) {
				t.Errorf("%d: written: %v", irq, err)
			}
			if is := text(t, file); is != was {
				t.Errorf("%d: %q, was %q", irq, is, was)
			}
		}
	}
	if seen == 0 {
		t.Skip("no managed interrupts here")
	}
}

// TestMissing: what the machine does not have is said as such, so that a profile
// can go on without.
func TestMissing(t *testing.T) {
	env := setting.NewEnvironment("/", nil)
	for _, wish := range []setting.Wish{
		{Key: "sysctl/vm.not_there", Value: "1"},
		{Key: "hugepages/node0/3kB", Value: "1"},
		{Key: "hugepages/node999/2048kB", Value: "1"},
		{Key: "cpuidle/cpu9999/latency", Value: "1"},
		{Key: "cpufreq/policy9999/governor", Value: "performance"},
		{Key: "cpufreq/policy9999/energy", Value: "performance"},
		{Key: "cpufreq/policy9999/min", Value: "max"},
	} {
		s, err := setting.Parse(env, wish.Key)
		must(t, err)
		_, err = s.Check(context.Background(), wish.Value)
		missing := (*setting.MissingError)(nil)
		if !errors.As(err, &missing) || !errors.Is(err, setting.ErrUnsupported) {
			t.Errorf("%s: %v", wish.Key, err)
		}
	}
}
