package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"gputune/internal/report"
	"gputune/internal/sample"
	"gputune/internal/table"
)

// reportText is reports as "gputune report" shows them.
type reportText struct {
	zone    *time.Location
	colours bool
	root    bool     // reports of several users are shown
	odd     []string // what could not be read
}

const reportTime = "2006-01-02 15:04:05"

// list writes a line for each report.
func (t reportText) list(w io.Writer, reports []*report.Report) error {
	if len(reports) == 0 {
		if _, err := fmt.Fprintln(w, "no reports on jobs of yours are on this node"); err != nil {
			return err
		}
		return writeRemarks(w, t.odd, nil, t.colours)
	}
	list := table.Table{Head: []string{"JOB", "BEGIN", "TIME", "GPUS", "SM", "POWER", "ENERGY", "STATE"}}
	if t.root {
		list.Head = slices.Insert(list.Head, 1, "USER")
	}
	for _, r := range reports {
		s := summary(r)
		cells := []table.Cell{
			table.Text(r.Job), table.Text(r.Begin.In(t.zone).Format(reportTime)), table.Text(length(r.Length())),
			table.Text(fmt.Sprint(len(r.GPUs))), table.Text(figure(s.SM, "%.0f %%")), table.Text(figure(s.Power, "%.0f W")),
			table.Text(""), table.Text(string(r.State)),
		}
		if s.Energy != nil {
			cells[6].Text = energy(*s.Energy)
		}
		if r.State == report.Lost {
			cells[7].Style = table.Odd
		}
		if t.root {
			cells = slices.Insert(cells, 1, table.Text(userOf(r)))
		}
		list.Add(cells...)
	}
	if err := list.Write(w, t.colours); err != nil {
		return err
	}
	return writeRemarks(w, t.odd, nil, t.colours)
}

func userOf(r *report.Report) string {
	if r.User != "" {
		return r.User
	}
	return fmt.Sprint(r.UID)
}

func figure(value *float64, format string) string {
	if value == nil {
		return ""
	}
	return fmt.Sprintf(format, *value)
}

// length writes a time in seconds.
func length(d time.Duration) string { return d.Round(time.Second).String() }

func seconds(s float64) string { return length(time.Duration(s * float64(time.Second))) }

// energy writes joules so that people can compare them.
func energy(joules float64) string {
	switch kwh := joules / 3.6e6; {
	case kwh >= 1:
		return fmt.Sprintf("%.2f kWh", kwh)
	case joules >= 36000:
		return fmt.Sprintf("%.1f Wh", joules/3600)
	}
	return fmt.Sprintf("%.0f J", joules)
}

// all writes reports in full.
func (t reportText) all(w io.Writer, reports []*report.Report) error {
	for i, r := range reports {
		if i > 0 {
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
		}
		if err := t.one(w, r); err != nil {
			return err
		}
	}
	return writeRemarks(w, t.odd, nil, t.colours)
}

func (t reportText) one(w io.Writer, r *report.Report) error {
	for _, line := range table.Wrap(t.summary(r), table.Width) {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	for _, next := range []table.Table{levelsTable(r), countsTable(r)} {
		if len(next.Rows) == 0 {
			continue
		}
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
		if err := next.Write(w, t.colours); err != nil {
			return err
		}
	}
	if err := t.plot(w, r); err != nil {
		return err
	}
	return writeRemarks(w, remarks(r), r.Notes, t.colours)
}

func (t reportText) summary(r *report.Report) string {
	text := "job " + r.Job
	if r.HetJob != "" && r.HetJob != r.Job {
		text += " (of " + r.HetJob + ")"
	}
	text += " on " + r.Node
	if t.root {
		text += ", user " + userOf(r)
	}
	switch r.State {
	case report.Running:
		text += ", still running"
	case report.Lost:
		text += ", ended without its Epilog"
	}
	text += fmt.Sprintf(": from %s on for %s", r.Begin.In(t.zone).Format(reportTime), length(r.Length()))
	if r.Restarts > 0 {
		text += ", requeued " + counted(r.Restarts, "time") + " before"
	}
	return text
}

// remarks are what is to be known about the figures as a whole.
func remarks(r *report.Report) []string {
	var list []string
	ran, sampled := r.Length().Seconds(), r.Sampled()
	switch {
	case len(r.GPUs) == 0:
		list = append(list, "nobody looked at its GPUs: gputuned did not run")
	case ran-sampled > max(3*r.Interval, ran/20):
		list = append(list, fmt.Sprintf("figures are of %s; for %s nobody looked at the GPUs: gputuned did not run, or somebody needed them for himself",
			seconds(sampled), seconds(ran-sampled)))
	}
	for _, gpu := range r.GPUs {
		if gpu.Error != "" {
			list = append(list, gpuName(gpu)+": the last look at it failed: "+gpu.Error)
		}
	}
	return list
}

func gpuName(gpu report.GPU) string {
	for _, name := range []string{gpu.PCI, gpu.UUID, gpu.Device} {
		if name != "" {
			return name
		}
	}
	return "unknown"
}

// levelsTable has the levels, mean and highest value.
func levelsTable(r *report.Report) table.Table {
	list := table.Table{Head: []string{"GPU", "SM", "MEMORY BUS", "MEMORY", "POWER", "ENERGY", "SM CLOCK", "TEMP."}}
	for _, gpu := range r.GPUs {
		both := func(level sample.Level, unit string) table.Cell {
			stat, known := gpu.Levels[level]
			if !known {
				return table.Text("")
			}
			return table.Text(fmt.Sprintf("%.0f/%.0f %s", stat.Mean, stat.Max, unit))
		}
		sm := both(sample.SMPercent, "%")
		if stat, known := gpu.Levels[sample.SMPercent]; known && stat.Mean < 20 {
			sm.Style = table.Odd
		}
		memory, used, temperature := "", "", ""
		if stat, known := gpu.Levels[sample.MemoryMiB]; known {
			memory = fmt.Sprintf("%.1f", stat.Max/1024)
			if gpu.MemoryMiB > 0 {
				memory += fmt.Sprintf(" of %.1f", gpu.MemoryMiB/1024)
			}
			memory += " GiB"
		}
		if joules, known := gpu.Totals[sample.Energy]; known {
			used = energy(joules)
		}
		if stat, known := gpu.Levels[sample.Temperature]; known {
			temperature = fmt.Sprintf("%.0f °C", stat.Max)
		}
		list.Add(table.Text(gpuName(gpu)), sm, both(sample.MemoryPercent, "%"), table.Text(memory), both(sample.PowerWatts, "W"),
			table.Text(used), both(sample.SMClock, "MHz"), table.Text(temperature))
	}
	return list
}

// countsTable has what was counted.
func countsTable(r *report.Report) table.Table {
	list := table.Table{Head: []string{"GPU", "CLOCKS HELD DOWN BY", "ERRORS", "PCIE IN, OUT", "LOCAL PAGES"}}
	for _, gpu := range r.GPUs {
		list.Add(table.Text(gpuName(gpu)), throttled(gpu), errorCounts(gpu), traffic(gpu), localPages(gpu))
	}
	return list
}

func throttled(gpu report.GPU) table.Cell {
	reasons := gpu.Reasons()
	if reasons == nil {
		return table.Text("")
	}
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		// An idle GPU, and clocks that were asked for, are nobody's trouble.
		if s := reasons[reason]; s >= 0.5 && reason != "gpu_idle" && reason != "applications_clocks_setting" {
			parts = append(parts, reason+" "+seconds(s))
		}
	}
	if len(parts) == 0 {
		return table.Text("nothing")
	}
	return table.Cell{Text: strings.Join(parts, ", "), Style: table.Odd}
}

// errorWords are what counters of errors are called.
var errorWords = []struct {
	counter sample.Counter
	word    string
}{
	{sample.ECCCorrected, "ECC corrected"},
	{sample.ECCUncorrected, "ECC uncorrected"},
	{sample.PCIeReplays, "PCIe replays"},
	{sample.NVLinkCRCErrors, "NVLink CRC"},
	{sample.NVLinkReplays, "NVLink replays"},
	{sample.NVLinkRecoveries, "NVLink recoveries"},
}

func errorCounts(gpu report.GPU) table.Cell {
	known := false
	var parts []string
	for _, e := range errorWords {
		count, has := gpu.Totals[e.counter]
		known = known || has
		if count > 0 {
			parts = append(parts, fmt.Sprintf("%.0f %s", count, e.word))
		}
	}
	switch {
	case !known:
		return table.Text("")
	case len(parts) == 0:
		return table.Text("none")
	}
	return table.Cell{Text: strings.Join(parts, ", "), Style: table.Bad}
}

func traffic(gpu report.GPU) table.Cell {
	in, hasIn := gpu.Totals[sample.PCIeReceived]
	out, hasOut := gpu.Totals[sample.PCIeSent]
	if !hasIn || !hasOut {
		return table.Text("")
	}
	return table.Text(bytesText(in) + ", " + bytesText(out))
}

func bytesText(n float64) string {
	for _, unit := range []struct {
		size float64
		name string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}} {
		if n >= unit.size {
			return fmt.Sprintf("%.1f %s", n/unit.size, unit.name)
		}
	}
	return fmt.Sprintf("%.0f KiB", n/1024)
}

func localPages(gpu report.GPU) table.Cell {
	if gpu.Pages == nil || gpu.Pages.Checked == 0 {
		return table.Text("")
	}
	share := gpu.Pages.LocalShare()
	cell := table.Text(fmt.Sprintf("%.1f %%", math.Floor(share*1000)/10)) // 100 % is all
	if share < 0.9 {
		cell.Style = table.Odd
	}
	return cell
}

// bars are the heights of a plot.
var bars = []rune("▁▂▃▄▅▆▇█")

// maxColumns is how wide a plot is at most.
const maxColumns = 72

// plot draws how busy the GPUs were and what power they took, a line each, over the
// time of the job.
func (t reportText) plot(w io.Writer, r *report.Report) error {
	var b strings.Builder
	columns := 0
	for _, gpu := range r.GPUs {
		s := gpu.Series
		if s == nil {
			continue
		}
		most := 1.0
		for _, watts := range s.Power {
			most = max(most, watts)
		}
		for _, line := range []struct {
			label string
			list  []float64
			most  float64
		}{{"SM, 100 %", s.SM, 100}, {fmt.Sprintf("power, %.0f W", most), s.Power, most}} {
			if len(line.list) < 2 {
				continue
			}
			drawn := barLine(line.list, s.Covered, line.most)
			columns = max(columns, len([]rune(drawn)))
			fmt.Fprintf(&b, "%-12s  %-12s %s\n", gpuName(gpu), line.label, table.Paint(drawn, table.Good, t.colours))
		}
	}
	if b.Len() == 0 {
		return nil
	}
	end := length(r.Length())
	if gap := columns - 1 - len(end); gap > 0 {
		fmt.Fprintf(&b, "%27s0%s%s\n", "", strings.Repeat(" ", gap), end)
	}
	_, err := fmt.Fprintf(w, "\n%s", b.String())
	return err
}

// barLine makes a bar of each point, or of each few, against the highest value there
// can be. Time that was not sampled is a dot.
func barLine(list, covered []float64, most float64) string {
	columns := min(len(list), maxColumns)
	var line []rune
	for column := range columns {
		sum, weight := 0.0, 0.0
		for i := column * len(list) / columns; i < (column+1)*len(list)/columns; i++ {
			if list[i] >= 0 && i < len(covered) {
				sum, weight = sum+list[i]*covered[i], weight+covered[i]
			}
		}
		if weight == 0 {
			line = append(line, '·')
			continue
		}
		height := int(sum / weight / most * float64(len(bars)))
		line = append(line, bars[min(max(height, 0), len(bars)-1)])
	}
	return string(line)
}
