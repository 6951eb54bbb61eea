// Package journal writes to systemd's journal and never waits for it: a journal that
// hangs, is slow or has gone costs messages, which are counted, and no time.
//
// An unconnected datagram socket, with sendto(2), cannot do that together with an
// event loop as Go's: poll(2) calls it writable whatever the receiver's queue holds,
// and each failed attempt wakes the poller again, so that a program that waits keeps
// a processor busy. A connected one is writable when there is room
// (unix_dgram_poll() in the kernel's net/unix/af_unix.c); and with MSG_DONTWAIT
// nothing waits at all.
package journal

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Writer writes entries to the journal. The fields that are exported are set before
// its first use; its methods may be called at the same time.
type Writer struct {
	// Path is the journal's socket.
	Path string
	// Fields are part of each entry.
	Fields []Field
	// Patience is how long an entry waits for a journal that is busy; 0: not at all.
	// Whoever has waited does not do so again for a hundred times as long, nor
	// while entries are lost: a journal that hangs takes 1 % of the time at most.
	Patience time.Duration

	mu      sync.Mutex
	fd      int
	open    bool
	hasty   time.Time // until then nothing waits
	lost    int       // since an entry was taken
	since   time.Time // when the first of them was
	dropped int       // of all time
}

// Send writes an entry. An error is an entry that is lost: the journal is not there
// or does not read. The first that it takes again comes after one that says how many
// were lost since when.
func (w *Writer) Send(e Entry) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.tellLost()
	if err == nil {
		err = w.write(e)
	}
	if err == nil {
		return nil
	}
	if w.lost == 0 {
		w.since = time.Now()
	}
	w.lost++
	w.dropped++
	return fmt.Errorf("journal %s: message lost: %w", w.Path, err)
}

// TellLost writes what was lost, if something was and the journal takes entries
// again. Send does so as well; this is for whoever has nothing else to say.
func (w *Writer) TellLost() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.tellLost(); err != nil {
		return fmt.Errorf("journal %s: %w", w.Path, err)
	}
	return nil
}

// Lost returns how many entries the journal did not take, ever.
func (w *Writer) Lost() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dropped
}

// Connect connects to the journal, as Send does where it has to. An error is a
// journal that is not there.
func (w *Writer) Connect() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.connect(); err != nil {
		return fmt.Errorf("journal %s: %w", w.Path, err)
	}
	return nil
}

// Close tells what was lost, if it can, and closes the socket. A later Send opens
// another.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.tellLost()
	w.disconnect()
	if err != nil {
		return fmt.Errorf("journal %s: %d messages lost: %w", w.Path, w.lost, err)
	}
	return nil
}

func (w *Writer) tellLost() error {
	if w.lost == 0 {
		return nil
	}
	number := strconv.Itoa(w.lost)
	what := number + " messages are"
	if w.lost == 1 {
		what = "1 message is"
	}
	err := w.write(Entry{
		Message:  fmt.Sprintf("%s lost, since %s: the journal did not take them", what, w.since.UTC().Format(time.RFC3339)),
		Priority: Warning,
		Fields:   []Field{{"GPUTUNE_LOST", number}},
	})
	if err == nil {
		w.lost = 0
	}
	return err
}

// write writes an entry, with its values cut as far as the socket needs it.
func (w *Writer) write(e Entry) error {
	e.Fields = append(w.Fields[:len(w.Fields):len(w.Fields)], e.Fields...)
	var err error
	for _, longest := range []int{0, 64 << 10, 16 << 10, 4 << 10, 1 << 10, 128} {
		if err = w.put(encode(e, longest)); !errors.Is(err, unix.EMSGSIZE) {
			return err
		}
	}
	return err
}

// attempts is how often an entry that waits is tried: each time that there is room,
// somebody else's may take it.
const attempts = 8

// put sends a datagram, and waits for room as Patience says.
func (w *Writer) put(text []byte) error {
	err := w.try(text)
	begin := time.Now()
	if !errors.Is(err, unix.EAGAIN) || w.Patience == 0 || w.lost > 0 || begin.Before(w.hasty) {
		return err
	}
	for range attempts {
		if !w.room(begin.Add(w.Patience)) {
			break
		}
		if err = w.try(text); !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	end := time.Now()
	w.hasty = end.Add(100 * end.Sub(begin))
	return err
}

// room waits until the journal's queue has room.
func (w *Writer) room(until time.Time) bool {
	for {
		left := time.Until(until)
		if left <= 0 {
			return false
		}
		list := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(list, int((left+time.Millisecond-1)/time.Millisecond))
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n == 1
		}
	}
}

// try sends a datagram at once or not at all. A journal that was started anew is
// connected to again.
func (w *Writer) try(text []byte) error {
	for again := false; ; again = true {
		if err := w.connect(); err != nil {
			return err
		}
		err := unix.Send(w.fd, text, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch {
		case err == nil, errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EMSGSIZE), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
			return err
		}
		w.disconnect() // ECONNREFUSED and its like: nobody has the other end any more
		if again {
			return err
		}
	}
}

func (w *Writer) connect() error {
	if w.open {
		return nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: w.Path}); err != nil {
		_ = unix.Close(fd) // the error is that nobody is there
		return fmt.Errorf("connect: %w", err)
	}
	w.fd, w.open = fd, true
	return nil
}

func (w *Writer) disconnect() {
	if w.open {
		_ = unix.Close(w.fd) // nothing was buffered
		w.open = false
	}
}
