package job

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"gputune/internal/folder"
	"gputune/internal/slurm"
)

// Finished is one run of a Prolog or an Epilog that had something to do.
type Finished struct {
	Program string  `json:"program"` // "prolog" or "epilog"
	Job     string  `json:"job"`
	Outcome string  `json:"outcome"`
	Seconds float64 `json:"seconds"`
}

// Outcomes of a run. A Prolog of which something was refused is Refused also
// where other options were applied.
const (
	OutcomeDone    = "done"
	OutcomeRefused = "refused" // an option, by the grammar, the site or the node
	OutcomeFault   = "fault"   // gputune's own trouble, or the site's
	OutcomeFailed  = "failed"  // an Epilog that could not put something back
)

// Runs are written to finishedName. Who counts them takes the file away and reads
// it one turn later, when nobody has it open for writing any more.
const (
	finishedName = "finished"
	takenName    = "finished.taken"
	// maxFinished bounds the file where nobody takes it away, in bytes.
	maxFinished = 1 << 20
)

func (h *Host) runFolder() folder.Folder {
	return folder.Folder{Dir: filepath.Join(h.Root, string(h.Site.Paths.Run)), Mode: 0o755}
}

// Finish notes a run for the agent's metrics: the name of the program, and how
// long it took and whether it failed. A node without an agent keeps the first
// thousands.
func (h *Host) Finish(program string, took time.Duration, failed bool) error {
	id, err := slurm.JobID(h.getenv)
	if err != nil {
		return err
	}
	f := Finished{Program: program, Job: id, Outcome: OutcomeDone, Seconds: took.Seconds()}
	var report Report
	text, err := h.reports().Read(reportName(id, reportSuffix))
	reported := err == nil && json.Unmarshal(text, &report) == nil
	switch {
	case failed:
		f.Outcome = OutcomeFailed
	case reported && report.Fault != "":
		f.Outcome = OutcomeFault
	case reported && slices.ContainsFunc(report.Options, func(o Option) bool { return o.State == Refused }):
		f.Outcome = OutcomeRefused
	}
	line, err := json.Marshal(f)
	if err != nil {
		return err
	}
	d := h.runFolder()
	const flags = unix.O_WRONLY | unix.O_APPEND | unix.O_CREAT
	file, err := d.Open(finishedName, flags)
	if errors.Is(err, fs.ErrNotExist) { // an Epilog can be the first of this boot
		if err := d.MakeBase(); err != nil {
			return err
		}
		file, err = d.Open(finishedName, flags)
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || info.Size() > maxFinished {
		return err
	}
	_, err = file.Write(append(line, '\n')) // at once, so that lines of two programs do not mix
	return err
}

// TakeFinished returns the runs that were noted before the call before this one.
// A run is returned once, as long as the caller does not die in between.
func (h *Host) TakeFinished() ([]Finished, error) {
	d := h.runFolder()
	text, err := d.Read(takenName)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var list []Finished
	for line := range bytes.Lines(text) {
		var f Finished
		if json.Unmarshal(line, &f) == nil { // a torn line is one run fewer
			list = append(list, f)
		}
	}
	if err == nil {
		if err := d.Remove(takenName); err != nil {
			return nil, err
		}
	}
	if err := d.Rename(finishedName, takenName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return list, err
	}
	return list, nil
}
