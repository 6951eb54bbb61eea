package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gputune/internal/journal/journaltest"
)

// decode reads a datagram as the journal does.
func decode(text []byte) ([]Field, error) {
	var fields []Field
	for len(text) > 0 {
		line, rest, whole := bytes.Cut(text, []byte("\n"))
		if !whole {
			return nil, fmt.Errorf("%q: not ended", line)
		}
		if name, value, found := bytes.Cut(line, []byte("=")); found {
			fields = append(fields, Field{string(name), string(value)})
			text = rest
			continue
		}
		if len(rest) < 8 {
			return nil, fmt.Errorf("%q: no length", line)
		}
		length := binary.LittleEndian.Uint64(rest)
		rest = rest[8:]
		if uint64(len(rest)) <= length || rest[length] != '\n' {
			return nil, fmt.Errorf("%q: length %d of %d", line, length, len(rest))
		}
		fields = append(fields, Field{string(line), string(rest[:length])})
		text = rest[length+1:]
	}
	return fields, nil
}

// next returns the fields of the next entry, each name's last.
func next(t *testing.T, socket *net.UnixConn) map[string]string {
	t.Helper()
	text := make([]byte, 1<<20)
	if err := socket.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	n, err := socket.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	list, err := decode(text[:n])
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]string{}
	for _, f := range list {
		fields[f.Name] = f.Value
	}
	return fields
}

// fill has the journal's queue full, and one entry lost. It returns how many it took.
func fill(t *testing.T, w *Writer) (taken int) {
	t.Helper()
	for ; taken < 1<<20; taken++ {
		if err := w.Send(Entry{Message: strconv.Itoa(taken)}); err != nil {
			if !errors.Is(err, unix.EAGAIN) || !strings.HasPrefix(err.Error(), "journal "+w.Path+": message lost: ") {
				t.Fatal(err)
			}
			return taken
		}
	}
	t.Fatal("a queue without an end")
	return taken
}

// used is the processor time of this process.
func used(t *testing.T) time.Duration {
	t.Helper()
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

func TestSend(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	socket := journaltest.Listen(t, path)
	w := &Writer{Path: path, Fields: []Field{{"SYSLOG_IDENTIFIER", "x"}}}
	if err := w.Send(Entry{"one\ntwo", Warning, []Field{{"GPUTUNE_JOB", "4\n2"}}}); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(next(t, socket)), "map[GPUTUNE_JOB:4\n2 MESSAGE:one\ntwo PRIORITY:4 SYSLOG_IDENTIFIER:x]"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if err := w.Close(); err != nil || w.Lost() != 0 {
		t.Errorf("%v, %d lost", err, w.Lost())
	}
}

var told = regexp.MustCompile(`^(\d+) messages are lost, since (\S+): the journal did not take them$`)

// A journal that does not read costs entries, and neither time nor the processor. It
// hears of them when it reads again.
func TestStuck(t *testing.T) {
	for name, patience := range map[string]time.Duration{"none": 0, "some": 100 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "socket")
			socket := journaltest.Listen(t, path)
			w := &Writer{Path: path, Patience: patience}
			before := time.Now()
			taken := fill(t, w)
			if w.since.Before(before) || w.since.After(time.Now()) {
				t.Errorf("lost since %v, want from %v to now", w.since, before)
			}
			w.since = w.since.Add(-time.Hour) // so long has it been
			since := w.since.UTC().Format(time.RFC3339)
			const more = 1000
			for range more {
				if err := w.Send(Entry{Message: "lost"}); !errors.Is(err, unix.EAGAIN) {
					t.Fatal(err)
				}
			}
			if err := w.TellLost(); !errors.Is(err, unix.EAGAIN) {
				t.Errorf("a queue that is full takes what is lost: %v", err)
			}
			if w.Lost() != more+1 {
				t.Errorf("%d lost, want %d", w.Lost(), more+1)
			}
			for i := range taken {
				if got := next(t, socket)["MESSAGE"]; got != strconv.Itoa(i) {
					t.Fatalf("%q, want %d", got, i)
				}
			}
			for _, message := range []string{"again", "and again"} {
				if err := w.Send(Entry{Message: message}); err != nil {
					t.Fatal(err)
				}
			}
			line := next(t, socket)
			match := told.FindStringSubmatch(line["MESSAGE"])
			if match == nil || match[1] != strconv.Itoa(more+1) || line["GPUTUNE_LOST"] != match[1] || line["PRIORITY"] != "4" {
				t.Fatalf("%q", line)
			}
			if match[2] != since {
				t.Errorf("since %s, want %s", match[2], since)
			}
			for _, message := range []string{"again", "and again"} {
				if got := next(t, socket)["MESSAGE"]; got != message {
					t.Errorf("%q, want %q", got, message)
				}
			}
			if w.Lost() != more+1 {
				t.Errorf("%d lost of all time, want %d", w.Lost(), more+1)
			}
		})
	}
}

// One entry that is lost, and somebody who has nothing else to say.
func TestTellLost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	socket := journaltest.Listen(t, path)
	for name, tell := range map[string]func(*Writer) error{"TellLost": (*Writer).TellLost, "Close": (*Writer).Close} {
		t.Run(name, func(t *testing.T) {
			w := &Writer{Path: path}
			taken := fill(t, w)
			if err := tell(w); !errors.Is(err, unix.EAGAIN) {
				t.Errorf("%v", err)
			}
			for range taken {
				next(t, socket)
			}
			for range 2 { // once
				if err := tell(w); err != nil {
					t.Error(err)
				}
			}
			if err := w.Send(Entry{Message: "x"}); err != nil {
				t.Error(err)
			}
			if got := next(t, socket)["MESSAGE"]; !strings.HasPrefix(got, "1 message is lost, since ") {
				t.Errorf("%q", got)
			}
			if got := next(t, socket)["MESSAGE"]; got != "x" {
				t.Errorf("%q", got)
			}
			w.Close()
		})
	}
}

// Patience is slept through, not spent on the processor, and once: a journal that
// takes an entry now and then is not waited for each time.
func TestPatience(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	socket := journaltest.Listen(t, path)
	w := &Writer{Path: path, Patience: 500 * time.Millisecond}
	begin, before := time.Now(), used(t)
	fill(t, w)
	if busy := used(t) - before; busy > w.Patience/2 {
		t.Errorf("%v on the processor in %v", busy, w.Patience)
	}
	hasty := w.hasty
	if hasty.Before(begin.Add(101 * w.Patience)) {
		t.Errorf("waits again %v after it began to wait for %v", hasty.Sub(begin), w.Patience)
	}
	for range 3 {
		next(t, socket)
		next(t, socket)
		fill(t, w)
	}
	if !w.hasty.Equal(hasty) {
		t.Error("it waited again")
	}
	// What is known to be stuck is not waited for, however long ago that was.
	w.hasty = time.Time{}
	if err := w.Send(Entry{Message: "x"}); !errors.Is(err, unix.EAGAIN) || !w.hasty.IsZero() {
		t.Errorf("%v, and it waited: %v", err, !w.hasty.IsZero())
	}
}

// A journal that is busy, and reads in time, has everything.
func TestBusy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	socket := journaltest.Listen(t, path)
	const entries = 3000 // more than a queue holds
	ended := make(chan int)
	go func() {
		text := make([]byte, 1<<16)
		read := 0
		for ; read < entries; read++ {
			if read%16 == 0 {
				time.Sleep(time.Millisecond)
			}
			if _, err := socket.Read(text); err != nil {
				break
			}
		}
		ended <- read
	}()
	w := &Writer{Path: path, Patience: time.Minute}
	waited := 0
	for range entries {
		if err := w.Send(Entry{Message: "x"}); err != nil {
			t.Fatal(err)
		}
		if !w.hasty.IsZero() {
			waited++
			w.hasty = time.Time{}
		}
	}
	if read := <-ended; read != entries || waited == 0 {
		t.Errorf("%d of %d, waited for %d", read, entries, waited)
	}
}

// A journal that is started anew is connected to again, and one that comes late is found.
func TestRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	w := &Writer{Path: path}
	if err := w.Connect(); !errors.Is(err, unix.ENOENT) {
		t.Errorf("%v", err)
	}
	if err := w.Send(Entry{Message: "too early"}); !errors.Is(err, unix.ENOENT) {
		t.Errorf("%v", err)
	}
	first := journaltest.Listen(t, path)
	if err := w.Send(Entry{Message: "one"}); err != nil {
		t.Fatal(err)
	}
	if got := next(t, first)["MESSAGE"]; !strings.HasPrefix(got, "1 message is lost") {
		t.Errorf("%q", got)
	}
	if got := next(t, first)["MESSAGE"]; got != "one" {
		t.Errorf("%q", got)
	}
	first.Close()
	for range 2 {
		if err := w.Send(Entry{Message: "nobody there"}); err == nil {
			t.Error("taken by nobody")
		}
	}
	second := journaltest.Listen(t, path)
	if err := w.Send(Entry{Message: "two"}); err != nil {
		t.Fatal(err)
	}
	if got := next(t, second)["MESSAGE"]; !strings.HasPrefix(got, "2 messages are lost") {
		t.Errorf("%q", got)
	}
	if got := next(t, second)["MESSAGE"]; got != "two" {
		t.Errorf("%q", got)
	}
	second.Close()
	third := journaltest.Listen(t, path) // nothing was sent in between
	if err := w.Send(Entry{Message: "three"}); err != nil {
		t.Fatal(err)
	}
	if got := next(t, third)["MESSAGE"]; got != "three" || w.Lost() != 3 {
		t.Errorf("%q, %d lost", got, w.Lost())
	}
}

// What is too large for the socket is cut, and says so.
func TestTooLarge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	socket := journaltest.Listen(t, path)
	w := &Writer{Path: path, Fields: []Field{{"SYSLOG_IDENTIFIER", "x"}}}
	if err := w.Connect(); err != nil {
		t.Fatal(err)
	}
	const size = 3 << 20
	for _, c := range []struct{ buffer, longest int }{{100 << 10, 64 << 10}, {20 << 10, 16 << 10}, {1, 1 << 10}} {
		if err := unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, c.buffer); err != nil {
			t.Fatal(err)
		}
		if err := w.Send(Entry{strings.Repeat("m", size), Info, []Field{{"GPUTUNE_JOB", "42"}, {"GPUTUNE_ERROR", strings.Repeat("e", 1<<10)}}}); err != nil {
			t.Fatal(err)
		}
		got := next(t, socket)
		if want := strings.Repeat("m", c.longest) + fmt.Sprintf(" [cut: %d bytes in all]", size); got["MESSAGE"] != want {
			t.Errorf("%d bytes, that end with %q, want %d", len(got["MESSAGE"]), got["MESSAGE"][max(0, len(got["MESSAGE"])-40):], len(want))
		}
		if got["GPUTUNE_JOB"] != "42" || got["GPUTUNE_ERROR"] != strings.Repeat("e", 1<<10) || got["SYSLOG_IDENTIFIER"] != "x" {
			t.Errorf("short fields are cut: %.200q", got)
		}
	}
	var fields []Field
	for range 5000 {
		fields = append(fields, Field{"A", strings.Repeat("a", 200)})
	}
	if err := w.Send(Entry{"m", Info, fields}); !errors.Is(err, unix.EMSGSIZE) || w.Lost() != 1 {
		t.Errorf("%v, %d lost", err, w.Lost())
	}
}

// Entries of many goroutines are whole, and taken or counted as lost, each of them.
func TestConcurrent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	socket := journaltest.Listen(t, path)
	w := &Writer{Path: path}
	const writers, each = 50, 100
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			for range each {
				_ = w.Send(Entry{"of " + strconv.Itoa(i) + "\n" + strings.Repeat("x", i), Info, []Field{{"I", strconv.Itoa(i)}}})
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		all.Wait()
		for w.TellLost() != nil {
			time.Sleep(time.Millisecond)
		}
		for w.Send(Entry{Message: "end"}) != nil {
			time.Sleep(time.Millisecond)
		}
		close(ended)
	}()
	taken, missed := 0, 0
	for {
		got := next(t, socket)
		if got["MESSAGE"] == "end" {
			break
		}
		if number, found := got["GPUTUNE_LOST"]; found {
			n, err := strconv.Atoi(number)
			if err != nil {
				t.Fatal(err)
			}
			missed += n
			continue
		}
		taken++
		if i, err := strconv.Atoi(got["I"]); err != nil || got["MESSAGE"] != "of "+got["I"]+"\n"+strings.Repeat("x", i) {
			t.Fatalf("%q", got)
		}
	}
	<-ended
	if lost := w.Lost(); taken+missed < writers*each || taken+lost < writers*each || missed > lost {
		t.Errorf("%d taken, %d told as lost, %d lost, of %d", taken, missed, lost, writers*each)
	}
}

// Descriptors are neither kept nor given to children.
func TestDescriptors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	socket := journaltest.Listen(t, path)
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	before := open()
	w := &Writer{Path: path}
	for range 10 {
		if err := w.Send(Entry{Message: "x"}); err != nil {
			t.Fatal(err)
		}
		if flags, err := unix.FcntlInt(uintptr(w.fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("flags %#x, %v", flags, err)
		}
		if err := w.Close(); err != nil || open() != before {
			t.Errorf("%v, %d descriptors, were %d", err, open(), before)
		}
	}
	socket.Close()
	for range 10 {
		_ = w.Send(Entry{Message: "nobody there"})
	}
	if after := open() + 1; after != before {
		t.Errorf("%d descriptors, were %d", after, before)
	}
}
