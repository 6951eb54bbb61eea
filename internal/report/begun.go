package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"gputune/internal/folder"
)

// Begun is what gputune-prolog notes of a job with GPUs, for the agent. It is
// slurmd's word, as it came: who has time finds out which GPUs that means.
type Begun struct {
	Job      string    `json:"job"`
	HetJob   string    `json:"het_job,omitempty"`
	Restarts int       `json:"restarts,omitempty"`
	UID      uint32    `json:"uid"`
	User     string    `json:"user,omitempty"`
	Node     string    `json:"node"`
	Time     time.Time `json:"time"`
	// Environ are the variables of the Prolog that say which GPUs the job has, and
	// where Slurm's files are.
	Environ []string `json:"environ"`
}

// Marks is the folder of the jobs that have begun, in paths.run.
type Marks struct{ folder.Folder }

const (
	marksFolder = "sampled"
	markSuffix  = ".json"
	newSuffix   = ".new"
)

// NewMarks returns those below paths.run.
func NewMarks(run string) Marks { return Marks{folder.Folder{Dir: run, Mode: 0o755}} }

// Put notes a job in place of an earlier run of it.
func (m Marks) Put(b Begun) error {
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	f, err := m.create(b.Job)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return m.Rename(marksFolder+"/"+b.Job+newSuffix, marksFolder+"/"+b.Job+markSuffix)
}

// create makes the new file, and the folders where they are missing.
func (m Marks) create(job string) (folder.File, error) {
	name := marksFolder + "/" + job + newSuffix
	f, err := m.Create(name)
	switch {
	case errors.Is(err, fs.ErrExist): // of one that was killed
		if err := m.Remove(name); err != nil {
			return nil, err
		}
	case errors.Is(err, fs.ErrNotExist):
		if err := m.MakeBase(); err != nil {
			return nil, err
		}
		if err := m.MakeFolder(marksFolder); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	default:
		return f, err
	}
	return m.Create(name)
}

// Get returns what is noted of a job. None is fs.ErrNotExist.
func (m Marks) Get(job string) (Begun, error) {
	var b Begun
	text, err := m.Read(marksFolder + "/" + job + markSuffix)
	if err != nil {
		return b, err
	}
	if err := json.Unmarshal(text, &b); err != nil {
		return b, fmt.Errorf("what is noted of job %s: %w: %w", job, folder.ErrForeign, err)
	}
	if b.Job != job {
		return b, fmt.Errorf("what is noted of job %s: %w: it is of job %q", job, folder.ErrForeign, b.Job)
	}
	return b, nil
}

// Drop forgets a job. None is no error.
func (m Marks) Drop(job string) error {
	var failed []error
	for _, suffix := range []string{markSuffix, newSuffix} {
		if err := m.Remove(marksFolder + "/" + job + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// All returns the jobs that have begun and not ended.
func (m Marks) All() ([]string, error) {
	names, err := m.List(marksFolder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var jobs []string
	for _, name := range names {
		if job, isMark := strings.CutSuffix(name, markSuffix); isMark && validJob(job) {
			jobs = append(jobs, job)
		}
	}
	return jobs, err
}
