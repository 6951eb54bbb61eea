package recovery

import (
	"fmt"
	"testing"
	"time"
)

func TestWatch(t *testing.T) {
	base := time.Now()
	written := base.Add(-time.Hour)
	one, again, report := Trace{"1", written}, Trace{"1", base}, Trace{"1", written.Add(time.Second)}
	nobody, running := map[string]string{}, map[string]string{"1": "slurmstepd 7"}
	type look struct {
		at    time.Duration
		left  []Trace
		here  map[string]string
		ended string
		next  time.Duration
	}
	for name, looks := range map[string][]look{
		"one look tells nothing":         {{0, []Trace{one}, nobody, "[]", 30 * time.Second}},
		"ended":                          {{0, []Trace{one}, nobody, "[]", 30 * time.Second}, {31 * time.Second, []Trace{one}, nobody, "[1]", 0}},
		"it tells how long is left":      {{0, []Trace{one}, nobody, "[]", 30 * time.Second}, {20 * time.Second, []Trace{one}, nobody, "[]", 10 * time.Second}},
		"seen in between":                {{0, []Trace{one}, nobody, "[]", 30 * time.Second}, {20 * time.Second, []Trace{one}, running, "[]", 0}, {40 * time.Second, []Trace{one}, nobody, "[]", 30 * time.Second}},
		"its Prolog ran in between":      {{0, []Trace{one}, nobody, "[]", 30 * time.Second}, {40 * time.Second, []Trace{again}, nobody, "[]", 30 * time.Second}},
		"one of two traces is new":       {{0, []Trace{one}, nobody, "[]", 30 * time.Second}, {40 * time.Second, []Trace{one, report}, nobody, "[]", 30 * time.Second}, {71 * time.Second, []Trace{one, report}, nobody, "[1]", 0}},
		"put back by its Epilog":         {{0, []Trace{one}, nobody, "[]", 30 * time.Second}, {40 * time.Second, nil, nobody, "[]", 0}},
		"what failed is tried each time": {{0, []Trace{one}, nobody, "[]", 30 * time.Second}, {40 * time.Second, []Trace{one}, nobody, "[1]", 0}, {60 * time.Second, []Trace{one}, nobody, "[1]", 0}},
	} {
		w := Watch{Grace: 30 * time.Second}
		for i, l := range looks {
			ended, next := w.Look(base.Add(l.at), l.left, l.here)
			if got := fmt.Sprint(ended); got != l.ended || next != l.next {
				t.Errorf("%s, look %d: %s and %v, want %s and %v", name, i, got, next, l.ended, l.next)
			}
		}
	}
	w := Watch{Grace: time.Second}
	w.Look(base, []Trace{one}, nobody)
	w.Forget()
	if ended, _ := w.Look(base.Add(time.Minute), []Trace{one}, nobody); len(ended) > 0 {
		t.Errorf("a look that could not tell counted: %v", ended)
	}
}
