package program

import (
	"bytes"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

func listen(t *testing.T) (*net.UnixConn, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "socket")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	return socket, path
}

// Each line goes to slurmd and to the journal, and what a user has written into it
// is no field of its own there.
func TestJournal(t *testing.T) {
	socket, path := listen(t)
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
	if fields := newJournal(path, "gputune-prolog", "4\nPRIORITY=0").fields; strings.Contains(fields, "GPUTUNE_JOB") {
		t.Errorf("fields %q", fields)
	}
}

// A journal that does not read, has gone or never was keeps nobody waiting.
func TestJournalThatDoesNotRead(t *testing.T) {
	socket, path := listen(t)
	j := newJournal(path, "x", "")
	for range 5000 { // more than a socket holds
		j.send(strings.Repeat("x", 1000))
	}
	socket.Close()
	j.send("x")
	newJournal(filepath.Join(t.TempDir(), "none"), "x", "").send("x")
	newJournal("", "x", "").send("x")
}
