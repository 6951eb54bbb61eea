package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gputune/conf"
	"gputune/internal/folder"
	"gputune/internal/job"
	"gputune/internal/metrics"
	"gputune/internal/recovery"
	"gputune/internal/report"
	"gputune/internal/sample"
)

// RoleSample is the role of the child that looks at GPUs: it goes on with lines of
// sample.Question until there are no more, and answers each by a line.
const RoleSample = "sample"

// Reporter samples the GPUs of jobs for the reports on them, in a goroutine of its
// own, so that a look is not late because something else takes long. All fields
// have to be set.
type Reporter struct {
	Root    string // as job.Host's
	Child   *sample.Child
	Log     *slog.Logger
	Metrics *metrics.Set

	site atomic.Pointer[conf.Config]

	mu    sync.Mutex
	pages []seenPages // by checks of bound tasks, not yet in a report

	jobs    map[string]*sampledJob
	holds   int // who wants the driver to be closed
	watch   recovery.Watch
	trouble []error // of this tick or request
	said    string  // of the last one
	used    float64 // processor time that the child said last
	next    time.Time
	look    time.Time // when ended jobs are looked for
	cleanup time.Time // when old reports are looked for
}

type seenPages struct {
	job   string
	pci   []string
	pages report.Pages
}

// sampledJob is one job that runs.
type sampledJob struct {
	report *report.Report
	begun  time.Time // of its mark
	errors int       // looks in which its counters of errors were not asked for
	saved  time.Time
}

// How often, in looks, the counters are asked for that errors alone move, and after
// how long a report is written anew: what an agent that is killed loses at most.
const (
	rareEvery = 12
	saveEvery = 5 * time.Second
)

// maxAsk bounds how long one look at all GPUs may take.
const maxAsk = 10 * time.Second

// How often old reports are removed on a node on which no job ends, and how much
// less often than agent.interval jobs are looked for that ended without their
// Epilog: a look reads all of /proc.
const (
	cleanupEvery = time.Hour
	lookEvery    = 10
)

// Configure gives it the configuration, first before Run and again when that was
// read anew.
func (r *Reporter) Configure(site conf.Config) { r.site.Store(&site) }

// Pages takes what a check of a bound task has seen. gpus are PCI addresses,
// separated by commas.
func (r *Reporter) Pages(id, gpus string, pages, away int64) {
	if pages == 0 || id == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	const most = 10000 // nobody takes them where there are no reports
	if len(r.pages) < most {
		r.pages = append(r.pages, seenPages{id, strings.Split(gpus, ","), report.Pages{Checked: pages, Remote: away}})
	}
}

func (r *Reporter) host() *job.Host {
	return &job.Host{Root: r.Root, Site: *r.site.Load(), Now: time.Now, Output: logged{r.Log}}
}

// logged writes lines to the log.
type logged struct{ log *slog.Logger }

// Write implements io.Writer.
func (l logged) Write(text []byte) (int, error) {
	l.log.Warn(strings.TrimSpace(string(text)), "work", RoleSample)
	return len(text), nil
}

// Run samples until the context ends.
func (r *Reporter) Run(ctx context.Context) {
	h := r.host()
	r.jobs = map[string]*sampledJob{}
	run := filepath.Join(r.Root, string(h.Site.Paths.Run))
	listener, err := sample.Listen(filepath.Join(run, sample.SocketName))
	var requests chan *sample.Request
	var ends chan sample.End
	if err != nil {
		r.Log.Error("Prologs and Epilogs cannot tell when jobs begin and end, and GPUs cannot be split while they are sampled", "error", err)
	} else {
		defer listener.Close()
		requests, ends = listener.Requests, listener.Ends
	}
	r.forgetStale()
	defer func() {
		for id, one := range r.jobs {
			r.save(id, one)
		}
		r.Child.End()
		r.say()
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			r.tick()
		case q := <-requests:
			r.request(q)
		case <-ends:
			r.holds--
			r.next = time.Now()
		}
		r.say()
		timer.Reset(time.Until(r.next))
	}
}

func (r *Reporter) request(q *sample.Request) {
	switch q.Verb {
	case sample.Begin:
		r.tick()
	case sample.Last:
		r.scan()
		if one := r.jobs[q.Job]; one != nil {
			r.sample(map[string]*sampledJob{q.Job: one}, true)
			r.save(q.Job, one)
			delete(r.jobs, q.Job) // the Epilog closes it
			if len(r.jobs) == 0 {
				r.Child.End()
			}
		}
	case sample.Hold:
		r.holds++
		r.Child.End()
	}
	q.Done()
}

// tick looks at the GPUs of all jobs and says when it is to be called again.
func (r *Reporter) tick() {
	site := r.site.Load()
	interval := time.Duration(site.Report.Interval)
	if !bool(site.Report.Enabled) {
		r.Child.End()
		r.next = time.Now().Add(time.Duration(site.Agent.Interval))
		return
	}
	begin := time.Now()
	r.scan()
	r.findEnded()
	if r.holds == 0 {
		r.sample(r.jobs, false)
	}
	r.takePages()
	for id, one := range r.jobs {
		if begin.Sub(one.saved) >= saveEvery {
			one.saved = begin
			r.save(id, one)
		}
	}
	if len(r.jobs) == 0 {
		r.Child.End()
		interval = time.Duration(site.Agent.Interval)
	}
	if begin.Sub(r.cleanup) > cleanupEvery {
		r.cleanup = begin
		r.prune()
	}
	r.Metrics.ReportJobs.Set(float64(len(r.jobs)))
	r.next = begin.Add(interval)
}

// say logs the trouble of one tick or request when it begins or changes.
func (r *Reporter) say() {
	text := ""
	if err := errors.Join(r.trouble...); err != nil {
		text = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	r.trouble = nil
	if text == r.said {
		return
	}
	r.said = text
	if text == "" {
		r.Log.Info("all right again", "work", RoleSample)
		return
	}
	r.Log.Error("GPUs of jobs are not sampled as they should be", "work", RoleSample, "error", text)
}

// failed keeps trouble until it is said; nil is none.
func (r *Reporter) failed(err error) {
	if err != nil {
		r.trouble = append(r.trouble, err)
	}
}

// scan finds which jobs have begun and ended, by their marks.
func (r *Reporter) scan() {
	h := r.host()
	ids, err := h.Marks().All()
	if err != nil {
		r.failed(err)
		return
	}
	for id := range r.jobs {
		if !slices.Contains(ids, id) {
			delete(r.jobs, id)
		}
	}
	for _, id := range ids {
		r.failed(r.meet(h, id))
	}
}

// meet begins the report on a job that is new, or goes on with that of an agent
// before this one.
func (r *Reporter) meet(h *job.Host, id string) error {
	b, err := h.Marks().Get(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it has just ended
	}
	if err != nil {
		return err
	}
	if one := r.jobs[id]; one != nil && one.begun.Equal(b.Time) {
		return nil
	}
	one := &sampledJob{begun: b.Time}
	one.report, err = h.RunningReports().Get(report.Entry{UID: b.UID, Job: id, Time: b.Time})
	if err != nil || one.report.State != report.Running {
		devices, err := h.Devices(b)
		if err != nil {
			r.Log.Warn("it is not known which GPUs a job has: its report has none", "job", id, "error", err)
		}
		one.report = report.New(b, devices, time.Duration(h.Site.Report.Interval))
	}
	r.jobs[id] = one
	return nil
}

// sample looks at the GPUs of some jobs. last asks for everything.
func (r *Reporter) sample(jobs map[string]*sampledJob, last bool) {
	q := sample.Question{All: last}
	for _, one := range jobs {
		for _, device := range one.report.Devices() {
			if !slices.Contains(q.Devices, device) {
				q.Devices = append(q.Devices, device)
			}
		}
		if one.errors--; one.errors < 0 {
			q.All = true
		}
	}
	if len(q.Devices) == 0 || r.holds > 0 {
		return
	}
	if q.All {
		for _, one := range jobs {
			one.errors = rareEvery
		}
	}
	slices.Sort(q.Devices)
	before := r.used
	if !r.Child.Running() {
		before = 0
	}
	answer, err := r.Child.Ask(q, maxAsk)
	if err != nil {
		r.Metrics.ReportFailures.Inc()
		r.failed(err)
		return
	}
	r.used = answer.Used
	r.Metrics.ReportSeconds.Add(max(answer.Used-before, 0))
	var trouble []error
	for _, reading := range answer.Readings {
		if reading.Error != "" {
			r.Metrics.ReportFailures.Inc()
			trouble = append(trouble, errors.New(reading.Device+": "+reading.Error))
			// Its job may tell, too.
		} else {
			r.Metrics.ReportSamples.Inc()
		}
		for _, one := range jobs {
			one.report.Interval = time.Duration(r.site.Load().Report.Interval).Seconds()
			one.report.Add(reading)
		}
	}
	r.failed(errors.Join(trouble...))
}

func (r *Reporter) takePages() {
	r.mu.Lock()
	pages := r.pages
	r.pages = nil
	r.mu.Unlock()
	for _, seen := range pages {
		if one := r.jobs[seen.job]; one != nil {
			one.report.AddPages(seen.pci, seen.pages)
		}
	}
}

// save writes a report so far, unless its job's Epilog has closed it meanwhile.
func (r *Reporter) save(id string, one *sampledJob) {
	h := r.host()
	r.takePages()
	err := h.RunningReports().Put(one.report)
	if errors.Is(err, folder.ErrNoACL) {
		err = nil // root reads it, and the Epilog says so
	}
	if b, gone := h.Marks().Get(id); gone != nil || !b.Time.Equal(one.begun) {
		err = errors.Join(err, h.RunningReports().Drop(report.Entry{UID: one.report.UID, Job: id, Time: one.begun}))
	}
	r.failed(err)
}

// findEnded closes the reports on jobs that are no longer on the node and whose
// Epilog did not come.
func (r *Reporter) findEnded() {
	h := r.host()
	now := time.Now()
	if len(r.jobs) == 0 {
		r.watch.Forget()
		return
	}
	for _, id := range r.overtaken() {
		r.lost(h, id)
	}
	if now.Before(r.look) {
		return
	}
	r.look = now.Add(lookEvery * time.Duration(h.Site.Agent.Interval))
	here, err := jobsHere(r.Root, h.Site)
	if err != nil {
		r.watch.Forget() // what has to be put back says so
		return
	}
	r.watch.Grace = time.Duration(h.Site.Agent.Grace)
	var left []recovery.Trace
	for id, one := range r.jobs {
		left = append(left, recovery.Trace{Job: id, Written: one.begun})
	}
	ended, next := r.watch.Look(now, left, here)
	if next != 0 {
		r.look = now.Add(next)
	}
	for _, id := range ended {
		r.lost(h, id)
	}
}

// overtaken returns the jobs that have a device of which Slurm has since given all to
// another job: they have ended, also where nothing else tells.
func (r *Reporter) overtaken() []string {
	var list []string
	for id, one := range r.jobs {
		for _, other := range r.jobs {
			if !other.begun.After(one.begun) || len(one.report.Notes) > 0 || len(other.report.Notes) > 0 {
				continue // the same, or one that shares its GPUs, which its notes say
			}
			if slices.ContainsFunc(one.report.Devices(), func(device string) bool { return slices.Contains(other.report.Devices(), device) }) {
				list = append(list, id)
				break
			}
		}
	}
	return list
}

// lost closes the report on a job whose Epilog did not come.
func (r *Reporter) lost(h *job.Host, id string) {
	one := r.jobs[id]
	if one == nil {
		return
	}
	r.save(id, one)
	delete(r.jobs, id)
	if err := h.CloseReport(id, report.Lost, one.report.End); err != nil {
		r.failed(err)
		return
	}
	r.Log.Info("closed the report on a job that ended without its Epilog", "job", id)
}

// forgetStale removes reports on jobs that ended while nobody sampled them.
func (r *Reporter) forgetStale() {
	h := r.host()
	store, marks := h.RunningReports(), h.Marks()
	users, err := store.Users()
	r.failed(err)
	for _, uid := range users {
		entries, err := store.List(uid)
		r.failed(err)
		for _, e := range entries {
			if b, err := marks.Get(e.Job); errors.Is(err, fs.ErrNotExist) || err == nil && b.Time.Unix() != e.Time.Unix() {
				r.failed(store.Drop(e))
			}
		}
	}
}

// prune removes reports that are too old.
func (r *Reporter) prune() {
	h := r.host()
	removed, err := h.ClosedReports().Prune(time.Now(), h.ReportLimits())
	r.failed(err)
	if removed > 0 {
		r.Log.Info("removed old reports on jobs", "reports", removed)
	}
}

// sampleOrder is what the child that samples reads first.
func sampleOrder(config string) []byte {
	order, err := json.Marshal(Work{Role: RoleSample, Config: config})
	if err != nil {
		return nil // it has nothing that cannot be written
	}
	return order
}

// NewReporter returns one whose child is this program, as Children's.
func NewReporter(host *job.Host, children *Children, config string, set *metrics.Set) *Reporter {
	r := &Reporter{
		Root: host.Root, Log: children.Log, Metrics: set,
		Child: &sample.Child{Path: children.Path, Argument: children.Argument, Order: sampleOrder(config), Log: children.Log},
	}
	r.Configure(host.Site)
	return r
}
