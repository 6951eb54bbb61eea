package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"gputune/conf"
	"gputune/internal/report"
	"gputune/internal/sample"
)

func reportCommand() *cobra.Command {
	var config string
	command := &cobra.Command{
		Use:   "report [OPTION…] [JOB]",
		Short: "Show what the GPUs of a job did",
		Long: `Show what the GPUs of a job did on this node while it ran: how busy they and
their memory were, power and energy, clocks and what held them down, errors,
and how much of the memory of bound tasks was local. Without a job, a list of
your jobs' reports; root sees those of everybody.

A job that was requeued has a report for each run, and one on several nodes has
one on each of them. The report on a job that runs is so far as the last look at
its GPUs: "gputune report $SLURM_JOB_ID" as the last line of a batch script puts
it into the job's output. Reports need gputuned on the node.`,
		Args: cobra.MaximumNArgs(1),
	}
	configFlag(command, &config)
	format := formatFlag(command, formatText, formatJSON)
	command.RunE = func(command *cobra.Command, arguments []string) error {
		site, err := conf.Load(config)
		if err != nil {
			return err
		}
		wanted := ""
		if len(arguments) > 0 {
			wanted = arguments[0]
			if number, err := strconv.ParseUint(wanted, 10, 32); err != nil || number == 0 {
				return refusal{fmt.Errorf("%q: want a job's number, as SLURM_JOB_ID has it", wanted)}
			}
		}
		out := command.OutOrStdout()
		shown := reportText{zone: time.Local, colours: colours(out), root: os.Getuid() == 0}
		reports, odd, err := readReports(site, os.Getuid(), wanted)
		if err != nil {
			return err
		}
		if wanted != "" && len(reports) == 0 {
			return errors.Join(append([]error{noReport(wanted, site)}, odd...)...)
		}
		if format.value == formatJSON {
			return writeReportsJSON(out, reports, wanted == "")
		}
		for _, err := range odd {
			shown.odd = append(shown.odd, err.Error())
		}
		if wanted == "" {
			return shown.list(out, reports)
		}
		return shown.all(out, reports)
	}
	return command
}

func noReport(job string, site conf.Config) error {
	host, err := os.Hostname()
	if err != nil {
		host = "this node"
	}
	text := fmt.Sprintf("no report on a job %s of yours is on %s: they are on the nodes that a job ran on", job, host)
	if !bool(site.Report.Enabled) {
		return errors.New(text + ", and this site has switched them off (report.enabled of gputune.toml)")
	}
	return fmt.Errorf("%s, for jobs with GPUs that ran for %v at least, where gputuned runs", text, time.Duration(site.Report.MinTime))
}

// readReports returns the reports that a user may see, oldest first: on one job, or
// where that is "" on all. odd is which of them cannot be read, and why.
func readReports(site conf.Config, uid int, job string) (reports []*report.Report, odd []error, err error) {
	for _, dir := range []string{site.Paths.ReportsFolder(), filepath.Join(string(site.Paths.Run), report.RunningFolder)} {
		store := report.NewStore(dir)
		users := []uint32{uint32(uid)}
		if uid == 0 {
			if users, err = store.Users(); err != nil {
				return nil, nil, err
			}
		}
		for _, user := range users {
			entries, err := store.List(user)
			if err != nil {
				return nil, nil, err
			}
			for _, e := range entries {
				if job != "" && e.Job != job {
					continue
				}
				r, err := store.Get(e)
				if errors.Is(err, os.ErrNotExist) {
					continue // its job has just ended
				}
				if err != nil {
					odd = append(odd, err)
					continue
				}
				reports = append(reports, r)
			}
		}
	}
	slices.SortStableFunc(reports, func(a, b *report.Report) int { return a.Begin.Compare(b.Begin) })
	return reports, odd, nil
}

// reportSummary is one report in the list of all.
type reportSummary struct {
	Job     string       `json:"job"`
	UID     uint32       `json:"uid"`
	User    string       `json:"user,omitempty"`
	Node    string       `json:"node"`
	State   report.State `json:"state"`
	Begin   time.Time    `json:"begin"`
	End     time.Time    `json:"end"`
	GPUs    int          `json:"gpus"`
	Sampled float64      `json:"sampled_seconds"`
	// Means over the job's GPUs, and the sum; absent where none is known.
	SM     *float64 `json:"sm_percent,omitempty"`
	Power  *float64 `json:"power_watts,omitempty"`
	Energy *float64 `json:"energy_joules,omitempty"`
}

func summary(r *report.Report) reportSummary {
	s := reportSummary{
		Job: r.Job, UID: r.UID, User: r.User, Node: r.Node, State: r.State, Begin: r.Begin, End: r.End, GPUs: len(r.GPUs), Sampled: r.Sampled(),
	}
	for level, to := range map[sample.Level]**float64{sample.SMPercent: &s.SM, sample.PowerWatts: &s.Power} {
		sum, count := 0.0, 0
		for _, gpu := range r.GPUs {
			if stat, known := gpu.Levels[level]; known {
				sum, count = sum+stat.Mean, count+1
			}
		}
		if count > 0 {
			mean := sum / float64(count)
			*to = &mean
		}
	}
	for _, gpu := range r.GPUs {
		if joules, known := gpu.Totals[sample.Energy]; known {
			if s.Energy == nil {
				s.Energy = new(float64)
			}
			*s.Energy += joules
		}
	}
	return s
}

func writeReportsJSON(w io.Writer, reports []*report.Report, list bool) error {
	if !list {
		return writeJSON(w, struct {
			Reports []*report.Report `json:"reports"`
		}{reports})
	}
	summaries := []reportSummary{}
	for _, r := range reports {
		summaries = append(summaries, summary(r))
	}
	return writeJSON(w, struct {
		Reports []reportSummary `json:"reports"`
	}{summaries})
}
