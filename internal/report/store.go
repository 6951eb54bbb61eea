package report

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"gputune/internal/folder"
)

// Store is a folder of reports. There is a folder in it for each user, by number,
// which root owns and into which that user is let by an access control list: a
// report's owner could make it larger or let others read it, and a group can have
// other members. In it are files JOB-SECONDS.json.
type Store struct{ folder.Folder }

// NewStore returns the store in a folder: paths.reports for reports that are
// closed, or RunningFolder of paths.run.
func NewStore(dir string) Store { return Store{folder.Folder{Dir: dir, Mode: 0o755, Shown: true}} }

// RunningFolder is the folder in paths.run with the reports that are not closed.
const RunningFolder = "reports"

const reportSuffix = ".json"

// Entry is a report in a store.
type Entry struct {
	UID  uint32
	Job  string
	Time time.Time // when the job ended, or of a report that is not closed began; whole seconds
}

func (e Entry) folder() string { return strconv.FormatUint(uint64(e.UID), 10) }

func (e Entry) name() string { return fmt.Sprintf("%s/%s-%d", e.folder(), e.Job, e.Time.Unix()) }

// entry is where a report belongs.
func (r *Report) entry() Entry {
	e := Entry{UID: r.UID, Job: r.Job, Time: r.End}
	if r.State == Running {
		e.Time = r.Begin
	}
	return e
}

// validJob tells whether a text is a job's number. It becomes part of a file's
// name.
func validJob(job string) bool {
	number, err := strconv.ParseUint(job, 10, 32)
	return err == nil && number > 0 && strconv.FormatUint(number, 10) == job
}

// parseEntry reads a file's name.
func parseEntry(uid uint32, name, suffix string) (Entry, bool) {
	base, isReport := strings.CutSuffix(name, suffix)
	job, at, cut := strings.Cut(base, "-")
	seconds, err := strconv.ParseInt(at, 10, 64)
	if !isReport || !cut || err != nil || seconds < 0 || strconv.FormatInt(seconds, 10) != at || !validJob(job) {
		return Entry{}, false
	}
	return Entry{UID: uid, Job: job, Time: time.Unix(seconds, 0)}, true
}

// Put writes a report in place of one with the same time. An error that is
// folder.ErrNoACL is one that is written but that only root can read.
func (s Store) Put(r *Report) error {
	if err := r.check(); err != nil {
		return err
	}
	text, err := r.encode()
	if err != nil {
		return err
	}
	at := r.entry()
	f, err := s.create(at)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = s.Rename(at.name()+newSuffix, at.name()+reportSuffix)
	}
	if err != nil { // a full disk
		return errors.Join(err, ignore(s.Remove(at.name()+newSuffix), fs.ErrNotExist))
	}
	if at.UID == 0 {
		return nil
	}
	return s.LetIn(at.folder(), at.UID)
}

// create makes the new file, and the folders where they are missing. A user's can
// go meanwhile, when it is empty.
func (s Store) create(at Entry) (f folder.File, err error) {
	for range 3 {
		f, err = s.Create(at.name() + newSuffix)
		switch {
		case errors.Is(err, fs.ErrExist): // of one that was killed
			err = ignore(s.Remove(at.name()+newSuffix), fs.ErrNotExist)
		case errors.Is(err, fs.ErrNotExist):
			if err = s.MakeBase(); err == nil {
				err = ignore(s.MakeFolder(at.folder()), fs.ErrExist)
			}
		default:
			return f, err
		}
		if err != nil {
			return nil, err
		}
	}
	return s.Create(at.name() + newSuffix)
}

// Get reads a report.
func (s Store) Get(e Entry) (*Report, error) {
	text, err := s.Read(e.name() + reportSuffix)
	if err != nil {
		return nil, err
	}
	r, err := decode(text)
	if err != nil {
		return nil, fmt.Errorf("%s/%s%s: %w", s.Dir, e.name(), reportSuffix, err)
	}
	if r.Job != e.Job || r.UID != e.UID {
		return nil, fmt.Errorf("%s/%s%s: it is of job %s of user %d", s.Dir, e.name(), reportSuffix, r.Job, r.UID)
	}
	return r, nil
}

// Drop removes a report. None is no error.
func (s Store) Drop(e Entry) error {
	if err := s.Remove(e.name() + reportSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// List returns a user's reports, oldest first. None is no error.
func (s Store) List(uid uint32) ([]Entry, error) {
	list, _, err := s.list(uid)
	return list, err
}

// list returns also the files that somebody was writing who was killed, or is.
func (s Store) list(uid uint32) (reports, begun []Entry, err error) {
	names, err := s.Folder.List(Entry{UID: uid}.folder())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	for _, name := range names {
		if e, ok := parseEntry(uid, name, reportSuffix); ok {
			reports = append(reports, e)
		} else if e, ok := parseEntry(uid, name, newSuffix); ok {
			begun = append(begun, e)
		}
	}
	slices.SortFunc(reports, older)
	return reports, begun, err
}

func older(a, b Entry) int {
	return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(len(a.Job), len(b.Job)), cmp.Compare(a.Job, b.Job))
}

// Users returns the users who have reports, by number. Only root can look into
// the folders of all.
func (s Store) Users() ([]uint32, error) {
	names, err := s.Folder.List("")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var users []uint32
	for _, name := range names {
		if uid, err := strconv.ParseUint(name, 10, 32); err == nil && strconv.FormatUint(uid, 10) == name {
			users = append(users, uint32(uid))
		}
	}
	slices.Sort(users)
	return users, err
}

// Limits is how much a store keeps.
type Limits struct {
	Age          time.Duration
	All, PerUser int
}

// Prune removes what is too old and what is too much: of a user with more than his
// share the oldest, then of whoever has most, so that nobody's many jobs cost
// others their reports. It returns how many it removed and goes on after a failure.
func (s Store) Prune(now time.Time, limits Limits) (removed int, err error) {
	users, err := s.Users()
	if err != nil {
		return 0, err
	}
	var failed []error
	drop := func(e Entry) {
		if err := s.Drop(e); err != nil {
			failed = append(failed, err)
			return
		}
		removed++
	}
	kept := map[uint32][]Entry{}
	all := 0
	for _, uid := range users {
		list, begun, err := s.list(uid)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		for _, e := range begun {
			if now.Sub(e.Time) > time.Hour { // nobody writes that long
				failed = append(failed, ignore(s.Remove(e.name()+newSuffix), fs.ErrNotExist))
			}
		}
		for len(list) > 0 && (len(list) > limits.PerUser || now.Sub(list[0].Time) > limits.Age) {
			drop(list[0])
			list = list[1:]
		}
		kept[uid] = list
		all += len(list)
		if len(list) == 0 {
			// One that something is written to at the moment is not empty.
			_ = s.RemoveFolder(Entry{UID: uid}.folder())
		}
	}
	for ; all > limits.All; all-- {
		most := users[0]
		for _, uid := range users {
			if len(kept[uid]) > len(kept[most]) {
				most = uid
			}
		}
		drop(kept[most][0])
		kept[most] = kept[most][1:]
	}
	return removed, errors.Join(failed...)
}

func ignore(err, kind error) error {
	if errors.Is(err, kind) {
		return nil
	}
	return err
}
