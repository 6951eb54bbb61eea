package program

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"gputune/internal/journal/journaltest"
)

// Each line goes to slurmd and to the journal, and what a user has written into it
// is no field of its own there.
func TestJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	socket := journaltest.Listen(t, path)
	var output bytes.Buffer
	n := &named{name: "gputune-prolog", to: &output, journal: newJournal(path, "gputune-prolog", "42")}
	if _, err := n.Write([]byte("job 42: one\njob 42: t\x01wo\n")); err != nil {
		t.Fatal(err)
	}
	if want := "gputune-prolog: job 42: one\ngputune-prolog: job 42: t\x01wo\n"; output.String() != want {
		t.Errorf("slurmd gets %q, want %q", output.String(), want)
	}
	for _, message := range []string{"job 42: one", "job 42: t wo"} {
		got := make([]byte, 4096)
		length, err := socket.Read(got)
		if want := "MESSAGE=" + message + "\nPRIORITY=6\nSYSLOG_IDENTIFIER=gputune-prolog\nGPUTUNE_JOB=42\n"; err != nil || string(got[:length]) != want {
			t.Errorf("the journal gets %q, %v, want %q", got[:length], err, want)
		}
	}
	if fields := newJournal(path, "gputune-prolog", "4\nPRIORITY=0").Fields; len(fields) != 1 {
		t.Errorf("fields %q", fields)
	}
}

// A journal that does not read, has gone or never was keeps nobody waiting, and slurmd
// has the lines all the same.
func TestJournalThatDoesNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	socket := journaltest.Listen(t, path)
	var output bytes.Buffer
	n := &named{name: "x", to: &output, journal: newJournal(path, "x", "")}
	const lines = 5000 // more than a socket holds
	for range lines {
		if _, err := n.Write([]byte(strings.Repeat("x", 1000) + "\n")); err != nil {
			t.Fatal(err)
		}
	}
	if got := bytes.Count(output.Bytes(), []byte("\n")); got != lines || n.journal.Lost() == 0 {
		t.Errorf("%d lines of %d, the journal lost %d", got, lines, n.journal.Lost())
	}
	socket.Close()
	n.journal = newJournal(filepath.Join(t.TempDir(), "none"), "x", "")
	if _, err := n.Write([]byte("x\n")); err != nil {
		t.Error(err)
	}
	if newJournal("", "x", "") != nil {
		t.Error("a journal nowhere")
	}
}
