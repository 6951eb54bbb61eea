package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gputune/conf"
	"gputune/internal/action"
	"gputune/internal/folder"
	"gputune/internal/idset"
)

// reportVersion is that of the reports this program writes.
const reportVersion = 1

// Report is what the Prolog did for a job: <run>/jobs/<job>.json. There is one
// for each job that asked for something and has not ended.
type Report struct {
	Version   int          `json:"version"`
	Job       string       `json:"job"`
	UID       uint32       `json:"uid"`
	Node      string       `json:"node"`
	Time      time.Time    `json:"time"`
	OnRefusal conf.Refusal `json:"on_refusal"`
	Options   []Option     `json:"options"`
	// Fault is gputune's own trouble, or the site's, that kept it from carrying
	// out anything: the job runs as if it had not asked.
	Fault string `json:"fault,omitempty"`
}

// Option is what became of one option.
type Option struct {
	Name    string `json:"option"` // "gpu-clocks"
	Value   string `json:"value"`  // as given, shown in full only where the grammar accepts it
	State   State  `json:"state"`
	Reason  string `json:"reason,omitempty"`
	Nearest string `json:"nearest,omitempty"` // value that would be accepted, "" if none is near
	Caution string `json:"caution,omitempty"` // what the user should know of an applied option
	GPUs    []GPU  `json:"gpus,omitempty"`    // that it changed
	// Node are the changes that are not a GPU's, by their keys.
	Node []Changed `json:"node,omitempty"`
	// Dropped and Compacted were done once and are not put back.
	Dropped   *action.Dropped   `json:"dropped,omitempty"`
	Compacted *action.Compacted `json:"compacted,omitempty"`
	// Skipped are keys of a profile that were left out.
	Skipped []Skipped `json:"skipped,omitempty"`
	// Unmovable are interrupts that stay where they are, since the kernel itself
	// manages their CPUs.
	Unmovable []Unmovable `json:"unmovable,omitempty"`
	// TasksOnly says that nothing of the node was changed: the steps of the job see
	// to their own tasks.
	TasksOnly bool `json:"tasks_only,omitempty"`
}

// Skipped is a key of a profile that was left out, and why.
type Skipped struct {
	Key    string `json:"key"`
	Reason string `json:"reason"`
}

// Unmovable are interrupts of a PCI device, by number.
type Unmovable struct {
	PCI  string `json:"pci"`
	IRQs []int  `json:"irqs"`
}

// remarks are lines on what was done beside settings, and on what was not.
func (o Option) remarks() []string {
	var lines []string
	for _, s := range o.Skipped {
		lines = append(lines, fmt.Sprintf("left out: %s: %s", s.Key, s.Reason))
	}
	for _, u := range o.Unmovable {
		irqs := idset.Of(u.IRQs...)
		lines = append(lines, fmt.Sprintf("left alone: interrupts %v of %s: the kernel manages their CPUs", irqs, u.PCI))
	}
	if o.TasksOnly {
		lines = append(lines, "for the job's tasks alone: the node is not changed")
	}
	return lines
}

// State is what became of an option.
type State string

// States of an option.
const (
	Applied State = "applied"
	Refused State = "refused" // by the grammar, the site or the node
	Dropped State = "dropped" // was all right, but another one was refused
)

// GPU is one GPU that an option changed.
type GPU struct {
	PCI      string    `json:"pci"`
	UUID     string    `json:"uuid"`
	Settings []Changed `json:"settings"`
}

// Changed is one setting of a GPU.
type Changed struct {
	Setting string `json:"setting"` // "clocks.sm"
	Before  string `json:"before"`
	Now     string `json:"now"`
}

// given is the option as the user gave it.
func (o Option) given() string {
	if o.Value == "" {
		return "--" + o.Name
	}
	return "--" + o.Name + "=" + o.Value
}

// line is what the user reads of a refused option.
func (o Option) line(outcome conf.Refusal) string {
	text := fmt.Sprintf("%s: %s", o.given(), strings.TrimPrefix(o.Reason, "--"+o.Name+": "))
	if o.Nearest != "" {
		text += "; nearest: " + o.Nearest
	}
	if outcome == conf.RefusalWarns {
		text += "; the job runs without it"
	}
	return text
}

// notice is what the plugin shows the user from the job's steps: "fail" or
// "warn", then a line for each thing to say. "" is nothing to say.
func (r *Report) notice() string {
	kind := conf.RefusalWarns
	var lines []string
	for _, o := range r.Options {
		if o.State == Refused {
			kind = r.OnRefusal
			lines = append(lines, o.line(r.OnRefusal))
		}
		if o.Caution != "" {
			lines = append(lines, o.given()+": "+o.Caution)
		}
	}
	if r.Fault != "" {
		lines = append(lines, "the job's options are not carried out: "+r.Fault)
	}
	if len(lines) == 0 {
		return ""
	}
	text := string(kind) + "\n"
	for _, line := range lines {
		text += oneLine(line) + "\n"
	}
	return text
}

// maxLine bounds a line for people, in bytes. There are few lines in a notice, and
// the plugin takes one of 64 KiB at most.
const maxLine = 2000

// oneLine makes sure that text stays one line of reasonable length wherever it is
// printed.
func oneLine(text string) string {
	if len(text) > maxLine {
		text = strings.ToValidUTF8(text[:maxLine], "") + " …"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
}

// reports is the folder of reports.
type reports struct{ folder.Folder }

const reportsFolder = "jobs"

// Files of a job: what the Prolog did, what the plugin shows, and that name once
// the plugin has shown it. A program that was killed leaves .new.
const (
	reportSuffix = ".json"
	noticeSuffix = ".notice"
	shownSuffix  = ".notice.shown"
	newSuffix    = ".new"
	mpsSuffix    = ".mps"   // what the job's steps have to know of its MPS daemon
	migSuffix    = ".mig"   // the MIG devices of its GPUs
	tasksSuffix  = ".tasks" // what the processes of its tasks are given
)

func (h *Host) reports() reports {
	return reports{folder.Folder{Dir: filepath.Join(h.Root, string(h.Site.Paths.Run)), Mode: 0o755}}
}

func reportName(job, suffix string) string { return reportsFolder + "/" + job + suffix }

// write puts a report, its notice and the files for the job's steps, texts by
// suffix, in place of the job's former ones.
func (r reports) write(report *Report, files map[string]string) error {
	text, err := json.Marshal(report)
	if err != nil {
		return err
	}
	if err := r.MakeBase(); err != nil {
		return err
	}
	if err := r.MakeFolder(reportsFolder); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := r.remove(report.Job); err != nil {
		return err
	}
	for suffix, text := range files {
		if err := r.put(report.Job, suffix, []byte(text)); err != nil {
			return err
		}
	}
	// The plugin takes a notice without a report as well as one with it.
	if notice := report.notice(); notice != "" {
		if err := r.put(report.Job, noticeSuffix, []byte(notice)); err != nil {
			return err
		}
	}
	return r.put(report.Job, reportSuffix, append(text, '\n'))
}

// put writes a file, so that nobody reads half of it.
func (r reports) put(job, suffix string, text []byte) error {
	f, err := r.Create(reportName(job, newSuffix))
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return r.Rename(reportName(job, newSuffix), reportName(job, suffix))
}

// remove removes all of a job's files. None is no error.
func (r reports) remove(job string) error {
	var failed []error
	for _, suffix := range []string{noticeSuffix, shownSuffix, mpsSuffix, migSuffix, tasksSuffix, reportSuffix, newSuffix} {
		if err := r.Remove(reportName(job, suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// all returns every report by its job. What is no report, or goes meanwhile, is
// left out.
func (r reports) all() (map[string]Report, error) {
	names, err := r.List(reportsFolder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	found := map[string]Report{}
	for _, name := range names {
		id, isReport := strings.CutSuffix(name, reportSuffix)
		if !isReport {
			continue
		}
		text, err := r.Read(reportName(id, reportSuffix))
		var report Report
		if err == nil && json.Unmarshal(text, &report) == nil {
			found[id] = report
		}
	}
	return found, nil
}

// applied returns the jobs whose reports say that something was changed.
func (r reports) applied() ([]string, error) {
	found, err := r.all()
	var ids []string
	for id, report := range found {
		if slices.ContainsFunc(report.Options, func(o Option) bool { return o.State == Applied }) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, err
}
