package ledger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	gpuA = "gpu/GPU-a/"
	gpuB = "gpu/GPU-b/"
)

// act is one call of a program on a ledger.
type act func(w *world, l *Ledger)

func apply(job string, changes ...string) act {
	return func(w *world, l *Ledger) {
		var list []Change
		for i := 0; i < len(changes); i += 2 {
			list = append(list, w.machine.change(changes[i], changes[i+1]))
		}
		_, _ = l.Apply(context.Background(), job, list)
	}
}

func release(job string) act {
	return func(_ *world, l *Ledger) { _, _ = l.Release(context.Background(), job) }
}

func all(_ *world, l *Ledger) { _, _ = l.ReleaseAll(context.Background(), nobody) }

// everything is a job with each kind of setting on two GPUs and the host.
var everything = apply("1", gpuA+"exact", "200", gpuA+"lock", "5-5", gpuB+"loose", "201", gpuB+"kept", "300", gpuA+"mig", "77", "host/exact", "1")

// scenarios are what happens before, and what is killed.
var scenarios = []struct {
	name   string
	before []act
	killed act
	broken string // a key whose writes go wrong in the act
}{
	{name: "apply", killed: everything},
	{name: "apply what is there", killed: apply("1", gpuA+"exact", "100", gpuA+"lock", "free")},
	{name: "apply again", before: []act{everything}, killed: everything},
	{name: "apply more", before: []act{apply("1", gpuA+"exact", "200", gpuA+"loose", "7")}, killed: everything},
	{name: "apply otherwise", before: []act{everything}, killed: apply("1", gpuA+"exact", "222", gpuA+"lock", "6-6", gpuA+"mig", "99")},
	{name: "apply with a write that fails", killed: everything, broken: "host/exact"},
	{name: "apply with a loose write that fails", killed: everything, broken: gpuA + "mig"},
	{name: "release", before: []act{everything}, killed: release("1")},
	{name: "release all", before: []act{everything, apply("2", gpuB+"exact", "5", gpuB+"mig", "8")}, killed: all},
	{name: "release an unknown job", before: []act{everything}, killed: release("9")},
	{
		name: "join", before: []act{everything},
		killed: apply("2", gpuA+"exact", "200", gpuA+"lock", "5-5", gpuB+"loose", "201", gpuA+"mig", "77", "host/exact", "1"),
	},
	{
		name: "release the first of two", before: []act{everything, apply("2", gpuA+"exact", "200", gpuA+"lock", "5-5", gpuB+"loose", "201", gpuA+"mig", "77")},
		killed: release("1"),
	},
	{
		name: "release the last of two", before: []act{everything, apply("2", gpuA+"exact", "200", gpuA+"lock", "5-5", gpuB+"loose", "201", gpuA+"mig", "77"), release("1")},
		killed: release("2"),
	},
	{name: "refused", before: []act{everything}, killed: apply("2", gpuA+"mig", "78", gpuB+"exact", "4")},
}

// begin makes a world in which a scenario's acts before have happened.
func begin(t *testing.T, before []act) *world {
	w := newWorld(t)
	for key, value := range starting {
		w.machine.values[key] = value
	}
	for _, a := range before {
		a(w, w.program(0))
	}
	return w
}

// starting is what was there before: not the machine's defaults, where a
// setting can be read.
var starting = map[string]string{gpuA + "exact": "123", gpuB + "loose": "456", gpuB + "kept": "789", gpuA + "mig": "10", "host/exact": "60"}

// back compares the machine with the start.
func (w *world) back(what string, start map[string]string) {
	w.t.Helper()
	for key := range w.machine.values {
		want, ok := start[key]
		if !ok {
			want = standard(key)
		}
		if got := w.machine.get(key); got != want {
			w.t.Errorf("%s: %s is %s, was %s", what, key, got, want)
		}
	}
}

// afterReboot is the start as a machine that was rebooted has it.
func afterReboot() map[string]string {
	m := newMachine(nil)
	m.values = maps.Clone(starting)
	m.reboot()
	return m.values
}

// recoveries are what may run after a program was killed.
var recoveries = []struct {
	name   string
	stride int // every so many places of it are tried for a second kill
	acts   []act
}{
	{"release of each", 1, []act{release("1"), release("2")}},
	{"release of each, the other way", 3, []act{release("2"), release("1")}},
	{"release all", 2, []act{all}},
	{"apply again, then release", 11, []act{everything, release("1"), all}},
	{"another job, then release", 11, []act{
		apply("3", gpuA+"lock", "5-5", gpuA+"exact", "200", gpuA+"mig", "77"), release("1"), release("2"), release("3"),
	}},
}

// TestKillAnywhere kills a program at every place, and what recovers from that
// at every place again, and then lets a recovery run through.
func TestKillAnywhere(t *testing.T) {
	tried := 0
	for _, s := range scenarios {
		count := func() int {
			w := begin(t, s.before)
			if s.broken != "" {
				w.machine.broken[s.broken] = "garbage"
			}
			s.killed(w, w.program(0))
			return w.points.passed
		}()
		for kill := 1; kill <= count; kill++ {
			for _, r := range recoveries {
				stride := r.stride
				if testing.Short() {
					stride *= 10
				}
				// second = 0 lets the recovery run through the first time.
				for second := 0; ; second += stride {
					w := begin(t, s.before)
					if s.broken != "" && kindOf(s.broken) != "exact" {
						w.machine.broken[s.broken] = "garbage"
					}
					if s.broken != "" && kindOf(s.broken) == "exact" {
						w.machine.dumb[s.broken] = true
					}
					l := w.program(kill)
					if !w.points.run(func() { s.killed(w, l) }) {
						break // a shorter way: fewer places
					}
					tried++
					clear(w.machine.broken)
					clear(w.machine.dumb)
					*w.points = points{killAt: second}
					again := w.points.run(func() {
						for _, a := range r.acts {
							a(w, w.open())
						}
					})
					if again {
						*w.points = points{}
						for _, a := range r.acts {
							a(w, w.open())
						}
					}
					w.settle()
					what := fmt.Sprintf("%s, killed at place %d, %s, killed at place %d", s.name, kill, r.name, second)
					w.back(what, starting)
					if t.Failed() {
						t.FailNow()
					}
					if second > 0 && !again {
						break
					}
				}
			}
		}
	}
	t.Logf("%d runs killed", tried)
}

// TestPowerCut cuts the power at every place, with everything that a disk may
// have lost by then drawn several times, and recovers after the reboot.
func TestPowerCut(t *testing.T) {
	draws := 8
	if testing.Short() {
		draws = 1
	}
	random := rand.New(rand.NewPCG(1, 2))
	tried := 0
	for _, s := range scenarios {
		for kill := 1; ; kill++ {
			done := false
			for draw := range draws {
				for _, r := range recoveries {
					w := begin(t, s.before)
					l := w.program(kill)
					if !w.points.run(func() { s.killed(w, l) }) {
						done = true
						break
					}
					tried++
					w.reboot(random, true, draw%2 == 0)
					*w.points = points{}
					for _, a := range r.acts {
						a(w, w.open())
					}
					w.settle()
					w.back(fmt.Sprintf("%s, power cut at place %d, draw %d, %s", s.name, kill, draw, r.name), afterReboot())
					if t.Failed() {
						t.FailNow()
					}
				}
			}
			if done {
				break
			}
		}
	}
	t.Logf("%d power cuts", tried)
}

// TestFaultAnywhere makes every call of the disk and of settings fail, one at a
// time, with what a full, a read-only and a broken disk say.
func TestFaultAnywhere(t *testing.T) {
	tried := 0
	for _, s := range scenarios {
		for _, fault := range []error{unix.ENOSPC, unix.EROFS, unix.EIO, errFault, io.ErrUnexpectedEOF} {
			for at := 1; ; at++ {
				w := begin(t, s.before)
				l := w.program(0)
				w.points.failAt, w.points.fail = at, fault
				s.killed(w, l)
				if w.points.passed < at {
					break
				}
				if w.points.failed == "" {
					continue
				}
				tried++
				w.settle()
				w.back(fmt.Sprintf("%s with %v at place %d", s.name, fault, at), starting)
				if t.Failed() {
					t.FailNow()
				}
			}
		}
	}
	t.Logf("%d faults", tried)
}

// TestFaultsAreReported: an Apply that fails says so, and says truly whether
// the machine is as before.
func TestFaultsAreReported(t *testing.T) {
	reported := 0
	for at := 1; ; at++ {
		w := begin(t, nil)
		l := w.program(0)
		w.points.failAt, w.points.fail = at, errFault
		_, err := l.Apply(context.Background(), "1", []Change{
			w.machine.change(gpuA+"exact", "200"), w.machine.change(gpuA+"lock", "5-5"), w.machine.change(gpuA+"mig", "77"),
		})
		if w.points.passed < at {
			break
		}
		if w.points.failed == "" {
			continue
		}
		what := fmt.Sprintf("fault at place %d (%s)", at, w.points.failed)
		if !errors.Is(err, errFault) {
			t.Fatalf("%s: %v", what, err)
		}
		reported++
		failed := (*ApplyError)(nil)
		if errors.As(err, &failed) && !failed.Clean() {
			continue
		}
		w.back(what, starting)
		if left := w.disk.left(); len(left) > 0 {
			t.Fatalf("%s: clean, but left %v", what, left)
		}
	}
	if reported < 15 {
		t.Fatalf("only %d faults", reported)
	}
}
