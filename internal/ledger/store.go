package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"gputune/internal/folder"
)

// store reads and writes records.
type store struct {
	files files
	log   *slog.Logger
	now   func() time.Time
}

// prepare makes the ledger's folders where they are missing. The one for what
// is set aside is made last and so tells that the others are durable.
func (s store) prepare() error {
	missing := false
	for _, name := range []string{jobsFolder, asideFolder} {
		_, err := s.files.List(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		missing = missing || err != nil
	}
	if !missing {
		return nil
	}
	if err := s.files.MakeBase(); err != nil {
		return err
	}
	for _, names := range [][]string{{jobsFolder, locksFolder}, {asideFolder}} {
		for _, name := range names {
			if err := s.files.MakeFolder(name); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
		if err := s.files.SyncFolder(""); err != nil {
			return err
		}
	}
	return nil
}

func jobFolder(job string) string  { return jobsFolder + "/" + job }
func recordName(job string) string { return jobFolder(job) + "/record.json" }
func newName(job string) string    { return jobFolder(job) + "/record.new" }

// badRecord is what stands in the place of a job's record and is none.
type badRecord struct {
	name string // what to set aside
	err  error
}

func (b *badRecord) Error() string { return b.name + ": " + b.err.Error() }
func (b *badRecord) Unwrap() error { return b.err }

// load reads the record of a job: nil without an error if it has none,
// *badRecord if there is something else.
func (s store) load(job string) (*record, error) {
	text, err := s.files.Read(recordName(job))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, folder.ErrForeign):
		// Either the file or the folder that it is in.
		name := recordName(job)
		if _, err := s.files.List(jobFolder(job)); err != nil {
			name = jobFolder(job)
		}
		return nil, &badRecord{name: name, err: err}
	case err != nil:
		return nil, err
	}
	r, err := decode(text, job)
	if err != nil {
		return nil, &badRecord{name: recordName(job), err: err}
	}
	return r, nil
}

// loadMine is load for who has the job's lock: what is no record is set aside.
func (s store) loadMine(job string) (*record, error) {
	r, err := s.load(job)
	if bad := (*badRecord)(nil); errors.As(err, &bad) {
		return nil, s.setAside(job, bad)
	}
	return r, err
}

// setAside moves what is no record to where it is kept and not looked at. The
// caller has the job's lock.
func (s store) setAside(job string, bad *badRecord) error {
	if err := s.prepare(); err != nil {
		return err
	}
	taken, err := s.files.List(asideFolder)
	if err != nil {
		return err
	}
	base := fmt.Sprintf("%s-%s", job, s.now().UTC().Format("20060102T150405Z"))
	to := base
	for n := 2; slices.Contains(taken, to); n++ {
		to = fmt.Sprintf("%s-%d", base, n)
	}
	to = asideFolder + "/" + to
	if err := s.files.Rename(bad.name, to); err != nil {
		return err
	}
	s.log.Error("not a record of the ledger: set aside", "file", bad.name, "to", to, "reason", bad.err)
	for _, folder := range []string{asideFolder, ""} {
		if err := s.files.SyncFolder(folder); err != nil {
			return err
		}
	}
	return s.files.SyncFolder(path.Dir(bad.name))
}

// save makes r the job's record. first says that the job has none yet; durable
// that it must survive a power cut from now on. The caller has the job's lock,
// and the ledger's folders are there.
func (s store) save(r *record, first, durable bool) error {
	r.Written = s.now().UTC()
	text, err := encode(r)
	if err != nil {
		return err
	}
	if first {
		if err := s.files.MakeFolder(jobFolder(r.Job)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if err := s.clear(r.Job, newName(r.Job)); err != nil {
		return err
	}
	if err := s.write(newName(r.Job), text); err != nil {
		return err
	}
	if err := s.files.Rename(newName(r.Job), recordName(r.Job)); err != nil {
		return err
	}
	if !durable {
		return nil
	}
	if err := s.files.SyncFolder(jobFolder(r.Job)); err != nil {
		return err
	}
	// The job's folder may be there and not durable, if the program that made
	// it was killed.
	return s.files.SyncFolder(jobsFolder)
}

// write makes a file and has it on disk before it returns.
func (s store) write(name string, text []byte) error {
	f, err := s.files.Create(name)
	if err != nil {
		return err
	}
	if _, err = f.Write(text); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// clear removes a file of a job, or sets aside what has its name and is no file.
func (s store) clear(job, name string) error {
	err := s.files.Remove(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.EISDIR):
		return s.setAside(job, &badRecord{name: name, err: err})
	default:
		return err
	}
}

// drop removes a job's record and folder. The caller has the job's lock.
func (s store) drop(job string) error {
	for _, name := range []string{recordName(job), newName(job)} {
		if err := s.clear(job, name); err != nil {
			return err
		}
	}
	err := s.files.RemoveFolder(jobFolder(job))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, fs.ErrExist):
		// Nothing of the ledger's is in it.
		return s.setAside(job, &badRecord{name: jobFolder(job), err: errors.New("folder with foreign files")})
	case err != nil:
		return err
	}
	return s.files.SyncFolder(jobsFolder)
}

// jobs returns the names in the folder of records, in order. A ledger that
// was never used has none.
func (s store) jobs() ([]string, error) {
	names, err := s.files.List(jobsFolder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	slices.Sort(names)
	return names, err
}
