package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gputune/conf"
)

func TestLock(t *testing.T) {
	run := filepath.Join(t.TempDir(), "gputune")
	unlock, err := Lock(run)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(run); err == nil || !strings.Contains(err.Error(), "another gputuned runs (pid ") {
		t.Errorf("%v", err)
	}
	unlock()
	unlock, err = Lock(run)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

// written collects what is logged.
type written struct {
	mu   sync.Mutex
	text strings.Builder
}

func (w *written) Write(text []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(text)
}

func (w *written) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// A child's answer, its lines, and every way in which it can fail.
func TestChildren(t *testing.T) {
	for name, c := range map[string]struct{ script, want, logged string }{
		"answers":  {`read order; echo line 1 >&2; echo "{\"gpus\": 3}"`, "", `msg="line 1" work=snapshot`},
		"crashes":  {"kill -SEGV $$", "snapshot: the process that does it: signal: segmentation fault", ""},
		"fails":    {"echo why >&2; exit 1", "snapshot: the process that does it: exit status 1", "msg=why"},
		"garbage":  {"echo no", "snapshot: answer: invalid character", ""},
		"is late":  {"sleep 600 & wait", "snapshot: " + errNotInTime.Error(), ""},
		"many":     {`i=0; while [ $i -lt 3000 ]; do echo "a line of some length $i" >&2; i=$((i+1)); done; echo "{\"gpus\": 3}"`, "", "length 2999"},
		"long":     {`head -c 300000 /dev/zero | tr '\0' x >&2; echo "{\"gpus\": 3}"`, "", ""},
		"no input": {`exec <&-; echo "{\"gpus\": 3}"`, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "program")
			// In a process group that ends with it: sleep holds no pipe.
			if err := os.WriteFile(path, []byte("#!/bin/sh\ntrap 'kill 0' TERM\n"+c.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			if name == "is late" { // a program that ends when it is told to
				if err := os.WriteFile(path, []byte("#!/bin/sh\nexec sleep 600\n"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			var log written
			children := &Children{Path: path, Argument: "--worker", Log: slog.New(slog.NewTextHandler(&log, nil))}
			limit := time.Minute
			if name == "is late" {
				limit = 50 * time.Millisecond
			}
			ctx, cancel := context.WithTimeoutCause(t.Context(), limit, errNotInTime)
			defer cancel()
			var answer Snapshot
			err := children.Do(ctx, Work{Role: RoleSnapshot}, &answer)
			if c.want == "" && (err != nil || answer.GPUs != 3) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, %+v, want %q", err, answer, c.want)
			}
			if !strings.Contains(log.String(), c.logged) {
				t.Errorf("no %q in\n%s", c.logged, log.String())
			}
		})
	}
	t.Run("hangs", func(t *testing.T) {
		stuck := make(chan struct{})
		children := &Children{Path: "/nonexistent", stuck: stuck}
		if err := children.Do(t.Context(), Work{Role: RoleHeld}, nil); !errors.Is(err, ErrStuck) {
			t.Errorf("%v", err)
		}
		close(stuck)
		if err := children.Do(t.Context(), Work{Role: RoleHeld}, nil); err == nil || errors.Is(err, ErrStuck) {
			t.Errorf("after it has ended: %v", err)
		}
	})
}

func TestSettingName(t *testing.T) {
	for key, want := range map[string]string{
		"gpu/GPU-1/power.limit": "power.limit", "gpu/GPU-1/clocks.sm": "clocks.sm", "no/such/key": "other", "x": "other",
	} {
		if got := settingName(key); got != want {
			t.Errorf("%s: %s, want %s", key, got, want)
		}
	}
}

// check is a Verifier that takes as long as the test wants.
type check struct{ calls, end chan struct{} }

func (c check) Check(context.Context, conf.Agent) (time.Duration, error) {
	c.calls <- struct{}{}
	<-c.end
	return time.Second, nil
}

// A check that hangs is given up, and none is begun beside it.
func TestBounded(t *testing.T) {
	inner := check{make(chan struct{}, 3), make(chan struct{})}
	b := &Bounded{Verifier: inner}
	site := conf.Agent{Deadline: conf.Duration(time.Millisecond)}
	for range 2 {
		if _, err := b.Check(t.Context(), site); !errors.Is(err, errChecking) {
			t.Errorf("%v, want %v", err, errChecking)
		}
	}
	if len(inner.calls) > 1 {
		t.Errorf("%d checks at once", len(inner.calls))
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	site.Deadline = conf.Duration(time.Hour)
	if _, err := (&Bounded{Verifier: inner}).Check(canceled, site); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	close(inner.end)
	for {
		cost, err := b.Check(t.Context(), site)
		if err == nil && cost == time.Second {
			break
		}
		if !errors.Is(err, errChecking) {
			t.Fatal(cost, err)
		}
	}
	if cost, err := b.Check(t.Context(), site); err != nil || cost != time.Second {
		t.Error(cost, err)
	}
}
