package report

import (
	"time"

	"gputune/internal/sample"
)

// gaps is how many intervals may pass between two looks so that the later one
// stands for the time in between. What is longer was not sampled.
const gaps = 3

// New returns the report on a job that has begun, with its devices.
func New(b Begun, devices []Device, interval time.Duration) *Report {
	r := &Report{
		Version: version, Job: b.Job, HetJob: b.HetJob, Restarts: b.Restarts, UID: b.UID, User: b.User, Node: b.Node,
		State: Running, Begin: b.Time, End: b.Time, Interval: interval.Seconds(), GPUs: []GPU{},
	}
	for _, d := range devices {
		r.GPUs = append(r.GPUs, GPU{PCI: d.PCI, UUID: d.UUID, Model: d.Model, Device: d.Name()})
		if d.Shared != "" {
			r.note(d.Shared)
		}
	}
	return r
}

// Device is one GPU or MIG device of a job.
type Device struct {
	PCI, UUID, Model string // "" not known
	// Shared says why the figures are not the job's alone, "" they are.
	Shared string
}

// Name is how the driver is asked for it.
func (d Device) Name() string {
	if d.UUID != "" {
		return d.UUID
	}
	return d.PCI
}

func (r *Report) note(text string) {
	for _, is := range r.Notes {
		if is == text {
			return
		}
	}
	r.Notes = append(r.Notes, text)
}

// Devices are those that are still to be looked at.
func (r *Report) Devices() []string {
	var list []string
	for _, gpu := range r.GPUs {
		if gpu.Device != "" {
			list = append(list, gpu.Device)
		}
	}
	return list
}

// Add adds a look at one of the job's devices; one at another is passed over. The
// look stands for the time since the one before, unless that is too long ago.
func (r *Report) Add(reading sample.Reading) {
	for i := range r.GPUs {
		if r.GPUs[i].Device == reading.Device && reading.Device != "" {
			r.GPUs[i].add(reading, r.Begin, gaps*r.Interval)
		}
	}
	if reading.Error == "" && reading.Time.After(r.End) {
		r.End = reading.Time
	}
}

// AddPages adds what a check of a bound task has seen that uses these GPUs, by PCI
// address.
func (r *Report) AddPages(pci []string, seen Pages) {
	for i := range r.GPUs {
		for _, address := range pci {
			if gpu := &r.GPUs[i]; gpu.PCI == address && address != "" {
				if gpu.Pages == nil {
					gpu.Pages = &Pages{}
				}
				gpu.Pages.Checked += seen.Checked
				gpu.Pages.Remote += seen.Remote
			}
		}
	}
}

func (g *GPU) add(now sample.Reading, begin time.Time, longest float64) {
	g.Error = now.Error
	if now.Error != "" {
		return
	}
	g.PCI, g.Model = first(now.PCI, g.PCI), first(now.Model, g.Model)
	g.MemoryMiB = max(g.MemoryMiB, now.MemoryMiB)
	g.Samples++
	since := 0.0
	if g.Last != nil {
		if since = now.Time.Sub(g.Last.Time).Seconds(); since < 0 {
			since = 0 // somebody has set the clock
		}
	}
	covered := since
	if covered > longest {
		covered = 0
	}
	g.Sampled += covered
	for level, value := range now.Levels {
		if g.Levels == nil {
			g.Levels = map[sample.Level]Stat{}
		}
		stat, known := g.Levels[level]
		g.Levels[level] = stat.add(value, covered, !known)
	}
	g.count(now, covered)
	if g.Series == nil {
		g.Series = &Series{Step: longest / gaps}
	}
	g.Series.add(now.Time.Sub(begin).Seconds(), covered, now.Levels)
	last := now
	if g.Last != nil { // counters that were not asked for this time are as they were
		last.Counters = merged(g.Last.Counters, now.Counters)
		last.Held = merged(g.Last.Held, now.Held)
	}
	last.Levels, last.Reasons, last.Model = nil, nil, ""
	g.Last = &last
}

func first(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}

func merged[K comparable](before, now map[K]float64) map[K]float64 {
	all := make(map[K]float64, len(before))
	for key, value := range before {
		all[key] = value
	}
	for key, value := range now {
		all[key] = value
	}
	return all
}

// add adds a level that stood for some seconds.
func (s Stat) add(value sample.Range, seconds float64, isFirst bool) Stat {
	if isFirst {
		return Stat{Mean: value.Mean, Min: value.Mean, Max: value.Max, Seconds: seconds}
	}
	s.Min, s.Max = min(s.Min, value.Mean), max(s.Max, value.Max)
	if all := s.Seconds + seconds; all > 0 {
		// What was seen before any time had passed has no weight.
		s.Mean = (s.Mean*s.Seconds + value.Mean*seconds) / all
		s.Seconds = all
	}
	return s
}

// count adds what counters and throttle reasons have done since the last look.
func (g *GPU) count(now sample.Reading, covered float64) {
	for counter, value := range now.Counters {
		if g.Totals == nil {
			g.Totals = map[sample.Counter]float64{}
		}
		grown := 0.0
		if g.Last != nil {
			if before, known := g.Last.Counters[counter]; known {
				grown = growth(before, value)
			}
		}
		g.Totals[counter] += grown
	}
	for reason, value := range now.Held {
		if g.Counted == nil {
			g.Counted = map[string]float64{}
		}
		grown := 0.0
		if g.Last != nil {
			if before, known := g.Last.Held[reason]; known {
				grown = growth(before, value)
			}
		}
		g.Counted[reason] += grown
	}
	if now.Reasons == nil {
		return
	}
	if g.Throttled == nil {
		g.Throttled = map[string]float64{}
	}
	for _, reason := range now.Reasons {
		if covered > 0 {
			g.Throttled[reason] += covered
		}
	}
}

// growth is what a counter has counted. One that is less than before has begun
// anew, with the driver.
func growth(before, now float64) float64 {
	if now < before {
		return now
	}
	return now - before
}

// Close ends the report. A job that nobody looked at has no GPUs in it.
func (r *Report) Close(state State, end time.Time) {
	r.State = state
	if end.After(r.End) {
		r.End = end
	}
	for i := range r.GPUs {
		gpu := &r.GPUs[i]
		gpu.Device, gpu.Last = "", nil
		gpu.Sampled = round(gpu.Sampled)
		for level, s := range gpu.Levels {
			gpu.Levels[level] = Stat{Mean: round(s.Mean), Min: round(s.Min), Max: round(s.Max), Seconds: round(s.Seconds)}
		}
		for counter, total := range gpu.Totals {
			gpu.Totals[counter] = round(total)
		}
		for _, held := range []map[string]float64{gpu.Throttled, gpu.Counted} {
			for reason, seconds := range held {
				held[reason] = round(seconds)
			}
		}
		if gpu.Series != nil {
			gpu.Series.round()
		}
	}
}
