// Package ledger is the only way in which gputune changes a setting of a
// machine: it remembers on disk who changed what and what was there before,
// and puts that back.
//
// # On disk
//
// In the ledger's folder, by default /var/lib/gputune, everything is the
// caller's own (root's), folders 0700 and files 0600:
//
//	jobs/<job>/record.json   what the job holds; written as record.new, renamed
//	jobs/<job>/record.new    a record that was not finished: nothing
//	locks/jobs               one byte locked for each job that is worked on
//	locks/host, locks/gpu-…  one lock for each part of the machine
//	aside/…                  what stood in a record's place and was none
//
// A record is one line of JSON with a version and a checksum. It has the boot
// id and an entry for each key: the value before, the value set, how far the
// change has come, and the facts about the setting that restoring needs, so
// that a later release of gputune restores it even if that knows better by then.
//
// # The order of things
//
// Apply reads the values before, writes the record with the state "intent"
// (file synced, renamed, folder synced), changes the settings in order, and
// writes the state "applied". Release puts back in reverse order and then
// removes the record. Whatever is killed in between leaves a record that is a
// superset of what was changed, and releasing it twice is the same as once,
// because each key is judged by its present value alone:
//
//   - what was set: the value before is put back;
//   - the value before: nothing to do;
//   - another one: somebody took over. It is left alone and reported;
//   - none, since what had the value (setting.WhileThere) is gone: nothing to do.
//
// A write-only setting is put back in any case, a loose one (see
// setting.Traits) in the states intent and restoring whatever it has, unless it
// is a setting.Stepwise, which tells its own half-made values from others. What a
// failed attempt to put a key back left there is in the entry, and counts as set.
//
// # Shared keys
//
// There is no count of holders and no owner of the value before. A job that
// takes a key which another one holds copies the value before from the other's
// record, so that every holder's record has the original one. A job that
// releases a key while another record has it drops its entry and changes
// nothing; the last one puts back. Where somebody took over a shared key and a
// further job sets it again, what that somebody set is the new value before:
// the entry's epoch is one higher, and holders of lower epochs do not count.
//
// # Locks
//
// One lock for each GPU and one for the host, flock(2) on files that are never
// removed, plus an open-file-description lock on one byte for the job; the
// kernel gives all of them back when their holder dies. The job's is taken
// first, then those of the domains in the order of their names, so that no two
// programs wait for each other in a circle. Entries of a domain appear in and
// vanish from records only under its lock. Jobs on different GPUs share none.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gputune/internal/folder"
	"gputune/internal/setting"
)

// Dir is where the ledger lives on a node.
const Dir = "/var/lib/gputune"

// defaultLockWait is how long a lock is waited for; NVML takes seconds at most.
const defaultLockWait = 20 * time.Second

// Options say what a ledger works with. Resolve is required.
type Options struct {
	// Root is prepended to the ledger's folder and to /proc. "" is "/".
	Root string
	// BootID is the id of this boot; "" reads /proc/sys/kernel/random/boot_id.
	BootID string
	// Resolve makes a setting from its key, as setting.Parse does.
	Resolve func(key string) (setting.Setting, error)
	// Now is the clock for the times in records. nil is time.Now.
	Now func() time.Time
	// Log gets what is set aside and what cannot be cleaned up. nil discards.
	Log *slog.Logger
	// LockWait is the longest wait for one lock; a context may end it
	// earlier. 0 is 20 s.
	LockWait time.Duration

	files files  // nil: the folder on disk
	locks locker // nil: flock on the folder on disk
}

// Ledger is a ledger's folder. It keeps nothing in memory between calls, and
// any number of programs may use the same folder at once.
type Ledger struct {
	store    store
	locks    locker
	boot     string
	resolve  func(key string) (setting.Setting, error)
	lockWait time.Duration
	now      func() time.Time
	log      *slog.Logger
}

// Open returns the ledger in a folder, which need not exist yet: the first
// Apply makes it. Nothing on disk is changed.
func Open(dir string, o Options) (*Ledger, error) {
	if o.Resolve == nil {
		return nil, errors.New("ledger: no way to make settings from keys")
	}
	if o.Root == "" {
		o.Root = "/"
	}
	if o.BootID == "" {
		// random(4): a UUID that is made at each boot.
		path := filepath.Join(o.Root, "/proc/sys/kernel/random/boot_id")
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("ledger: boot id: %w", err)
		}
		if o.BootID = strings.TrimSpace(string(text)); o.BootID == "" {
			return nil, fmt.Errorf("ledger: boot id: %s is empty", path)
		}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.LockWait == 0 {
		o.LockWait = defaultLockWait
	}
	path := filepath.Join(o.Root, dir)
	if o.files == nil {
		// Users get through it to their reports; the ledger's own folders are 0700.
		o.files = folder.Folder{Dir: path, Mode: 0o711}
	}
	if o.locks == nil {
		o.locks = flocks{path}
	}
	return &Ledger{
		store: store{files: o.files, log: o.Log, now: o.Now},
		locks: o.locks, boot: o.BootID, resolve: o.Resolve,
		lockWait: o.LockWait, now: o.Now, log: o.Log,
	}, nil
}

// Change is one setting and the value that a job wants it to have.
type Change struct {
	Setting setting.Setting
	Value   string
	// Before is what to put back instead of what is found, where a site keeps
	// the key at one value between jobs. "" is what is found, and for a
	// write-only setting its neutral value.
	Before string
}

// Action is what was done about one key.
type Action string

// Actions of Apply, then of Release.
const (
	Set     Action = "set"     // written
	Already Action = "already" // had the value; it is held now
	Retaken Action = "retaken" // somebody had taken over a held key; set again

	Restored  Action = "restored"   // the value before is back
	Unchanged Action = "unchanged"  // it was back already
	StillHeld Action = "still held" // another job holds the key at this value
	Drifted   Action = "drifted"    // somebody took over; left alone
	Forgotten Action = "forgotten"  // the machine forgot it when it booted, or what had the value is gone
	Failed    Action = "failed"     // could not be put back; still in the ledger
)

// Outcome is what was done about one key of a job.
type Outcome struct {
	Job, Key string
	Action   Action
	Prior    string   // the value before the job, or before the first of several
	Set      string   // the value that the job set
	Current  string   // what was found; "" for a write-only setting
	Holders  []string // the other jobs that hold the key
	Err      error    // of Failed
}

// Report is what a call did, in the order in which it was done.
type Report struct {
	Outcomes []Outcome
}

// Err returns an error that names every key that could not be put back, nil if
// there is none.
func (r Report) Err() error {
	var failed []error
	for _, o := range r.Outcomes {
		if o.Action == Failed {
			failed = append(failed, o.Err)
		}
	}
	return errors.Join(failed...)
}

// HeldError is a key that another job holds at another value.
type HeldError struct {
	Key, Job, Value string // who holds what at which value
	Wanted          string
}

// Error names the key, its holder and both values.
func (e *HeldError) Error() string {
	return fmt.Sprintf("%s: job %s holds it at %s, so it cannot be %s: use %s, or wait for that job's end",
		e.Key, e.Job, e.Value, e.Wanted, e.Value)
}

// KeyError is a key whose value cannot be had or whose present value cannot be
// read, found before anything was changed.
type KeyError struct {
	Key string
	Err error
}

// Error gives the cause, which names the GPU or file.
func (e *KeyError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *KeyError) Unwrap() error { return e.Err }

// ApplyError is a change that could not be made after others had been made or
// announced. Everything that the job held was put back, except for what
// Rollback says.
type ApplyError struct {
	Job, Key string // Key is "" if the record could not be written
	Err      error
	Rollback Report
	// Record is what went wrong with the record itself, so that the ledger may
	// still have one.
	Record error
}

// Error gives the cause, and what could not be put back.
func (e *ApplyError) Error() string {
	text := fmt.Sprintf("job %s: %v", e.Job, e.Err)
	if e.Key != "" {
		text = fmt.Sprintf("job %s: %s: %v", e.Job, e.Key, e.Err)
	}
	if err := errors.Join(e.Rollback.Err(), e.Record); err != nil {
		text += "; not put back: " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return text
}

// Unwrap returns the cause and what went wrong after it.
func (e *ApplyError) Unwrap() []error {
	list := []error{e.Err}
	for _, err := range []error{e.Rollback.Err(), e.Record} {
		if err != nil {
			list = append(list, err)
		}
	}
	return list
}

// Clean tells whether neither the machine nor the ledger has anything of the
// job left. If not, Release has to be called, and is worth calling again.
func (e *ApplyError) Clean() bool { return e.Rollback.Err() == nil && e.Record == nil }

// lock takes a job's lock and returns what gives it back.
func (l *Ledger) lockJob(ctx context.Context, job string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, l.lockWait)
	defer cancel()
	return l.locks.job(ctx, job)
}

// lockDomains takes the locks of all parts of the machine that keys belong to.
func (l *Ledger) lockDomains(ctx context.Context, job string, keys []string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, l.lockWait)
	defer cancel()
	var unlocks []func()
	unlock = func() {
		for _, u := range unlocks {
			u()
		}
	}
	for _, domain := range domains(keys) {
		u, err := l.locks.domain(ctx, domain, job)
		if err != nil {
			unlock()
			return nil, err
		}
		unlocks = append(unlocks, u)
	}
	return unlock, nil
}
