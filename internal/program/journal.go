package program

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// journal sends lines to systemd's journal, in its native protocol
// (systemd.io/JOURNAL_NATIVE_PROTOCOL): slurmd keeps what a Prolog writes only if
// that fails. Nobody waits for it, and a node without it has slurmd's log alone.
type journal struct {
	socket string // "": there is none
	fields string // of each line
	fd     int
	state  int
}

const (
	journalUnused = iota
	journalOpen
	journalGone
)

// newJournal returns one for the lines of a program about a job, "" none.
func newJournal(socket, name, job string) *journal {
	fields := "PRIORITY=6\nSYSLOG_IDENTIFIER=" + name + "\n"
	if job != "" && strings.Trim(job, "0123456789") == "" {
		fields += "GPUTUNE_JOB=" + job + "\n"
	}
	return &journal{socket: socket, fields: fields}
}

// send sends a line. Control characters would begin another field.
func (j *journal) send(line string) {
	if j.state == journalUnused {
		j.open()
	}
	if j.state != journalOpen {
		return
	}
	line = strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, line)
	text := fmt.Sprintf("MESSAGE=%s\n%s", line, j.fields)
	// Where the journal does not keep up, a line is lost rather than a job delayed.
	_ = unix.Send(j.fd, []byte(text), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

func (j *journal) open() {
	j.state = journalGone
	if j.socket == "" {
		return
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: j.socket}); err != nil {
		_ = unix.Close(fd) // nobody is there
		return
	}
	j.fd, j.state = fd, journalOpen
}
