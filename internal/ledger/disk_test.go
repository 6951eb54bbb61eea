package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gputune/internal/folder"
	"gputune/internal/setting"
)

// onDisk opens a ledger on a real folder over a fake machine.
func onDisk(t testing.TB, dir string, m *machine, boot string, log *bytes.Buffer) *Ledger {
	t.Helper()
	o := Options{Root: dir, BootID: boot, Resolve: m.resolve, LockWait: 10 * time.Second}
	if log != nil {
		o.Log = slog.New(slog.NewTextHandler(log, nil))
	}
	l, err := Open("state", o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestModes: everything is its owner's alone, and nothing is left of a job.
func TestModes(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	dir := t.TempDir()
	m := newMachine(&points{})
	l := onDisk(t, dir, m, "b", nil)
	if _, err := l.Release(context.Background(), "7"); err != nil {
		t.Fatalf("release with no folder: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "state")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a release made the folder: %v", err)
	}
	if _, err := l.Apply(context.Background(), "7", []Change{m.change(gpuA+"exact", "200"), m.change("host/exact", "2")}); err != nil {
		t.Fatal(err)
	}
	var got []string
	err := filepath.WalkDir(filepath.Join(dir, "state"), func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		rest, _ := filepath.Rel(dir, name)
		got = append(got, fmt.Sprintf("%s %v", rest, info.Mode()))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "files", got, "state drwx--x--x", "state/aside drwx------", "state/jobs drwx------", "state/jobs/7 drwx------",
		"state/jobs/7/record.json -rw-------", "state/locks drwx------", "state/locks/gpu-GPU-a -rw-------",
		"state/locks/host -rw-------", "state/locks/jobs -rw-------")
	if _, err := l.Release(context.Background(), "7"); err != nil {
		t.Fatal(err)
	}
	if names, err := os.ReadDir(filepath.Join(dir, "state/jobs")); err != nil || len(names) > 0 {
		t.Errorf("left: %v, %v", names, err)
	}
}

// TestHostileFiles puts all kinds of things where a record belongs. None
// crashes anything, none is lost, none is followed, each is named in the log,
// and other jobs go on.
func TestHostileFiles(t *testing.T) {
	good := func(job, boot string, entries ...entry) string {
		text, err := encode(&record{Job: job, Boot: boot, Entries: entries})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	valid := entry{Key: gpuA + "exact", Prior: "1", Set: "2", State: applied, Lifetime: setting.UntilReboot}
	bad := func(change func(*entry)) entry { e := valid; change(&e); return e }
	text := good("7", "b", valid)
	write := func(content string) func(t *testing.T, record string) {
		return func(t *testing.T, record string) {
			if err := os.WriteFile(record, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, plant := range map[string]func(t *testing.T, record string){
		"empty":        write(""),
		"spaces":       write(" \n"),
		"torn":         write(text[:len(text)/2]),
		"zeros":        write(strings.Repeat("\x00", 512)),
		"flipped bit":  write(strings.Replace(text, `"set":"2"`, `"set":"3"`, 1)),
		"foreign JSON": write(`{"a":1}`),
		"array":        write(`[1,2,3]`),
		"null":         write(`null`),
		"text":         write("hello\n"),
		"newer":        write(strings.Replace(text, `"gputune-ledger":1`, `"gputune-ledger":2`, 1)),
		"negative":     write(strings.Replace(text, `"gputune-ledger":1`, `"gputune-ledger":-1`, 1)),
		"two records":  write(text + text),
		"other job":    write(good("8", "b", valid)),
		"no boot":      write(good("7", "", valid)),
		"key":          write(good("7", "b", bad(func(e *entry) { e.Key = "../../etc/passwd" }))),
		"key twice":    write(good("7", "b", valid, valid)),
		"state":        write(good("7", "b", bad(func(e *entry) { e.State = "done" }))),
		"lifetime":     write(good("7", "b", bad(func(e *entry) { e.Lifetime = "" }))),
		"epoch":        write(good("7", "b", bad(func(e *entry) { e.Epoch = -1 }))),
		"huge":         write(strings.Repeat("x", 5<<20)),
		"deep":         write(strings.Repeat("[", 100000)),
		"folder": func(t *testing.T, record string) {
			if err := os.MkdirAll(filepath.Join(record, "inner"), 0o700); err != nil {
				t.Fatal(err)
			}
		},
		"fifo": func(t *testing.T, record string) {
			if err := unix.Mkfifo(record, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"readable by others": func(t *testing.T, record string) {
			if err := os.WriteFile(record, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		},
		"symlink": func(t *testing.T, record string) {
			target := filepath.Join(t.TempDir(), "target")
			if err := errors.Join(os.WriteFile(target, []byte(text), 0o600), os.Symlink(target, record)); err != nil {
				t.Fatal(err)
			}
		},
		"hard link": func(t *testing.T, record string) {
			target := record + ".other"
			if err := errors.Join(os.WriteFile(target, []byte(text), 0o600), os.Link(target, record)); err != nil {
				t.Fatal(err)
			}
		},
		"symlink to nothing": func(t *testing.T, record string) {
			if err := os.Symlink("/nowhere", record); err != nil {
				t.Fatal(err)
			}
		},
		"owner": func(t *testing.T, record string) {
			if os.Geteuid() != 0 {
				t.Skip("needs root")
			}
			if err := errors.Join(os.WriteFile(record, []byte(text), 0o600), os.Chown(record, 1234, 1234)); err != nil {
				t.Fatal(err)
			}
		},
		"job folder is a file": func(t *testing.T, record string) {
			folder := filepath.Dir(record)
			if err := errors.Join(os.Remove(folder), os.WriteFile(folder, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		},
		"job folder is a symlink": func(t *testing.T, record string) {
			folder, target := filepath.Dir(record), t.TempDir()
			err := errors.Join(os.Remove(folder), os.WriteFile(filepath.Join(target, "record.json"), []byte(text), 0o600), os.Symlink(target, folder))
			if err != nil {
				t.Fatal(err)
			}
		},
		"job folder of others": func(t *testing.T, record string) {
			if err := errors.Join(os.WriteFile(record, []byte(text), 0o600), os.Chmod(filepath.Dir(record), 0o777)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		for _, by := range []string{"apply of the job", "apply of another job", "release", "release all"} {
			t.Run(name+"/"+by, func(t *testing.T) {
				dir := t.TempDir()
				var log bytes.Buffer
				m := newMachine(&points{})
				l := onDisk(t, dir, m, "b", &log)
				ctx := context.Background()
				// The other job makes the folders, and is the one that must not suffer.
				if _, err := l.Apply(ctx, "1", []Change{m.change(gpuB+"exact", "200")}); err != nil {
					t.Fatal(err)
				}
				record := filepath.Join(dir, "state/jobs/7/record.json")
				if err := os.Mkdir(filepath.Dir(record), 0o700); err != nil {
					t.Fatal(err)
				}
				plant(t, record)
				var err error
				switch by {
				case "apply of the job":
					_, err = l.Apply(ctx, "7", []Change{m.change(gpuA+"exact", "300")})
				case "apply of another job":
					_, err = l.Apply(ctx, "2", []Change{m.change(gpuA+"exact", "300")})
				case "release":
					_, err = l.Release(ctx, "7")
				case "release all":
					_, err = l.ReleaseAll(ctx, func(string) bool { return true })
				}
				if err != nil {
					t.Fatal(err)
				}
				aside, err := os.ReadDir(filepath.Join(dir, "state/aside"))
				if err != nil || len(aside) == 0 {
					t.Fatalf("nothing set aside: %v; log: %s", err, log.String())
				}
				if !strings.Contains(log.String(), "jobs/7") || !strings.Contains(log.String(), aside[0].Name()) {
					t.Errorf("the log does not name the file: %s", log.String())
				}
				if strings.HasPrefix(by, "apply") && m.get(gpuA+"exact") != "300" {
					t.Errorf("apply did not apply: %s", m.get(gpuA+"exact"))
				}
				if _, err := l.ReleaseAll(ctx, nobody); err != nil {
					t.Fatal(err)
				}
				if m.get(gpuA+"exact") != "100" || m.get(gpuB+"exact") != "100" {
					t.Errorf("values left: %v", m.values)
				}
				if names, err := os.ReadDir(filepath.Join(dir, "state/jobs")); err != nil || len(names) > 0 {
					t.Errorf("left: %v, %v", names, err)
				}
			})
		}
	}
}

// TestHostileFolders: a ledger's folder that somebody else can write to, or
// that is a symlink, is used for nothing.
func TestHostileFolders(t *testing.T) {
	for name, plant := range map[string]func(state string) error{
		"writable by others": func(state string) error {
			return errors.Join(os.Mkdir(state, 0o700), os.Chmod(state, 0o777))
		},
		"symlink": func(state string) error {
			return errors.Join(os.Mkdir(state+"-elsewhere", 0o700), os.Symlink(state+"-elsewhere", state))
		},
		"file": func(state string) error { return os.WriteFile(state, nil, 0o600) },
		"lock is a symlink": func(state string) error {
			return errors.Join(os.MkdirAll(state+"/locks", 0o700), os.WriteFile(state+"-victim", []byte("precious"), 0o600),
				os.Symlink(state+"-victim", state+"/locks/gpu-GPU-a"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := plant(filepath.Join(dir, "state")); err != nil {
				t.Fatal(err)
			}
			m := newMachine(&points{})
			l := onDisk(t, dir, m, "b", nil)
			if _, err := l.Apply(context.Background(), "7", []Change{m.change(gpuA+"exact", "200")}); err == nil {
				t.Error("no error")
			}
			if len(m.values) > 0 {
				t.Errorf("something was changed: %v", m.values)
			}
			if text, err := os.ReadFile(filepath.Join(dir, "state-victim")); err == nil && string(text) != "precious" {
				t.Errorf("written through a symlink: %q", text)
			}
			if names, err := os.ReadDir(filepath.Join(dir, "state-elsewhere")); err == nil && len(names) > 0 {
				t.Errorf("written through a symlink: %v", names)
			}
		})
	}
}

// recorder keeps a copy of the folder before each change of it, with what the
// machine had at that time.
type recorder struct {
	files
	take func()
}

func (r recorder) MakeFolder(name string) error   { r.take(); return r.files.MakeFolder(name) }
func (r recorder) Rename(from, to string) error   { r.take(); return r.files.Rename(from, to) }
func (r recorder) Remove(name string) error       { r.take(); return r.files.Remove(name) }
func (r recorder) RemoveFolder(name string) error { r.take(); return r.files.RemoveFolder(name) }
func (r recorder) SyncFolder(name string) error   { r.take(); return r.files.SyncFolder(name) }
func (r recorder) Create(name string) (folder.File, error) {
	r.take()
	f, err := r.files.Create(name)
	return recordedFile{f, r}, err
}

type recordedFile struct {
	folder.File
	r recorder
}

func (f recordedFile) Write(b []byte) (int, error) {
	f.r.take()
	n, err := f.File.Write(b[:len(b)/2])
	if err != nil {
		return n, err
	}
	f.r.take()
	m, err := f.File.Write(b[len(b)/2:])
	return n + m, err
}

func (f recordedFile) Sync() error { f.r.take(); return f.File.Sync() }

// TestEveryStateOnDisk restores the folder to each of the states that it has on
// a real disk between two writes, and the machine to what it had then or, as
// after a reboot, to what it remembers, and recovers.
func TestEveryStateOnDisk(t *testing.T) {
	type moment struct {
		folder string
		values map[string]string
	}
	tried := 0
	for _, s := range scenarios {
		dir := t.TempDir()
		m := newMachine(&points{})
		for key, value := range starting {
			m.values[key] = value
		}
		w := &world{t: t, points: m.points, machine: m}
		var moments []moment
		l := onDisk(t, dir, m, "boot-0", nil)
		for _, a := range s.before {
			a(w, l)
		}
		l.store.files = recorder{l.store.files, func() {
			folder := filepath.Join(t.TempDir(), fmt.Sprint(len(moments)))
			if _, err := os.Lstat(filepath.Join(dir, "state")); err == nil {
				if err := os.CopyFS(filepath.Join(folder, "state"), os.DirFS(filepath.Join(dir, "state"))); err != nil {
					t.Fatal(err)
				}
				tightenAll(t, folder)
			}
			values := map[string]string{}
			for key, value := range m.values {
				values[key] = value
			}
			moments = append(moments, moment{folder, values})
		}}
		if s.broken != "" {
			m.dumb[s.broken] = true
		}
		s.killed(w, l)
		for i, at := range moments {
			for _, boot := range []string{"boot-0", "boot-1"} {
				then := newMachine(&points{})
				want := starting
				for key, value := range at.values {
					then.values[key] = value
				}
				if boot == "boot-1" {
					then.reboot()
					want = afterReboot()
				}
				folder := filepath.Join(t.TempDir(), "copy")
				if _, err := os.Lstat(at.folder); err == nil {
					if err := os.CopyFS(folder, os.DirFS(at.folder)); err != nil {
						t.Fatal(err)
					}
					tightenAll(t, folder)
				}
				var log bytes.Buffer
				l := onDisk(t, folder, then, boot, &log)
				if _, err := l.ReleaseAll(context.Background(), nobody); err != nil {
					t.Fatalf("%s, state %d, %s: %v", s.name, i, boot, err)
				}
				(&world{t: t, machine: then}).back(fmt.Sprintf("%s, state %d, %s", s.name, i, boot), want)
				if names, err := os.ReadDir(filepath.Join(folder, "state/jobs")); err == nil && len(names) > 0 {
					t.Errorf("%s, state %d, %s: left %v", s.name, i, boot, names)
				}
				if strings.Contains(log.String(), "set aside") {
					t.Errorf("%s, state %d, %s: %s", s.name, i, boot, log.String())
				}
				tried++
			}
		}
	}
	t.Logf("%d states on disk", tried)
	if tried < 300 {
		t.Errorf("only %d states", tried)
	}
}

// tightenAll gives a copied tree the modes that it had.
func tightenAll(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.Chmod(name, 0o700)
		}
		return os.Chmod(name, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// safeMachine is a machine for several goroutines.
type safeMachine struct {
	mu      sync.Mutex
	machine *machine
	slow    map[string]time.Duration
	busy    map[string]int // domain → writers at this moment
	t       testing.TB
}

type safeSetting struct {
	*fake
	m *safeMachine
}

func (m *safeMachine) resolve(key string) (setting.Setting, error) {
	return &safeSetting{&fake{m.machine, key}, m}, nil
}

func (s *safeSetting) Read(ctx context.Context) (string, error) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return s.fake.Read(ctx)
}

func (s *safeSetting) Write(ctx context.Context, value string) error {
	domain := setting.Domain(s.key)
	s.m.mu.Lock()
	s.m.busy[domain]++
	if s.m.busy[domain] > 1 {
		s.m.t.Errorf("two writers on %s", domain)
	}
	s.m.mu.Unlock()
	time.Sleep(s.m.slow[s.key])
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.m.busy[domain]--
	return s.fake.Write(ctx, value)
}

func newSafeMachine(t testing.TB) *safeMachine {
	return &safeMachine{machine: newMachine(&points{}), slow: map[string]time.Duration{}, busy: map[string]int{}, t: t}
}

func (m *safeMachine) open(t testing.TB, dir string, wait time.Duration) *Ledger {
	l, err := Open("state", Options{Root: dir, BootID: "b", Resolve: m.resolve, LockWait: wait})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (m *safeMachine) change(key, value string) Change {
	s, _ := m.resolve(key)
	return Change{Setting: s, Value: value}
}

// TestManyAtOnce has 8 goroutines apply and release jobs that share keys.
func TestManyAtOnce(t *testing.T) {
	dir := t.TempDir()
	m := newSafeMachine(t)
	const workers, rounds = 8, 25
	var group sync.WaitGroup
	for worker := range workers {
		group.Go(func() {
			l := m.open(t, dir, time.Minute)
			job := fmt.Sprint(worker)
			for round := range rounds {
				key := []string{gpuA, gpuB, "gpu/GPU-c/"}[(worker+round)%3]
				changes := []Change{m.change(key+"exact", "200"), m.change(key+"lock", "5-5"), m.change("host/loose", "7")}
				if _, err := l.Apply(context.Background(), job, changes); err != nil {
					t.Errorf("job %s: %v", job, err)
					return
				}
				m.mu.Lock()
				if m.machine.get(key+"exact") != "200" || m.machine.get("host/loose") != "6" || m.machine.get(key+"lock") != "5-5" {
					t.Errorf("job %s does not have its values: %v", job, m.machine.values)
				}
				m.mu.Unlock()
				if _, err := l.Release(context.Background(), job); err != nil {
					t.Errorf("job %s: %v", job, err)
					return
				}
			}
		})
	}
	group.Wait()
	for key, value := range m.machine.values {
		if value != standard(key) {
			t.Errorf("%s is %s", key, value)
		}
	}
	if names, err := os.ReadDir(filepath.Join(dir, "state/jobs")); err != nil || len(names) > 0 {
		t.Errorf("left: %v, %v", names, err)
	}
}

// TestNoWaiting: a job whose GPU is slow delays no job on another GPU, and one
// on the same GPU gives up in time and says who has the lock.
func TestNoWaiting(t *testing.T) {
	dir := t.TempDir()
	m := newSafeMachine(t)
	m.slow[gpuA+"exact"] = 1500 * time.Millisecond
	begun := make(chan struct{})
	done := make(chan error)
	go func() {
		close(begun)
		_, err := m.open(t, dir, time.Minute).Apply(context.Background(), "7", []Change{m.change(gpuA+"exact", "200")})
		done <- err
	}()
	<-begun
	deadline := time.Now().Add(10 * time.Second)
	for {
		if text, err := os.ReadFile(filepath.Join(dir, "state/locks/gpu-GPU-a")); err == nil && len(text) > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the slow job does not begin")
		}
		time.Sleep(time.Millisecond)
	}
	start := time.Now()
	l := m.open(t, dir, 50*time.Millisecond)
	if _, err := l.Apply(context.Background(), "8", []Change{m.change(gpuB+"exact", "200")}); err != nil {
		t.Errorf("job on another GPU: %v", err)
	}
	if _, err := l.Release(context.Background(), "8"); err != nil {
		t.Errorf("job on another GPU: %v", err)
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("the job on another GPU took %v", took)
	}
	_, err := l.Apply(context.Background(), "9", []Change{m.change(gpuA+"exact", "200")})
	locked := (*LockedError)(nil)
	if !errors.As(err, &locked) || locked.What != "gpu-GPU-a" ||
		!strings.Contains(err.Error(), fmt.Sprintf("pid %d, job 7", os.Getpid())) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("job on the same GPU: %v", err)
	}
	if _, err := l.Release(context.Background(), "7"); !errors.As(err, &locked) || locked.What != "job 7" {
		t.Errorf("release of the job that begins: %v", err)
	}
	if err := <-done; err != nil {
		t.Errorf("slow job: %v", err)
	}
}

// TestLockFileRemoved: a lock whose file was removed by hand is taken on the
// new file, so that two programs never hold it at once.
func TestLockFileRemoved(t *testing.T) {
	dir := t.TempDir()
	locks := flocks{dir}
	if err := os.Mkdir(filepath.Join(dir, locksFolder), 0o700); err != nil {
		t.Fatal(err)
	}
	first, err := locks.domain(context.Background(), "host", "1")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan func())
	go func() {
		unlock, err := locks.domain(context.Background(), "host", "2")
		if err != nil {
			t.Error(err)
		}
		got <- unlock
	}()
	time.Sleep(50 * time.Millisecond)
	if err := os.Remove(filepath.Join(dir, locksFolder, "host")); err != nil {
		t.Fatal(err)
	}
	first()
	unlock := <-got
	defer unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if third, err := locks.domain(ctx, "host", "3"); err == nil {
		third()
		t.Error("two hold the lock")
	}
}

// TestFoldersRemoved: a ledger whose folders were removed by hand goes on with
// what is left of it.
func TestFoldersRemoved(t *testing.T) {
	for _, folder := range []string{"locks", "jobs", "aside", "."} {
		dir := t.TempDir()
		m := newMachine(&points{})
		l := onDisk(t, dir, m, "b", nil)
		ctx := context.Background()
		if _, err := l.Apply(ctx, "7", []Change{m.change(gpuA+"exact", "200")}); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Join(dir, "state", folder)); err != nil {
			t.Fatal(err)
		}
		_, err := l.Release(ctx, "7")
		if err != nil {
			t.Errorf("%s removed: release: %v", folder, err)
		}
		if kept := folder == "locks" || folder == "aside"; kept != (m.get(gpuA+"exact") == "100") {
			t.Errorf("%s removed: value %s", folder, m.get(gpuA+"exact"))
		}
		if _, err := l.Apply(ctx, "8", []Change{m.change(gpuB+"exact", "200")}); err != nil {
			t.Errorf("%s removed: apply: %v", folder, err)
		}
		if _, err := l.Release(ctx, "8"); err != nil || m.get(gpuB+"exact") != "100" {
			t.Errorf("%s removed: release: %v, %s", folder, err, m.get(gpuB+"exact"))
		}
	}
}

func FuzzDecode(f *testing.F) {
	text, err := encode(&record{Job: "7", Boot: "b", Entries: []entry{
		{Key: gpuA + "exact", Prior: "1", Set: "2", State: applied, Lifetime: setting.Kept, Loose: true, Asked: "3"},
	}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"gputune-ledger":1,"crc32c":"00000000","record":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := decode(text, "7")
		if err != nil {
			return
		}
		again, err := encode(r)
		if err != nil {
			t.Fatal(err)
		}
		second, err := decode(again, "7")
		if err != nil || !slices.Equal(r.Entries, second.Entries) {
			t.Fatalf("%v: %+v became %+v", err, r, second)
		}
	})
}

// BenchmarkApplyRelease is a job with clocks, power and compute mode on 8 GPUs,
// on a real disk, with settings that take no time.
func BenchmarkApplyRelease(b *testing.B) {
	m := newMachine(&points{})
	dir := b.TempDir()
	l, err := Open("state", Options{Root: dir, BootID: "b", Resolve: m.resolve})
	if err != nil {
		b.Fatal(err)
	}
	var changes []Change
	for gpu := range 8 {
		for _, kind := range []string{"lock", "exact", "kept"} {
			changes = append(changes, m.change(fmt.Sprintf("gpu/GPU-%d/%s", gpu, kind), "200"))
		}
	}
	for b.Loop() {
		if _, err := l.Apply(context.Background(), "7", changes); err != nil {
			b.Fatal(err)
		}
		if _, err := l.Release(context.Background(), "7"); err != nil {
			b.Fatal(err)
		}
	}
}
