package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gputune/internal/setting"
)

// mustApply applies and returns "key action" of each outcome.
func mustApply(t *testing.T, w *world, job string, pairs ...string) []string {
	t.Helper()
	report, err := w.program(0).Apply(context.Background(), job, w.changes(pairs...))
	if err != nil {
		t.Fatalf("Apply of job %s: %v", job, err)
	}
	return actions(report)
}

func (w *world) changes(pairs ...string) []Change {
	var list []Change
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, w.machine.change(pairs[i], pairs[i+1]))
	}
	return list
}

func mustRelease(t *testing.T, w *world, job string) []string {
	t.Helper()
	report, err := w.program(0).Release(context.Background(), job)
	if err != nil {
		t.Fatalf("Release of job %s: %v", job, err)
	}
	return actions(report)
}

func actions(r Report) []string {
	list := []string{}
	for _, o := range r.Outcomes {
		list = append(list, o.Key+" "+string(o.Action))
	}
	return list
}

func same(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n got %q\nwant %q", what, got, want)
	}
}

func (w *world) want(key, value string) {
	w.t.Helper()
	if got := w.machine.get(key); got != value {
		w.t.Errorf("%s is %s, want %s", key, got, value)
	}
}

func TestOneJob(t *testing.T) {
	w := begin(t, nil)
	same(t, "apply", mustApply(t, w, "7", gpuA+"exact", "200", gpuA+"lock", "5-5", gpuB+"kept", "789", gpuA+"mig", "77"),
		gpuA+"exact set", gpuA+"lock set", gpuB+"kept already", gpuA+"mig set")
	w.want(gpuA+"exact", "200")
	w.want(gpuA+"lock", "5-5")
	w.want(gpuA+"mig", "76")
	if w.machine.writes[gpuB+"kept"] != 0 {
		t.Error("a value that was there was written")
	}
	same(t, "release", mustRelease(t, w, "7"),
		gpuA+"mig restored", gpuB+"kept unchanged", gpuA+"lock restored", gpuA+"exact restored")
	w.back("released", starting)
	same(t, "second release", mustRelease(t, w, "7"))
	if left := w.disk.left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestApplyAgain(t *testing.T) {
	w := begin(t, nil)
	mustApply(t, w, "7", gpuA+"exact", "200", gpuA+"mig", "77")
	written := w.points.passed
	same(t, "the same", mustApply(t, w, "7", gpuA+"exact", "200", gpuA+"mig", "77"), gpuA+"exact already", gpuA+"mig already")
	if w.points.passed > 2 || written < 10 {
		t.Errorf("%d accesses, the first time %d: want no more than the two reads", w.points.passed, written)
	}
	same(t, "more", mustApply(t, w, "7", gpuA+"exact", "200", gpuB+"exact", "1"), gpuA+"exact already", gpuB+"exact set")
	w.want(gpuA+"mig", "76")
	same(t, "otherwise", mustApply(t, w, "7", gpuA+"exact", "201"), gpuA+"exact set")
	w.want(gpuA+"mig", "10")
	w.want(gpuB+"exact", "100")
	mustRelease(t, w, "7")
	w.back("released", starting)
}

func TestTwoJobs(t *testing.T) {
	for _, order := range [][]string{{"7", "8"}, {"8", "7"}} {
		w := begin(t, nil)
		mustApply(t, w, "7", gpuA+"exact", "200", gpuA+"lock", "5-5", gpuA+"mig", "77")
		same(t, "join", mustApply(t, w, "8", gpuA+"exact", "200", gpuA+"lock", "5-5", gpuA+"mig", "77"),
			gpuA+"exact already", gpuA+"lock set", gpuA+"mig already")
		_, err := w.program(0).Apply(context.Background(), "9", w.changes(gpuB+"exact", "4", gpuA+"exact", "201"))
		held := (*HeldError)(nil)
		if !errors.As(err, &held) || held.Job != "7" && held.Job != "8" || held.Value != "200" || held.Key != gpuA+"exact" {
			t.Fatalf("another value: %v", err)
		}
		w.want(gpuB+"exact", "100")
		same(t, "first release", mustRelease(t, w, order[0]), gpuA+"mig still held", gpuA+"lock still held", gpuA+"exact still held")
		w.want(gpuA+"exact", "200")
		w.want(gpuA+"lock", "5-5")
		w.want(gpuA+"mig", "76")
		same(t, "last release", mustRelease(t, w, order[1]), gpuA+"mig restored", gpuA+"lock restored", gpuA+"exact restored")
		w.back("both released", starting)
	}
}

func TestSomebodyTakesOver(t *testing.T) {
	w := begin(t, nil)
	mustApply(t, w, "7", gpuA+"exact", "200", gpuA+"mig", "77")
	w.machine.values[gpuA+"exact"] = "555"
	w.machine.values[gpuA+"mig"] = "556"
	held, err := w.program(0).Held(context.Background())
	if err != nil || len(held) != 2 || !held[0].Drift || held[0].Current != "555" || held[0].Job != "7" || held[0].Prior != "123" {
		t.Fatalf("Held: %+v, %v", held, err)
	}
	same(t, "release", mustRelease(t, w, "7"), gpuA+"mig drifted", gpuA+"exact drifted")
	w.want(gpuA+"exact", "555")
	w.want(gpuA+"mig", "556")
}

// TestTakenOverAndRetaken: what somebody set while a job held a key is what the
// next job finds, and what is there in the end, in whatever order they end.
func TestTakenOverAndRetaken(t *testing.T) {
	for _, order := range [][]string{{"7", "8"}, {"8", "7"}} {
		w := begin(t, nil)
		mustApply(t, w, "7", gpuA+"exact", "200")
		w.machine.values[gpuA+"exact"] = "555"
		same(t, "retake", mustApply(t, w, "8", gpuA+"exact", "200"), gpuA+"exact retaken")
		mustRelease(t, w, order[0])
		mustRelease(t, w, order[1])
		w.want(gpuA+"exact", "555")
	}
}

func TestReboot(t *testing.T) {
	w := begin(t, nil)
	mustApply(t, w, "7", gpuA+"exact", "200", gpuB+"kept", "300", gpuA+"mig", "77", gpuA+"lock", "5-5")
	w.reboot(nil, false, false)
	w.machine.values[gpuA+"exact"] = "200" // set anew by the site's own start-up
	report, err := w.program(0).ReleaseAll(context.Background(), func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	same(t, "release", actions(report), gpuA+"lock forgotten", gpuA+"mig restored", gpuB+"kept restored", gpuA+"exact forgotten")
	w.want(gpuA+"exact", "200")
	w.want(gpuB+"kept", "789")
	w.want(gpuA+"mig", "10")
}

// TestRequeuedAfterReboot: the same job begins again before anybody has cleaned
// up what it left before the reboot.
func TestRequeuedAfterReboot(t *testing.T) {
	w := begin(t, nil)
	mustApply(t, w, "7", gpuA+"exact", "200", gpuB+"kept", "300")
	w.reboot(nil, false, false)
	same(t, "apply", mustApply(t, w, "7", gpuA+"exact", "200", gpuB+"kept", "300"), gpuA+"exact set", gpuB+"kept set")
	mustRelease(t, w, "7")
	w.want(gpuA+"exact", "100")
	w.want(gpuB+"kept", "789")
}

func TestReleaseAllKeepsTheLiving(t *testing.T) {
	w := begin(t, nil)
	mustApply(t, w, "7", gpuA+"exact", "200")
	mustApply(t, w, "8", gpuB+"exact", "300")
	report, err := w.program(0).ReleaseAll(context.Background(), func(job string) bool { return job == "8" })
	if err != nil {
		t.Fatal(err)
	}
	same(t, "release", actions(report), gpuA+"exact restored")
	w.want(gpuB+"exact", "300")
}

// TestCannotPutBack: a GPU that is lost stays in the ledger, and what else the
// job held is put back.
func TestCannotPutBack(t *testing.T) {
	w := begin(t, nil)
	mustApply(t, w, "7", gpuA+"exact", "200", gpuB+"exact", "300")
	w.machine.gone[gpuB+"exact"] = true
	report, err := w.program(0).Release(context.Background(), "7")
	if !errors.Is(err, setting.ErrGone) || !strings.Contains(err.Error(), "job 7: "+gpuB+"exact: put back 100: ") {
		t.Fatalf("error: %v", err)
	}
	same(t, "release", actions(report), gpuB+"exact failed", gpuA+"exact restored")
	w.want(gpuA+"exact", "123")
	clear(w.machine.gone)
	same(t, "again", mustRelease(t, w, "7"), gpuB+"exact restored")
	w.back("released", starting)
}

// TestWrongReadBack: a write that lands on another value is undone, and if that
// fails as well, by the next release, although nobody ever asked for the value.
func TestWrongReadBack(t *testing.T) {
	w := begin(t, nil)
	w.machine.broken[gpuA+"exact"] = "garbage"
	_, err := w.program(0).Apply(context.Background(), "7", w.changes(gpuB+"exact", "300", gpuA+"exact", "200"))
	failed := (*ApplyError)(nil)
	wrong := (*setting.ReadBackError)(nil)
	if !errors.As(err, &failed) || failed.Clean() || failed.Key != gpuA+"exact" || !errors.As(err, &wrong) {
		t.Fatalf("error: %v", err)
	}
	w.want(gpuA+"exact", "garbage")
	w.want(gpuB+"exact", "100")
	if _, err := w.program(0).Release(context.Background(), "7"); err == nil {
		t.Fatal("no error although it is still broken")
	}
	clear(w.machine.broken)
	same(t, "release", mustRelease(t, w, "7"), gpuA+"exact restored")
	w.back("released", starting)
}

func TestDeadline(t *testing.T) {
	w := begin(t, nil)
	ctx, cancel := context.WithCancel(context.Background())
	changes := w.changes(gpuA+"exact", "200", gpuB+"exact", "300")
	changes[0].Setting = &cancelling{fake: changes[0].Setting.(*fake), cancel: cancel}
	_, err := w.program(0).Apply(ctx, "7", changes)
	failed := (*ApplyError)(nil)
	if !errors.Is(err, context.Canceled) || !errors.As(err, &failed) || !failed.Clean() {
		t.Fatalf("error: %v", err)
	}
	w.back("cancelled", starting)
	if left := w.disk.left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// cancelling is a setting that takes until the deadline.
type cancelling struct {
	*fake
	cancel func()
}

func (c *cancelling) Write(ctx context.Context, value string) error {
	defer c.cancel()
	return c.fake.Write(ctx, value)
}

// TestValueBefore: a site that keeps a write-only setting at another value than
// its neutral one gets that back.
func TestValueBefore(t *testing.T) {
	w := begin(t, nil)
	changes := w.changes(gpuA+"lock", "5-5")
	changes[0].Before = "9-9"
	if _, err := w.program(0).Apply(context.Background(), "7", changes); err != nil {
		t.Fatal(err)
	}
	mustApply(t, w, "8", gpuA+"lock", "5-5")
	mustRelease(t, w, "7")
	w.want(gpuA+"lock", "5-5")
	mustRelease(t, w, "8")
	w.want(gpuA+"lock", "9-9")
}

// TestBaseline: a site's value goes back in place of the one that was found, but
// for a key that somebody took over.
func TestBaseline(t *testing.T) {
	for _, test := range []struct{ name, found, wanted, then, want string }{
		{"found otherwise", "1", "5", "", "9"},
		{"found as wanted", "5", "5", "", "9"},
		{"found at the baseline", "9", "5", "", "9"},
		{"wanted is the baseline", "1", "9", "", "9"},
		{"taken over", "1", "5", "7", "7"},
	} {
		w := begin(t, nil)
		key := gpuA + "exact"
		w.machine.values[key] = test.found
		changes := w.changes(key, test.wanted)
		changes[0].Before = "9"
		if _, err := w.program(0).Apply(context.Background(), "7", changes); err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		if test.then != "" {
			w.machine.values[key] = test.then
		}
		mustRelease(t, w, "7")
		if got := w.machine.get(key); got != test.want {
			t.Errorf("%s: %s afterwards, want %s", test.name, got, test.want)
		}
	}
}

// TestNeverWrittenNeverReset: where the record cannot be written, a write-only
// setting that somebody else may have set is not reset.
func TestNeverWrittenNeverReset(t *testing.T) {
	tried := 0
	for at := 1; ; at++ {
		w := begin(t, nil)
		w.machine.values[gpuA+"lock"] = "somebody's"
		l := w.program(0)
		w.points.failAt, w.points.fail = at, errFault
		_, _ = l.Apply(context.Background(), "7", w.changes(gpuA+"lock", "5-5"))
		if strings.HasPrefix(w.points.failed, "write "+gpuA) {
			break
		}
		if w.points.failed != "" {
			tried++
			w.want(gpuA+"lock", "somebody's")
		}
	}
	if tried < 8 {
		t.Errorf("only %d faults before the setting's", tried)
	}
}

func TestRefusals(t *testing.T) {
	for _, test := range []struct {
		name, job string
		pairs     []string
		want      string
	}{
		{"no job", "", []string{gpuA + "exact", "1"}, "job id"},
		{"a path", "../7", []string{gpuA + "exact", "1"}, "job id"},
		{"hidden", ".7", []string{gpuA + "exact", "1"}, "job id"},
		{"long", strings.Repeat("7", 65), []string{gpuA + "exact", "1"}, "job id"},
		{"NUL", "7\x00", []string{gpuA + "exact", "1"}, "job id"},
		{"twice", "7", []string{gpuA + "exact", "1", gpuA + "exact", "1"}, gpuA + "exact: asked for twice"},
		{"impossible", "7", []string{gpuA + "exact", "1", gpuB + "exact", "impossible"}, gpuB + "exact: impossible: a number"},
		{"key", "7", []string{"gpu/../exact", "1"}, "no such setting"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := begin(t, nil)
			_, err := w.program(0).Apply(context.Background(), test.job, w.changes(test.pairs...))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("error %v, want %q", err, test.want)
			}
			w.back("refused", starting)
			if len(w.disk.now) != 1 {
				t.Errorf("the disk was touched: %v", w.disk.now)
			}
		})
	}
}

// TestUnknownKey: a record of a newer program with a key that this one does not
// have is kept and reported.
func TestUnknownKey(t *testing.T) {
	w := begin(t, nil)
	mustApply(t, w, "7", gpuA+"exact", "200", gpuB+"kept", "300")
	l := w.program(0)
	resolve := l.resolve
	l.resolve = func(key string) (setting.Setting, error) {
		if key == gpuB+"kept" {
			return nil, fmt.Errorf("%w: %s", setting.ErrUnknownKey, key)
		}
		return resolve(key)
	}
	report, err := l.Release(context.Background(), "7")
	if !errors.Is(err, setting.ErrUnknownKey) {
		t.Fatalf("error: %v", err)
	}
	same(t, "release", actions(report), gpuB+"kept failed", gpuA+"exact restored")
	same(t, "with the newer program", mustRelease(t, w, "7"), gpuB+"kept restored")
	w.back("released", starting)
}
