package mps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Process is one process of the kernel. Its number can be given again; number
// and start time cannot.
type Process struct {
	PID   int
	Start uint64 // clock ticks since boot
	Name  string // of the program, as the process may have set it; for messages
	State byte   // as in proc_pid_stat(5): R, S, D, Z, …
	UID   uint32 // real user id
}

// String names the process in a message.
func (p Process) String() string {
	return fmt.Sprintf("process %d (%s, user %d, state %c)", p.PID, plain(p.Name), p.UID, p.State)
}

// ended tells whether nothing but the exit status is left of the process.
func (p Process) ended() bool { return p.State == 'Z' || p.State == 'X' }

func (h Host) proc() string {
	if h.Proc != "" {
		return h.Proc
	}
	return "/proc"
}

// process reads a process. fs.ErrNotExist if there is none.
func (h Host) process(pid int) (Process, error) {
	dir := filepath.Join(h.proc(), strconv.Itoa(pid))
	text, err := readProc(filepath.Join(dir, "stat"))
	if err != nil {
		return Process{}, err
	}
	p, err := parseStat(string(text))
	if err != nil {
		return Process{}, fmt.Errorf("%s/stat: %w", dir, err)
	}
	status, err := readProc(filepath.Join(dir, "status"))
	if err != nil {
		return Process{}, err
	}
	for line := range strings.Lines(string(status)) {
		if ids, found := strings.CutPrefix(line, "Uid:"); found {
			first, _, _ := strings.Cut(strings.TrimSpace(ids), "\t")
			p.UID, err = number(first)
		}
	}
	return p, err
}

// readProc reads a file of a process. A process that ends meanwhile is
// fs.ErrNotExist, as one that has ended.
func readProc(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, unix.ESRCH) {
		return nil, fs.ErrNotExist
	}
	return text, err
}

// parseStat reads proc_pid_stat(5). The name can have any bytes, brackets and
// spaces among them.
func parseStat(text string) (Process, error) {
	left, right := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if left < 0 || right < left {
		return Process{}, errors.New("no name in brackets")
	}
	fields := strings.Fields(text[right+1:])
	const state, start = 0, 19 // the third and the 22nd of the manual: the name is the second
	if len(fields) <= start {
		return Process{}, fmt.Errorf("%d fields", len(fields)+2)
	}
	p := Process{Name: text[left+1 : right], State: fields[state][0]}
	var err error
	if p.PID, err = strconv.Atoi(strings.TrimSpace(text[:left])); err != nil {
		return Process{}, err
	}
	p.Start, err = strconv.ParseUint(fields[start], 10, 64)
	return p, err
}

// living returns those of some processes that are there and have not ended.
func (h Host) living(pids []int) ([]Process, error) {
	var list []Process
	for _, pid := range pids {
		p, err := h.process(pid)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !p.ended() {
			list = append(list, p)
		}
	}
	return list, nil
}

// marked returns the pids of a user's processes that have a variable in their
// environment.
func (h Host) marked(uid uint32, variable string) ([]int, error) {
	entries, err := os.ReadDir(h.proc())
	if err != nil {
		return nil, err
	}
	var list []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err == nil && pid != os.Getpid() && h.hasVariable(pid, uid, variable) {
			list = append(list, pid)
		}
	}
	return list, nil
}

// hasVariable tells whether a process is a user's and has a variable. In the
// middle of an exec it seems to have none at all, so that is asked again.
func (h Host) hasVariable(pid int, uid uint32, variable string) bool {
	for range 5 {
		p, err := h.process(pid)
		if err != nil || p.UID != uid || p.ended() {
			return false
		}
		environment, err := readProc(filepath.Join(h.proc(), strconv.Itoa(pid), "environ"))
		if err != nil {
			return false
		}
		if len(environment) > 0 {
			return slices.ContainsFunc(bytes.Split(environment, []byte{0}), func(v []byte) bool { return string(v) == variable })
		}
		time.Sleep(pause)
	}
	return false
}

// signal sends a signal to a process and to no other one that has its number
// since. One that has ended is no error.
func (h Host) signal(p Process, signal unix.Signal) error {
	handle, err := os.FindProcess(p.PID) // by pidfd, from Linux 5.3 on
	if err != nil {
		return err
	}
	defer func() { _ = handle.Release() }()
	now, err := h.process(p.PID)
	if errors.Is(err, fs.ErrNotExist) || err == nil && now.Start != p.Start {
		return nil
	}
	if err != nil {
		return err
	}
	if err := handle.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%v: %w", p, err)
	}
	return nil
}

// keepFiles keeps what this program has inherited, and would pass on unseen, from
// the programs that it starts: whoever waits for the end of a pipe would wait
// for the daemon's.
func keepFiles() error {
	err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
		return nil // before Linux 5.11; slurmd closes all but the first three itself
	}
	return err
}

// pause is between two looks at what takes a while.
const pause = 10 * time.Millisecond

// sleep waits for a pause, less if the context ends.
func sleep(ctx context.Context) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// plain makes text from a user's process fit for one line of a log.
func plain(text string) string {
	const most = 200
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, strings.TrimSpace(text))
	if len(text) > most {
		text = text[:most] + "…"
	}
	return text
}
