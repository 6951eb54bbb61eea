// Package metrics has the series that gputuned gives Prometheus: their names, what
// they mean, and the two ways out, HTTP and a file for node_exporter.
package metrics

import (
	"net/http"
	"runtime"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// Labels that more than one series has.
const (
	labelSetting  = "setting" // last part of a key: "power.limit"
	labelProgram  = "program" // "prolog" or "epilog"
	labelOutcome  = "outcome"
	labelLocality = "locality" // "local", "remote", "mixed" or "unknown"
	labelKind     = "kind"     // of drift: "cpus", "policy" or "pages"
)

// Set has all series. It may be used by several goroutines.
type Set struct {
	registry, process *prometheus.Registry
	whole             sync.RWMutex // held for writing while several series change together

	// JobsHolding is how many jobs hold settings; SettingsHeld how many
	// settings are held, SettingsDrifted how many of those have another value than
	// the job's, by the setting's name; SettingsUnread how many could not be read.
	JobsHolding     prometheus.Gauge
	SettingsHeld    *prometheus.GaugeVec
	SettingsDrifted *prometheus.GaugeVec
	SettingsUnread  prometheus.Gauge
	// GPUJob is 1 for each GPU and the job that holds a setting of it.
	GPUJob *prometheus.GaugeVec

	// Restores counts what the agent put back, by the ledger's action.
	Restores *prometheus.CounterVec
	// Undecided is 1 while the agent cannot tell which jobs are on the node.
	Undecided prometheus.Gauge
	// Waiting is how many jobs hold something and leave no trace, for less than the
	// grace.
	Waiting prometheus.Gauge

	// Runs counts Prologs and Epilogs of jobs that asked for something, and
	// Durations how long they took in seconds.
	Runs      *prometheus.CounterVec
	Durations *prometheus.HistogramVec
	// Options is what became of the options of the jobs on the node.
	Options *prometheus.GaugeVec

	// Work counts what the agent had done by a process of its own.
	Work *prometheus.CounterVec
	// SnapshotTime is when the topology snapshot was taken, in seconds since 1970.
	SnapshotTime prometheus.Gauge
	// ConfigValid is 1 if gputune.toml was accepted when it was read last.
	ConfigValid prometheus.Gauge

	// Tasks and Threads are what the last check of bound tasks saw; Drifts
	// counts processes that were found off their plan, Repairs what was mended.
	Tasks, Threads prometheus.Gauge
	Drifts         *prometheus.CounterVec
	Repairs        *prometheus.CounterVec
	// PagesChecked and PagesAway count pages that were looked at and those on
	// other nodes than the plan's.
	PagesChecked, PagesAway prometheus.Counter
	// FollowSteps is how many steps are followed; FollowBindings counts workers that
	// were bound to the GPUs that they use; FollowSeconds is the processor time of both.
	FollowSteps    prometheus.Gauge
	FollowBindings *prometheus.CounterVec
	FollowSeconds  prometheus.Counter
	// VerifySeconds is the processor time that checks have taken.
	VerifySeconds prometheus.Counter

	// ReportJobs is how many jobs are sampled for their reports, ReportSamples
	// counts looks at a GPU, ReportFailures those that failed, and ReportSeconds is
	// the processor time of the process that looks.
	ReportJobs                                   prometheus.Gauge
	ReportSamples, ReportFailures, ReportSeconds prometheus.Counter
}

// New returns the series, of a gputuned of that version.
func New(version string) *Set {
	s := &Set{registry: prometheus.NewRegistry(), process: prometheus.NewRegistry()}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		s.registry.MustRegister(g)
		return g
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
		s.registry.MustRegister(g)
		return g
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		s.registry.MustRegister(c)
		return c
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		s.registry.MustRegister(c)
		return c
	}
	gauges("gputune_build_info", "Always 1; the version of gputuned and of the Go that built it.", "version", "goversion").
		WithLabelValues(version, runtime.Version()).Set(1)

	s.JobsHolding = gauge("gputune_jobs_holding", "Jobs that hold settings on this node.")
	s.SettingsHeld = gauges("gputune_settings_held", "Settings that jobs hold, by name.", labelSetting)
	s.SettingsDrifted = gauges("gputune_settings_drifted", "Held settings that somebody else has given another value.", labelSetting)
	s.SettingsUnread = gauge("gputune_settings_unreadable", "Held settings whose present value could not be read.")
	s.GPUJob = gauges("gputune_gpu_job_info", "Always 1; a GPU and the job that holds settings of it.", "gpu", "uuid", "job")

	s.Restores = counters("gputune_restores_total", "Settings of ended jobs that the agent dealt with, by what it did.", labelOutcome)
	s.Undecided = gauge("gputune_recovery_undecided", "1 while it cannot be told which jobs are on this node, so that nothing is put back.")
	s.Waiting = gauge("gputune_recovery_waiting_jobs", "Jobs that have left settings and no trace, not yet for as long as the grace.")

	s.Runs = counters("gputune_program_runs_total", "Prologs and Epilogs that had something to do, by outcome.", labelProgram, labelOutcome)
	s.Durations = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "gputune_program_duration_seconds", Help: "How long Prologs and Epilogs took that had something to do.",
		Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
	}, []string{labelProgram})
	s.registry.MustRegister(s.Durations)
	s.Options = gauges("gputune_job_options", "Options of the jobs on this node, by name and by what became of them.", "option", "state")

	s.Work = counters("gputune_agent_work_total", "Work that the agent had done by a process of its own, by kind and outcome.", "work", labelOutcome)
	s.SnapshotTime = gauge("gputune_snapshot_timestamp_seconds", "When the topology snapshot was taken, in seconds since 1970.")
	s.ConfigValid = gauge("gputune_config_valid", "1 if gputune.toml was accepted when it was read last.")

	s.Tasks = gauge("gputune_verify_tasks", "Bound tasks that the last check found.")
	s.Threads = gauge("gputune_verify_threads", "Threads of bound tasks that the last check looked at.")
	s.Drifts = counters("gputune_verify_drifts_total", "Processes of bound tasks that were found off their plan, by what is off.", labelKind)
	s.Repairs = counters("gputune_verify_repairs_total", "Processes that were put back to their plan, by what was off and outcome.", labelKind, labelOutcome)
	s.PagesChecked = counter("gputune_verify_pages_total", "Pages of bound tasks that were looked at.")
	s.PagesAway = counter("gputune_verify_remote_pages_total", "Pages of bound tasks that were on other memory nodes than planned.")
	s.VerifySeconds = counter("gputune_verify_cpu_seconds_total", "Processor time that checks of bound tasks have taken, in seconds.")
	s.FollowSteps = gauge("gputune_follow_steps", "Steps whose workers are followed.")
	s.FollowBindings = counters("gputune_follow_bindings_total", "Workers that were bound to the GPUs that they use, by how their CPUs lie to those and outcome.", labelLocality, labelOutcome)
	s.FollowSeconds = counter("gputune_follow_cpu_seconds_total", "Processor time that following has taken, in seconds.")

	s.ReportJobs = gauge("gputune_report_jobs", "Jobs whose GPUs are sampled for the reports on them.")
	s.ReportSamples = counter("gputune_report_samples_total", "Looks at a GPU for the reports on jobs.")
	s.ReportFailures = counter("gputune_report_failures_total", "Looks at GPUs for the reports on jobs that failed.")
	s.ReportSeconds = counter("gputune_report_cpu_seconds_total", "Processor time of the process that samples GPUs, in seconds.")
	for _, kind := range []string{"cpus", "policy", "pages"} {
		s.Drifts.WithLabelValues(kind) // there at 0, so that rates are right from the first
	}
	s.process.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return s
}

// Update changes several series together: no reader sees some of them alone.
func (s *Set) Update(change func()) {
	s.whole.Lock()
	defer s.whole.Unlock()
	change()
}

// Gather implements prometheus.Gatherer: gputune's series, without those of the
// process.
func (s *Set) Gather() ([]*dto.MetricFamily, error) {
	s.whole.RLock()
	defer s.whole.RUnlock()
	return s.registry.Gather()
}

// Handler serves all series, those of the agent's process included.
func (s *Set) Handler() http.Handler {
	return promhttp.HandlerFor(prometheus.Gatherers{s, s.process}, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

// Write writes gputune's series to a file for node_exporter's textfile collector,
// in one step. Those of the process are left out: there they would be mistaken
// for node_exporter's own.
func (s *Set) Write(path string) error {
	return prometheus.WriteToTextfile(path, s)
}
