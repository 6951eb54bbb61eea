package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coreos/go-systemd/v22/daemon"

	"gputune/conf"
	"gputune/internal/job"
	"gputune/internal/journal"
	"gputune/internal/journal/journaltest"
	"gputune/internal/metrics"
)

func TestJournalFields(t *testing.T) {
	var got journal.Entry
	log := slog.New(journalHandler{send: func(e journal.Entry) error {
		got = e
		return nil
	}})
	log.With("job", "42", "gpu", "").WithGroup("x").Warn("put back", "Setting.name", "power.limit")
	want := journal.Entry{
		Message: "put back: job 42, x_Setting.name power.limit", Priority: journal.Warning,
		Fields: []journal.Field{{Name: "GPUTUNE_job", Value: "42"}, {Name: "GPUTUNE_x_Setting.name", Value: "power.limit"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	for level, want := range map[slog.Level]journal.Priority{slog.LevelInfo: journal.Info, slog.LevelError: journal.Error} {
		if priority(level) != want {
			t.Errorf("%v: %d", level, priority(level))
		}
	}
	if log.Enabled(t.Context(), slog.LevelDebug) {
		t.Error("debug lines are for nobody")
	}
}

// The log goes to the journal where standard error does, and only there.
func TestLogger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	journaltest.Listen(t, path)
	var stderr unix.Stat_t
	if err := unix.Fstat(2, &stderr); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		stream, socket string
		journal        bool
	}{
		"a service":       {fmt.Sprintf("%d:%d", stderr.Dev, stderr.Ino), path, true},
		"a shell's child": {"", path, false},
		"redirected":      {fmt.Sprintf("%d:%d", stderr.Dev, stderr.Ino+1), path, false},
		"not wanted":      {fmt.Sprintf("%d:%d", stderr.Dev, stderr.Ino), "", false},
		"not there":       {fmt.Sprintf("%d:%d", stderr.Dev, stderr.Ino), path + "x", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("JOURNAL_STREAM", c.stream)
			var lines written
			log, to := Logger(&lines, c.socket)
			log.Info("x")
			if (to != nil) != c.journal || strings.Contains(lines.String(), "msg=x") == c.journal {
				t.Errorf("journal %v, lines %q", to, lines.String())
			}
			if to != nil {
				to.Close()
			}
		})
	}
}

// failing is a Worker that fails differently each time, so that each round logs,
// until it is quiet.
type failing struct {
	calls atomic.Int64
	quiet atomic.Bool
}

func (f *failing) Do(context.Context, Work, any) error {
	if calls := f.calls.Add(1); !f.quiet.Load() {
		return fmt.Errorf("failure %d", calls)
	}
	return errors.New("as before")
}

// manager is a service manager that counts what it hears.
type manager struct{ patted, ready atomic.Int64 }

func (m *manager) Notify(state string) {
	switch state {
	case daemon.SdNotifyWatchdog:
		m.patted.Add(1)
	case daemon.SdNotifyReady:
		m.ready.Add(1)
	}
}

func (*manager) Watchdog() time.Duration { return 3 * time.Millisecond }

// A journal that does not read keeps neither the loop nor the watchdog waiting. When
// it reads again, it hears how much it has missed.
func TestRunWithStuckJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	socket := journaltest.Listen(t, path)
	to := &journal.Writer{Path: path, Patience: logPatience}
	for to.Lost() == 0 {
		_ = to.Send(journal.Entry{Message: "filler"})
	}
	root := t.TempDir()
	site := fmt.Sprintf("[paths]\nmachine = %q\nstate = %q\nrun = %q\nsnapshot = \"/snapshot\"\n[agent]\ninterval = \"1s\"\nlisten = \"\"\ndrift_interval = \"off\"\n",
		root, filepath.Join(root, "state"), filepath.Join(root, "run"))
	config := filepath.Join(root, "gputune.toml")
	if err := os.WriteFile(config, []byte(site), 0o644); err != nil {
		t.Fatal(err)
	}
	worker, notify := &failing{}, &manager{}
	a := &Agent{
		Config: config, Host: &job.Host{Root: root, Now: time.Now, Output: t.Output()}, Worker: worker, Notify: notify,
		Log: slog.New(journalHandler{send: to.Send}), Journal: to, Metrics: metrics.New("x"),
	}
	a.Load()
	if err := a.Host.SiteError; err != nil {
		t.Fatal(err)
	}
	// Until it reads the configuration again.
	a.Host.Site.Agent.Interval = conf.Duration(time.Millisecond)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	reload := make(chan os.Signal)
	go func() { ended <- a.Run(ctx, reload) }()
	until := func(what string, done func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: never: %d rounds, %d pats, %d lines lost", what, worker.calls.Load(), notify.patted.Load(), to.Lost())
			}
		}
	}
	until("the loop goes on", func() bool { return worker.calls.Load() > 20 && to.Lost() > 20 })
	patted, calls := notify.patted.Load(), worker.calls.Load()
	until("and the watchdog hears it", func() bool { return notify.patted.Load() > patted+20 && worker.calls.Load() > calls+20 })
	// From now on there is nothing to log, but for reading the configuration.
	worker.quiet.Store(true)
	calls = worker.calls.Load()
	until("rounds without a line", func() bool { return worker.calls.Load() > calls+3 })
	lost := to.Lost()
	reload <- unix.SIGHUP
	until("and it can be told to reload", func() bool { return notify.ready.Load() == 2 && to.Lost() > lost })

	told := make(chan string, 1)
	go func() {
		text := make([]byte, 1<<16)
		for {
			n, err := socket.Read(text)
			if err != nil {
				return
			}
			if line := string(text[:n]); strings.Contains(line, "messages are lost, since ") {
				select {
				case told <- line:
				default:
				}
			}
		}
	}()
	select {
	case line := <-told:
		if !strings.Contains(line, "\nGPUTUNE_LOST=") {
			t.Errorf("no field in %q", line)
		}
	case <-time.After(time.Minute):
		t.Error("what was lost is not told")
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
