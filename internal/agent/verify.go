package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"gputune/conf"
	"gputune/internal/metrics"
	"gputune/internal/verify"
)

// Tasks checks the bound tasks of this node, as a Verifier. Affinities are looked
// at each time, memory as far as mapsTime goes, process after process in turn.
type Tasks struct {
	Host    verify.Host
	Log     *slog.Logger
	Metrics *metrics.Set
	// Pages takes what was seen of the memory of a job's task, nil nobody wants it.
	Pages func(job, gpus string, pages, away int64)

	known map[found]bool // what is off and was counted
	last  int            // pid of the process whose memory was looked at last
}

// found is one finding, so that it counts once and not at each look.
type found struct {
	pid  int
	kind verify.Kind
}

// mapsTime is how much processor time one check spends on memory maps. One process
// is always looked at; what it costs beyond this makes the next check wait.
const mapsTime = 200 * time.Millisecond

// used returns the processor time of this process.
func used() time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// Check implements Verifier.
func (v *Tasks) Check(ctx context.Context, site conf.Agent) (cost time.Duration, err error) {
	begin := used()
	tasks, err := v.Host.Tasks()
	if err != nil {
		return used() - begin, err
	}
	var errs []error
	threads := 0
	off := map[found]bool{}
	for _, task := range tasks {
		for _, p := range task.Processes {
			r, err := v.Host.CheckCPUs(task.Plan, p)
			errs = append(errs, err)
			threads += r.Threads
			v.report(task, r.Findings, off, site.Repair)
		}
	}
	inMemory := map[int]bool{}
	for _, at := range v.turn(tasks) {
		if ctx.Err() != nil || len(inMemory) > 0 && used()-begin > mapsTime {
			break
		}
		task := tasks[at.task]
		r, err := v.Host.CheckMemory(task.Plan, at.process)
		errs = append(errs, err)
		v.Metrics.PagesChecked.Add(float64(r.Pages))
		v.Metrics.PagesAway.Add(float64(r.Away))
		if v.Pages != nil {
			v.Pages(task.Job, task.Plan.GPUs, r.Pages, r.Away)
		}
		v.report(task, r.Findings, off, site.Repair)
		v.last, inMemory[at.process.PID] = at.process.PID, true
	}
	// What was not looked at this time is as it was.
	there := map[int]bool{}
	for _, task := range tasks {
		for _, p := range task.Processes {
			there[p.PID] = true
		}
	}
	for f := range v.known {
		if f.kind != verify.CPUs && there[f.pid] && !inMemory[f.pid] {
			off[f] = true
		}
	}
	v.known = off
	v.Metrics.Tasks.Set(float64(len(tasks)))
	v.Metrics.Threads.Set(float64(threads))
	return used() - begin, errors.Join(errs...)
}

type place struct {
	task    int
	process verify.Process
}

// turn returns all processes, those first that come after the last one.
func (v *Tasks) turn(tasks []verify.Task) []place {
	var list []place
	for i, task := range tasks {
		for _, p := range task.Processes {
			list = append(list, place{i, p})
		}
	}
	slices.SortFunc(list, func(a, b place) int { return a.process.PID - b.process.PID })
	first := slices.IndexFunc(list, func(p place) bool { return p.process.PID > v.last })
	if first < 0 {
		return list
	}
	return append(list[first:len(list):len(list)], list[:first]...)
}

// report counts and logs what was not off before, and mends what the site wants
// to be mended.
func (v *Tasks) report(task verify.Task, findings []verify.Finding, off map[found]bool, repairs conf.Repairs) {
	for _, f := range findings {
		what := found{f.PID, f.Kind}
		off[what] = true
		log := v.Log.With("job", task.Job, "step", task.Step, "pid", f.PID, "program", f.Program, "gpu", task.Plan.GPUs, "kind", string(f.Kind))
		if !v.known[what] {
			v.Metrics.Drifts.WithLabelValues(string(f.Kind)).Inc()
			log.Warn("a bound task is off its plan: " + f.String())
		}
		if !repairs.Has(conf.Repair(f.Kind)) {
			continue
		}
		outcome := "done"
		if err := v.Host.Repair(task.Plan, f); err != nil {
			outcome = "failed"
			if !v.known[what] {
				log.Error("it cannot be put back", "error", err)
			}
		} else {
			delete(off, what) // off again is a new finding
			log.Info("it is put back to its plan")
		}
		v.Metrics.Repairs.WithLabelValues(string(f.Kind), outcome).Inc()
	}
}
