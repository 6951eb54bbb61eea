package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// model is what a ledger should do, written without files: for each key what
// is there without any job, and who holds it.
type model struct {
	base    map[string]string
	holders map[string][]hold
	// unsure are jobs whose call was killed or failed: of their keys nothing is
	// known until they are released or applied once more.
	unsure map[string]bool
}

type hold struct {
	job, value string
	// lost says that somebody took over from this holder.
	lost bool
}

var modelKeys = []string{
	gpuA + "exact", gpuA + "lock", gpuA + "loose", gpuA + "kept", gpuA + "mig",
	gpuB + "exact", gpuB + "lock", gpuB + "mig", "host/exact", "host/loose",
}

func newModel() *model {
	m := &model{base: map[string]string{}, holders: map[string][]hold{}, unsure: map[string]bool{}}
	for _, key := range modelKeys {
		m.base[key] = standard(key)
	}
	return m
}

func (m *model) held(job string) bool {
	return slices.ContainsFunc(modelKeys, func(key string) bool { return m.find(job, key) >= 0 })
}

func (m *model) find(job, key string) int {
	return slices.IndexFunc(m.holders[key], func(h hold) bool { return h.job == job })
}

func (m *model) release(job string) {
	for key := range m.holders {
		m.holders[key] = slices.DeleteFunc(m.holders[key], func(h hold) bool { return h.job == job })
	}
	delete(m.unsure, job)
}

// conflict tells whether a job's wish meets another job's value.
func (m *model) conflict(job string, want map[string]string) (yes, maybe bool) {
	for key, value := range want {
		for _, h := range m.holders[key] {
			switch {
			case h.job == job:
			case m.unsure[h.job]: // of its values, too, nothing is known
				maybe = true
			case h.value != value:
				return true, false
			}
		}
	}
	return false, maybe
}

func (m *model) otherwise(job string, want map[string]string) bool {
	for key, value := range want {
		if i := m.find(job, key); i >= 0 && m.holders[key][i].value != value {
			return true
		}
	}
	return false
}

func (m *model) apply(job string, want map[string]string) {
	delete(m.unsure, job)
	for key, value := range want {
		if i := m.find(job, key); i >= 0 {
			m.holders[key][i].lost = false
			continue
		}
		m.holders[key] = append(m.holders[key], hold{job: job, value: value})
	}
}

// doubt marks a job's keys, those it wants included, as unknown.
func (m *model) doubt(job string, want map[string]string) {
	m.unsure[job] = true
	for key, value := range want {
		if m.find(job, key) < 0 {
			m.holders[key] = append(m.holders[key], hold{job: job, value: value})
		}
	}
}

// expect is the value that a key must have, if that is known.
func (m *model) expect(key string) (value string, known bool) {
	unsure := false
	for _, h := range m.holders[key] {
		if m.unsure[h.job] {
			unsure = true
		} else if !h.lost {
			return rounded(key, h.value), true
		}
	}
	return m.base[key], !unsure
}

func (m *model) anyUnsure(key string) bool {
	return slices.ContainsFunc(m.holders[key], func(h hold) bool { return m.unsure[h.job] })
}

// TestModel does 100,000 random operations, kills programs in the middle of
// them, cuts the power, makes calls fail, changes values behind the ledger's
// back, and compares with the model after each.
func TestModel(t *testing.T) {
	operations := 100_000
	if testing.Short() {
		operations = 10_000
	}
	random := rand.New(rand.NewPCG(20, 26))
	w := newWorld(t)
	m := newModel()
	counts := map[string]int{}
	for n := range operations {
		oneOperation(w, m, random, counts)
		for _, key := range modelKeys {
			want, known := m.expect(key)
			if got := w.machine.get(key); known && got != want {
				t.Fatalf("operation %d: %s is %s, want %s; holders %v, unsure %v", n, key, got, want, m.holders[key], m.unsure)
			}
		}
		if n%500 == 499 {
			w.settle()
			m.holders, m.unsure = map[string][]hold{}, map[string]bool{}
			for _, key := range modelKeys {
				if got := w.machine.get(key); got != m.base[key] {
					t.Fatalf("operation %d: all jobs ended: %s is %s, want %s", n, key, got, m.base[key])
				}
			}
		}
	}
	t.Logf("%d operations: %v", operations, counts)
	for _, kind := range []string{"applied", "refused", "released", "killed", "power cut", "rebooted", "failed", "taken over"} {
		if counts[kind] < operations/1000 {
			t.Errorf("only %d operations were %q: the test does not test", counts[kind], kind)
		}
	}
}

func oneOperation(w *world, m *model, random *rand.Rand, counts map[string]int) {
	ctx := context.Background()
	job := fmt.Sprint(1 + random.IntN(4))
	killAt := 0
	if random.IntN(3) == 0 {
		killAt = 1 + random.IntN(60)
	}
	l := w.program(killAt)
	if killAt == 0 && random.IntN(6) == 0 {
		w.points.failAt = 1 + random.IntN(40)
		w.points.fail = []error{unix.ENOSPC, unix.EIO, errFault}[random.IntN(3)]
	}
	switch what := random.IntN(100); {
	case what < 45:
		want := map[string]string{}
		var changes []Change
		for _, i := range random.Perm(len(modelKeys))[:1+random.IntN(5)] {
			key := modelKeys[i]
			want[key] = []string{"200", "201", "300"}[random.IntN(3)]
			if random.IntN(3) > 0 {
				want[key] = "200"
			}
			changes = append(changes, w.machine.change(key, want[key]))
		}
		applyOne(w, m, counts, job, want, func() error {
			_, err := l.Apply(ctx, job, changes)
			return err
		})
	case what < 80:
		var err error
		if w.points.run(func() { _, err = l.Release(ctx, job) }) {
			counts["killed"]++
			m.doubt(job, nil)
			break
		}
		if err != nil {
			counts["failed"]++
			m.doubt(job, nil)
			break
		}
		counts["released"]++
		m.release(job)
	case what < 85:
		dead := fmt.Sprint(1 + random.IntN(4))
		var err error
		killed := w.points.run(func() { _, err = l.ReleaseAll(ctx, func(j string) bool { return j != dead && j != job }) })
		for _, j := range []string{dead, job} {
			if killed || err != nil {
				m.doubt(j, nil)
			} else {
				m.release(j)
			}
		}
	case what < 97:
		key := modelKeys[random.IntN(len(modelKeys))]
		// Nobody can tell what somebody did to a value that cannot be read,
		// and what is done in the middle of a change may be taken for it.
		if kindOf(key) == "lock" || m.anyUnsure(key) {
			return
		}
		value := fmt.Sprint(1000 + 2*random.IntN(1000))
		w.machine.values[key] = value
		m.base[key] = value
		for i := range m.holders[key] {
			m.holders[key][i].lost = true
			counts["taken over"]++
		}
	default:
		counts["rebooted"]++
		power := random.IntN(2) == 0
		rebootOne(w, m, random, power)
		if power {
			counts["power cut"]++
		}
	}
	if w.points.dead && random.IntN(8) == 0 {
		counts["power cut"]++
		counts["rebooted"]++
		rebootOne(w, m, random, true)
	}
}

func applyOne(w *world, m *model, counts map[string]int, job string, want map[string]string, do func() error) {
	conflict, maybe := m.conflict(job, want)
	otherwise := m.otherwise(job, want)
	unsure := m.unsure[job]
	var err error
	if w.points.run(func() { err = do() }) {
		counts["killed"]++
		m.doubt(job, want)
		return
	}
	held := (*HeldError)(nil)
	switch {
	case err == nil:
		counts["applied"]++
		if conflict {
			w.t.Fatalf("job %s got %v although others hold %v", job, want, m.holders)
		}
		if unsure {
			// What the ledger knew of other keys may still be held.
			for key := range want {
				m.holders[key] = slices.DeleteFunc(m.holders[key], func(h hold) bool { return h.job == job })
			}
			m.doubt(job, want)
			return
		}
		if otherwise {
			m.release(job)
		}
		m.apply(job, want)
	case errors.As(err, &held):
		counts["refused"]++
		if !conflict && !maybe {
			w.t.Fatalf("job %s was refused %v: %v; holders %v", job, want, err, m.holders)
		}
		if otherwise {
			if unsure {
				m.doubt(job, nil)
			} else {
				m.release(job)
			}
		}
	default:
		counts["failed"]++
		if !errors.Is(err, w.points.fail) || w.points.failed == "" {
			w.t.Fatalf("job %s failed without a reason: %v", job, err)
		}
		failed := (*ApplyError)(nil)
		if errors.As(err, &failed) && failed.Clean() {
			m.release(job)
			return
		}
		if m.held(job) || failed != nil {
			m.doubt(job, want)
		}
	}
}

func rebootOne(w *world, m *model, random *rand.Rand, power bool) {
	w.reboot(random, power, random.IntN(2) == 0)
	for _, key := range modelKeys {
		if k := kindOf(key); k != "kept" && k != "mig" {
			m.base[key] = standard(key)
			m.holders[key] = nil
		}
	}
	for _, hs := range maps.Clone(m.holders) {
		for _, h := range hs {
			m.unsure[h.job] = true
		}
	}
}
