package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"gputune/conf"
	"gputune/internal/affinity"
	"gputune/internal/follow"
	"gputune/internal/idset"
	"gputune/internal/ledger"
	"gputune/internal/metrics"
	"gputune/internal/verify"
)

// lists is a driver whose lists tests set.
type lists struct {
	mu     sync.Mutex
	pids   map[string][]int
	asked  int
	closed bool
}

func (l *lists) List(pci []string) []follow.List {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	var all []follow.List
	for _, address := range pci {
		all = append(all, follow.List{PCI: address, PIDs: append([]int{}, l.pids[address]...)})
	}
	return all
}

func (l *lists) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	return nil
}

func (l *lists) set(pci string, pids ...int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pids[pci] = pids
}

// The child says what there is, each change, and what it is told anew; it ends with
// its input, and lets go of the driver.
func TestFollowChild(t *testing.T) {
	l := &lists{pids: map[string][]int{"a": {1}}}
	in, orders := io.Pipe()
	answers, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- serveFollow(t.Context(), Work{Role: RoleFollow, GPUs: []string{"a"}, Interval: time.Millisecond}, l, json.NewDecoder(in), out)
		out.Close()
	}()
	decoder := json.NewDecoder(answers)
	want := func(want ...follow.List) {
		t.Helper()
		var seen Seen
		if err := decoder.Decode(&seen); err != nil || len(seen.Lists)+len(want) > 0 && !reflect.DeepEqual(seen.Lists, want) || seen.CPU <= 0 {
			t.Fatalf("%+v, %v, want %+v", seen, err, want)
		}
	}
	want(follow.List{PCI: "a", PIDs: []int{1}})
	l.set("a", 1, 2)
	want(follow.List{PCI: "a", PIDs: []int{1, 2}})
	if err := json.NewEncoder(orders).Encode(FollowOrder{GPUs: []string{"b", "a"}}); err != nil {
		t.Fatal(err)
	}
	want(follow.List{PCI: "b", PIDs: []int{}}, follow.List{PCI: "a", PIDs: []int{1, 2}})
	if err := json.NewEncoder(orders).Encode(FollowOrder{}); err != nil {
		t.Fatal(err)
	}
	want([]follow.List{}...)
	l.mu.Lock()
	if !l.closed {
		t.Error("without GPUs it has the driver open")
	}
	l.closed = false
	l.mu.Unlock()
	orders.Close()
	if err := <-done; err != nil || !l.closed {
		t.Errorf("%v, let go: %v", err, l.closed)
	}
	if err := serveFollow(t.Context(), Work{Role: RoleFollow}, l, nil, nil); err == nil || !strings.Contains(err.Error(), "interval 0s: want more than 0") {
		t.Errorf("%v", err)
	}
	err := serveFollow(t.Context(), Work{Role: RoleFollow, Interval: time.Hour}, l, json.NewDecoder(strings.NewReader("x")), io.Discard)
	if err == nil {
		t.Error("an order that is none")
	}
}

// A child's lines, orders, and every way in which it can fail.
func TestWatch(t *testing.T) {
	for name, c := range map[string]struct {
		script, want string
		silence      time.Duration
	}{
		"until it is not wanted":  {`read work; read order; echo "$order"; cat`, "", time.Minute},
		"its end":                 {`read work; read order; echo "$order"; exit 3`, "exit status 3", time.Minute},
		"silence":                 {`read work; read order; echo "$order"; exec sleep 600`, "says nothing more", 100 * time.Millisecond},
		"a line that is not read": {`read work; read order; echo no; exec sleep 600`, "not this", time.Minute},
		"deaf at its end":         {`trap "" TERM; read work; read order; echo "$order"; exec sleep 600 <&-`, "", time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "program")
			if err := os.WriteFile(path, []byte("#!/bin/sh\n"+c.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			children := &Children{Path: path, Argument: "--worker", Log: slog.New(slog.DiscardHandler)}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			orders := make(chan any, 1)
			orders <- FollowOrder{GPUs: []string{"a"}}
			var got []string
			err := children.Watch(ctx, Work{Role: RoleFollow}, orders, c.silence, func(line []byte) error {
				got = append(got, string(line))
				if string(line) == "no" {
					return errors.New("not this")
				}
				if c.want == "" {
					stop()
				}
				return nil
			})
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if len(got) != 1 || got[0] != `{"gpus":["a"]}` && got[0] != "no" {
				t.Errorf("lines %q", got)
			}
		})
	}
	stuck := &Children{Path: "/nonexistent", stuck: make(chan struct{})}
	if err := stuck.Watch(t.Context(), Work{Role: RoleFollow}, nil, time.Minute, nil); !errors.Is(err, ErrStuck) {
		t.Errorf("%v", err)
	}
}

// inProcess is a Watcher without a process.
type inProcess struct {
	driver *lists
	mu     sync.Mutex
	fails  error // of the next one, once
	works  []Work
	active int
	gpus   []string // that the last one was told to ask about
}

func (w *inProcess) Watch(ctx context.Context, work Work, orders <-chan any, _ time.Duration, line func([]byte) error) error {
	w.mu.Lock()
	fails := w.fails
	w.fails = nil
	w.works = append(w.works, work)
	w.active++
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.active--
	}()
	if fails != nil {
		return fails
	}
	gpus := work.GPUs
	var last []byte
	for {
		text, err := json.Marshal(Seen{Lists: w.driver.List(gpus), CPU: 1})
		if err != nil {
			return err
		}
		if !bytes.Equal(text, last) {
			if err := line(text); err != nil {
				return err
			}
		}
		last = text
		select {
		case <-ctx.Done():
			return nil
		case order := <-orders:
			gpus = order.(FollowOrder).GPUs
			w.mu.Lock()
			w.gpus = gpus
			w.mu.Unlock()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (w *inProcess) running() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.active
}

func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// The whole of it on real processes with a made-up list: a step comes, its worker is
// bound, another step brings another GPU, both end, and nobody asks the driver.
func TestFollower(t *testing.T) {
	mine, err := affinity.Get(0)
	if err != nil {
		t.Fatal(err)
	}
	if mine.Len() < 2 {
		t.Skip("one CPU: there is no other one to go to")
	}
	run := filepath.Join(t.TempDir(), "gputune")
	site := conf.Default()
	site.Paths.Run, site.Paths.State = conf.Path(run), conf.Path(t.TempDir())
	locks := ledger.LocksFolder(string(site.Paths.State))
	if err := os.Mkdir(locks, 0o700); err != nil {
		t.Fatal(err)
	}
	watcher := &inProcess{driver: &lists{pids: map[string][]int{}}}
	var log written
	f := &Follower{
		Host: verify.This(), Watcher: watcher, Log: slog.New(slog.NewTextHandler(&log, nil)), Metrics: metrics.New("test"), Config: "/x.toml",
	}
	f.Configure("/", site)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.Run(ctx)
	}()
	defer func() {
		stop()
		<-ended
	}()
	a, b := sleeper(t), sleeper(t)
	h := verify.This()
	me, _ := h.Find(os.Getpid())
	record := func(step, pci string, cpus idset.Set) string {
		file, err := follow.Record(run, follow.Step{
			Job: "1", Step: step, PID: me.PID, Began: me.Began(), Shares: []follow.Share{{PCI: pci, CPUs: cpus, Locality: "local"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
	is := func(pid int, cpus idset.Set) func() bool {
		return func() bool { now, err := affinity.Get(pid); return err == nil && now.Equal(cpus) }
	}
	first, last := idset.Of(mine.Min()), idset.Of(mine.Max())
	watcher.driver.set("a", a)
	fileA := record("0", "a", first)
	eventually(t, "the first worker", is(a, first))
	fileB := record("1", "b", last)
	watcher.driver.set("b", b)
	eventually(t, "the worker on a new step's GPU", is(b, last))
	watcher.driver.set("b")
	watcher.driver.set("a", b)
	eventually(t, "a worker that goes to another GPU", is(b, first))
	if work := watcher.works[0]; len(watcher.works) != 1 || work.Config != "/x.toml" || work.Interval != time.Second || !reflect.DeepEqual(work.GPUs, []string{"a"}) {
		t.Errorf("children: %+v", watcher.works)
	}
	asked := func() int {
		watcher.mu.Lock()
		defer watcher.mu.Unlock()
		return len(watcher.gpus)
	}
	if err := os.WriteFile(filepath.Join(locks, "gpu-GPU-1"), nil, 0o600); err != nil { // as a Prolog does
		t.Fatal(err)
	}
	eventually(t, "the child to let go of the driver", func() bool { return asked() == 0 })
	eventually(t, "the child to ask again", func() bool { return asked() == 2 })
	off := site
	off.Agent.FollowInterval = 0
	f.Configure("/", off)
	eventually(t, "the child's end when it is off", func() bool { return watcher.running() == 0 })
	f.Configure("/", site)
	eventually(t, "another child when it is on again", func() bool { return watcher.running() == 1 })
	slower := site
	slower.Agent.FollowInterval = conf.Period(time.Hour)
	f.Configure("/", slower)
	eventually(t, "a child that asks less often", func() bool {
		watcher.mu.Lock()
		defer watcher.mu.Unlock()
		return watcher.works[len(watcher.works)-1].Interval == time.Hour && watcher.active == 1
	})
	if err := os.RemoveAll(follow.Folder(run)); err != nil { // somebody cleans up
		t.Fatal(err)
	}
	eventually(t, "the child's end", func() bool { return watcher.running() == 0 })
	for _, file := range []string{fileA, fileB} {
		if err := os.Remove(file); !os.IsNotExist(err) {
			t.Errorf("%v", err)
		}
	}
	watcher.mu.Lock()
	watcher.fails = errors.New("broken")
	watcher.mu.Unlock()
	record("2", "a", first)
	eventually(t, "a word about the child that failed", func() bool { return strings.Contains(log.String(), "error=broken") })
	stop()
	<-ended
	if text := log.String(); strings.Count(text, "a worker is bound to its GPU") != 3 {
		t.Errorf("said\n%s", text)
	}
}

// sleeper starts a process and returns its pid.
func sleeper(t *testing.T) int {
	t.Helper()
	return child(t, "sleep", "600").Pid
}

func child(t *testing.T, name string, arguments ...string) *os.Process {
	t.Helper()
	command := exec.Command(name, arguments...)
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	return command.Process
}
