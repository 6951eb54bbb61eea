package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"gputune/internal/folder"
)

// locker gives locks that end with the process that holds them. The functions
// it returns give a lock back.
type locker interface {
	job(ctx context.Context, job string) (func(), error)
	tryJob(job string) (unlock func(), ok bool)
	domain(ctx context.Context, domain, job string) (func(), error)
}

// LockedError is a lock that was not to be had in time.
type LockedError struct {
	What   string // "host", "gpu-GPU-…" or "job 17"
	Holder string // the program that has it, as far as is known
	Err    error  // the context's
}

// Error names the lock and its holder.
func (e *LockedError) Error() string {
	return fmt.Sprintf("lock of %s: %s has it: %v", e.What, e.Holder, e.Err)
}

// Unwrap returns the context's error.
func (e *LockedError) Unwrap() error { return e.Err }

// flocks are the locks in a ledger's folder.
type flocks struct{ dir string }

// holder is what a lock's file says about the program that has it. It is for
// people alone and may be that of an earlier holder.
type holder struct {
	PID     int       `json:"pid"`
	Program string    `json:"program"`
	Job     string    `json:"job"`
	Since   time.Time `json:"since"`
}

// LocksFolder returns where the ledger in dir has its locks: a file for each
// setting.Domain, which whoever is about to change something opens.
func LocksFolder(dir string) string { return filepath.Join(dir, locksFolder) }

// open opens a lock's file, which is made when it is missing and never removed.
func (l flocks) open(name string) (*os.File, error) {
	d := folder.Folder{Dir: l.dir, Mode: 0o711}
	const writing, reading = unix.O_RDWR | unix.O_CREAT, unix.O_RDONLY
	f, err := d.Open(locksFolder+"/"+name, writing)
	if errors.Is(err, fs.ErrNotExist) {
		// In a ledger that is used the folder may have been removed by hand.
		if err := d.MakeFolder(locksFolder); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		f, err = d.Open(locksFolder+"/"+name, writing)
	}
	if errors.Is(err, unix.EROFS) {
		f, err = d.Open(locksFolder+"/"+name, reading)
	}
	return f, err
}

// current tells whether the file that is open is still the one on disk.
func (l flocks) current(f *os.File) bool {
	opened, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(f.Name())
	return err == nil && os.SameFile(opened, named)
}

// domain implements locker.
func (l flocks) domain(ctx context.Context, domain, job string) (func(), error) {
	for {
		f, err := l.open(domain)
		if err != nil {
			return nil, err
		}
		err = poll(ctx, func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
		switch {
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
			err = &LockedError{What: domain, Holder: who(f), Err: err}
			fallthrough
		case err != nil:
			f.Close()
			return nil, err
		case !l.current(f): // somebody removed it by hand: lock the new one
			f.Close()
			continue
		}
		text, err := json.Marshal(holder{PID: os.Getpid(), Program: filepath.Base(os.Args[0]), Job: job, Since: time.Now().UTC()})
		if err == nil && f.Truncate(0) == nil {
			_, _ = f.WriteAt(text, 0) // a full disk costs the name in an error, no more
		}
		return func() { f.Close() }, nil
	}
}

// who names the holder of a lock.
func who(f *os.File) string {
	text := make([]byte, 512)
	n, _ := f.ReadAt(text, 0)
	var h holder
	if json.Unmarshal(text[:n], &h) != nil || h.PID == 0 {
		return "another program"
	}
	return fmt.Sprintf("%s (pid %d, job %s, since %s)", h.Program, h.PID, h.Job, h.Since.Format(time.RFC3339))
}

// byteOf returns a job's place in the file of job locks. Two jobs with the
// same place would wait for each other, and are one pair in 2^62.
func byteOf(job string) int64 {
	hash := fnv.New64a()
	hash.Write([]byte(job))
	return int64(hash.Sum64() >> 2)
}

// setJob locks a job's byte. Where the file could be opened for reading alone,
// because the file system is read-only, it locks the whole of it.
func (l flocks) setJob(f *os.File, job string) error {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: byteOf(job), Len: 1}
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock)
	if errors.Is(err, unix.EBADF) {
		return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	return err
}

// job implements locker.
func (l flocks) job(ctx context.Context, job string) (func(), error) {
	for {
		f, err := l.open("jobs")
		if err != nil {
			return nil, err
		}
		err = poll(ctx, func() error { return l.setJob(f, job) })
		switch {
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
			err = &LockedError{What: "job " + job, Holder: "another program of gputune", Err: err}
			fallthrough
		case err != nil:
			f.Close()
			return nil, err
		case !l.current(f):
			f.Close()
			continue
		}
		return func() { f.Close() }, nil
	}
}

// tryJob implements locker.
func (l flocks) tryJob(job string) (func(), bool) {
	f, err := l.open("jobs")
	if err != nil {
		return nil, false
	}
	if err := l.setJob(f, job); err != nil || !l.current(f) {
		f.Close()
		return nil, false
	}
	return func() { f.Close() }, true
}

// poll tries until it gets the lock or the context ends. The kernel can wait
// for a lock by itself, but not until a deadline.
func poll(ctx context.Context, try func() error) error {
	const first, longest = 200 * time.Microsecond, 20 * time.Millisecond
	for wait := first; ; wait = min(wait*2, longest) {
		err := try()
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}
