package sample

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// driver is a source that knows one device.
type driver struct {
	reads  int
	closed *bool
}

func (d *driver) Read(device string, all bool) Reading {
	d.reads++
	r := Reading{Device: device, Levels: map[Level]Range{PowerWatts: {Mean: float64(d.reads), Max: 1}}}
	if all {
		r.Counters = map[Counter]float64{ECCCorrected: 2}
	}
	return r
}

func (d *driver) Close() error { *d.closed = true; return nil }

func TestServe(t *testing.T) {
	var answers strings.Builder
	closed := false
	questions := json.NewDecoder(strings.NewReader(`{"devices":["a","b"]}` + "\n" + `{"devices":["a"],"all":true}` + "\n"))
	if err := Serve(&driver{closed: &closed}, questions, &answers); err != nil || !closed {
		t.Errorf("%v, closed %v", err, closed)
	}
	var got []Answer
	for decoder := json.NewDecoder(strings.NewReader(answers.String())); decoder.More(); {
		var a Answer
		if err := decoder.Decode(&a); err != nil {
			t.Fatal(err)
		}
		got = append(got, a)
	}
	if len(got) != 2 || len(got[0].Readings) != 2 || got[0].Readings[1].Device != "b" || got[0].Readings[1].Counters != nil ||
		got[1].Readings[0].Levels[PowerWatts].Mean != 3 || got[1].Readings[0].Counters[ECCCorrected] != 2 || got[1].Used <= 0 {
		t.Errorf("%+v", got)
	}
	if err := Serve(&driver{closed: &closed}, json.NewDecoder(strings.NewReader("x")), &answers); err == nil {
		t.Error("garbage is no question")
	}
}

// child returns a child that is a shell script.
func child(t *testing.T, script string) (*Child, *strings.Builder) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nread order\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	c := &Child{Path: path, Argument: "--worker", Order: []byte("{}"), Log: slog.New(slog.NewTextHandler(&log, nil))}
	t.Cleanup(c.End)
	return c, &log
}

func TestChild(t *testing.T) {
	c, log := child(t, `echo $$ >&2; while read q; do echo "{\"readings\": [{\"device\": \"a\"}], \"used_seconds\": 0.5}"; done`)
	for range 3 {
		a, err := c.Ask(Question{Devices: []string{"a"}}, time.Minute)
		if err != nil || a.Used != 0.5 || len(a.Readings) != 1 || !c.Running() {
			t.Fatalf("%+v, %v", a, err)
		}
	}
	c.End()
	if c.Running() {
		t.Error("it goes on")
	}
	if got := strings.Count(log.String(), "work=sample"); got != 1 {
		t.Errorf("%d lines of one child:\n%s", got, log)
	}
	if _, err := c.Ask(Question{}, time.Minute); err != nil {
		t.Errorf("after its end: %v", err)
	}
}

// Every way in which it can fail is an error, and the next question has a new child.
func TestChildFails(t *testing.T) {
	for name, script := range map[string]string{
		"ends":          "exit 3",
		"ends at once":  "read q; exit 0",
		"garbage":       "read q; echo no; cat >/dev/null",
		"too much":      "read q; head -c 5000000 /dev/zero | tr '\\0' x; cat >/dev/null",
		"crashes":       "read q; kill -SEGV $$",
		"hangs":         "read q; trap '' TERM; while :; do sleep 0.01; done",
		"closes output": "exec >&-; read q; exec sleep 600",
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := child(t, script)
			limit := 20 * time.Second
			if name == "hangs" {
				limit = 50 * time.Millisecond
			}
			for range 2 {
				if a, err := c.Ask(Question{Devices: []string{"a"}}, limit); err == nil || errors.Is(err, ErrStuck) || c.Running() {
					t.Errorf("%+v, %v", a, err)
				}
			}
		})
	}
	t.Run("cannot start", func(t *testing.T) {
		c := &Child{Path: "/nonexistent"}
		if _, err := c.Ask(Question{}, time.Minute); err == nil {
			t.Error("no error")
		}
	})
	t.Run("stuck", func(t *testing.T) {
		stuck := make(chan struct{})
		c := &Child{Path: "/nonexistent", stuck: stuck}
		if _, err := c.Ask(Question{}, time.Minute); !errors.Is(err, ErrStuck) {
			t.Errorf("%v", err)
		}
		close(stuck)
		if _, err := c.Ask(Question{}, time.Minute); err == nil || errors.Is(err, ErrStuck) {
			t.Errorf("after it has ended: %v", err)
		}
	})
}

func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), SocketName)
	if _, err := Ask(path, Hold, "1", time.Minute); err != nil {
		t.Errorf("without a socket: %v", err)
	}
	for range 2 { // the second replaces what the first has left
		l, err := Listen(path)
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil || st.Mode&0o777 != 0o600 {
			t.Errorf("mode %o, %v", st.Mode, err)
		}
		asked := make(chan func(), 1)
		go func() {
			end, err := Ask(path, Hold, "4711", time.Minute)
			if err != nil {
				t.Error(err)
			}
			asked <- end
		}()
		r := <-l.Requests
		if r.Verb != Hold || r.Job != "4711" {
			t.Errorf("%+v", r)
		}
		select {
		case <-asked:
			t.Error("it did not wait for the answer")
		default:
		}
		r.Done()
		end := <-asked
		select {
		case <-l.Ends:
			t.Error("it has ended by itself")
		default:
		}
		end()
		<-l.Ends
		// Who begins does not wait.
		if _, err := Ask(path, Begin, "1", time.Minute); err != nil {
			t.Error(err)
		}
		if r := <-l.Requests; r.Verb != Begin {
			t.Errorf("%+v", r)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Ask(path, Last, "1", time.Minute); err != nil { // nobody listens
		t.Error(err)
	}
}

// An agent that does not answer is waited for no longer than so long.
func TestSocketHangs(t *testing.T) {
	path := filepath.Join(t.TempDir(), SocketName)
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	end, err := Ask(path, Last, "1", 50*time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("%v", err)
	}
	end()
}
