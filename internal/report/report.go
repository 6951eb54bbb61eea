// Package report is the report on a job's GPUs on one node: what they did while it
// ran. gputune-prolog notes that the job has begun (Begun), the agent adds what it
// samples to a report that it keeps on disk (Report.Add), and gputune-epilog closes
// that (Report.Close) and puts it where the job's user can read it (Store).
package report

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"gputune/internal/sample"
)

// version is that of the reports this program writes.
const version = 1

// State is how far a report is.
type State string

// States of a report.
const (
	Running State = "running" // so far
	Ended   State = "ended"   // closed by the job's Epilog
	// Lost is a report whose Epilog did not come: the agent closed it when the job
	// left no trace on the node any more. It ends with the last look at its GPUs.
	Lost State = "lost"
)

// Report is one run of a job on one node.
type Report struct {
	Version int    `json:"version"`
	Job     string `json:"job"`
	// HetJob is the number that a component of a heterogeneous job was submitted
	// with, "" of another job.
	HetJob string `json:"het_job,omitempty"`
	// Restarts is how often the job was requeued before this run, where the Slurm
	// that is installed tells its Prolog; runs have times of their own in any case.
	Restarts int       `json:"restarts,omitempty"`
	UID      uint32    `json:"uid"`
	User     string    `json:"user,omitempty"`
	Node     string    `json:"node"`
	State    State     `json:"state"`
	Begin    time.Time `json:"begin"` // the end of its Prolog
	End      time.Time `json:"end"`   // the beginning of its Epilog, or the last look
	// Interval is what the time between two looks should be, in seconds.
	Interval float64 `json:"interval_seconds"`
	GPUs     []GPU   `json:"gpus"`
	// Notes are for people: what is special about the figures.
	Notes []string `json:"notes,omitempty"`
}

// GPU is one GPU, or MIG device, of the job. What it does not support is absent.
type GPU struct {
	PCI       string  `json:"pci,omitempty"`
	UUID      string  `json:"uuid,omitempty"`
	Model     string  `json:"model,omitempty"`
	MemoryMiB float64 `json:"memory_total_mib,omitempty"`
	// Samples is how often it was looked at, and Sampled the time that the levels
	// stand for, in seconds: less than the job's where nobody looked.
	Samples int     `json:"samples"`
	Sampled float64 `json:"sampled_seconds"`
	// Levels went up and down, Totals is what counters have counted.
	Levels map[sample.Level]Stat      `json:"levels,omitempty"`
	Totals map[sample.Counter]float64 `json:"totals,omitempty"`
	// Throttled is for how many seconds each reason held the clocks down, as the
	// looks at it found it; Counted the same for reasons that the GPU counts, which
	// is exact.
	Throttled map[string]float64 `json:"throttled_seconds,omitempty"`
	Counted   map[string]float64 `json:"throttled_counted_seconds,omitempty"`
	Pages     *Pages             `json:"pages,omitempty"`
	Series    *Series            `json:"series,omitempty"`
	// Error is what the last look at it said, "" nothing was wrong.
	Error string `json:"error,omitempty"`

	// Device is how the driver is asked for it, and Last what it said. They are
	// there while the report is not closed.
	Device string          `json:"device,omitempty"`
	Last   *sample.Reading `json:"last,omitempty"`
}

// Stat is a level over time. Seconds is the time that the mean is of, 0 for a
// single look.
type Stat struct {
	Mean    float64 `json:"mean"`
	Min     float64 `json:"min"`
	Max     float64 `json:"max"`
	Seconds float64 `json:"seconds"`
}

// Pages counts memory pages of the bound tasks that use the GPU, of 4 KiB, as
// checks of bound tasks have seen them: each page once for each check.
type Pages struct {
	Checked int64 `json:"checked"`
	Remote  int64 `json:"remote"`
}

// LocalShare returns the share of pages on the planned nodes, from 0 to 1.
func (p Pages) LocalShare() float64 {
	if p.Checked == 0 {
		return 0
	}
	return float64(p.Checked-p.Remote) / float64(p.Checked)
}

// Length returns how long the job ran, or has run so far.
func (r *Report) Length() time.Duration { return r.End.Sub(r.Begin) }

// Sampled returns the time that the levels of its GPUs stand for, in seconds: of
// the GPU that was looked at least.
func (r *Report) Sampled() float64 {
	least := 0.0
	for i, gpu := range r.GPUs {
		if i == 0 || gpu.Sampled < least {
			least = gpu.Sampled
		}
	}
	return least
}

// Reasons returns for how many seconds each reason held the clocks of a GPU down:
// as the GPU counts it, or else as the looks found it. Nil: not known.
func (g *GPU) Reasons() map[string]float64 {
	if g.Throttled == nil && g.Counted == nil {
		return nil
	}
	all := maps.Clone(g.Throttled)
	if all == nil {
		all = map[string]float64{}
	}
	maps.Copy(all, g.Counted)
	return all
}

// MaxBytes bounds a report on disk.
const MaxBytes = 256 << 10

// encode writes a report as JSON of at most MaxBytes: what is too much for it is
// left out, series first, then GPUs from the last one on.
func (r *Report) encode() ([]byte, error) {
	text, err := json.Marshal(r)
	if err != nil || len(text) < MaxBytes {
		return append(text, '\n'), err
	}
	short := *r
	short.GPUs = slices.Clone(r.GPUs)
	for i := range short.GPUs {
		short.GPUs[i].Series = nil
	}
	for {
		if text, err = json.Marshal(short); err != nil || len(text) < MaxBytes {
			return append(text, '\n'), err
		}
		if len(short.GPUs) == 0 {
			return nil, fmt.Errorf("job %s: a report of %d bytes without any GPU: want %d at most", r.Job, len(text), MaxBytes)
		}
		short.GPUs = short.GPUs[:len(short.GPUs)/2]
	}
}

// decode reads a report. What is not one of this version is an error.
func decode(text []byte) (*Report, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("%d bytes: a report has %d at most", len(text), MaxBytes)
	}
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, err
	}
	if r.Version != version {
		return nil, fmt.Errorf("version %d: this gputune reads %d", r.Version, version)
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	return &r, nil
}

// check finds what no report has. It keeps what is computed from one finite.
func (r *Report) check() error {
	if !validJob(r.Job) {
		return fmt.Errorf("job %q: want a number", r.Job)
	}
	if r.End.Before(r.Begin) {
		return fmt.Errorf("job %s: it ends (%v) before it begins (%v)", r.Job, r.End, r.Begin)
	}
	for _, gpu := range r.GPUs {
		if s := gpu.Series; s != nil && (s.Step <= 0 || len(s.Covered) > maxPoints || len(s.SM) > len(s.Covered) || len(s.Power) > len(s.Covered)) {
			return fmt.Errorf("job %s: gpu %s: a series of %d points, each of %g s: want %d at most", r.Job, gpu.PCI, len(s.Covered), s.Step, maxPoints)
		}
	}
	return nil
}

// round keeps three digits after the point, which is all that the figures are
// worth.
func round(x float64) float64 { return math.Round(x*1000) / 1000 }
