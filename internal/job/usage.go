package job

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"gputune/internal/folder"
	"gputune/internal/node"
	"gputune/internal/report"
	"gputune/internal/sample"
	"gputune/internal/slurm"
)

// agentWait is how long a Prolog or an Epilog waits for the agent to close the
// driver, or to look a last time.
const agentWait = 2 * time.Second

// reportWait is how long an Epilog waits for the disk that reports are on.
const reportWait = 5 * time.Second

// Marks are the jobs that have begun and not ended, for the reports on them.
func (h *Host) Marks() report.Marks {
	return report.NewMarks(filepath.Join(h.Root, string(h.Site.Paths.Run)))
}

// RunningReports are those on jobs that have not ended.
func (h *Host) RunningReports() report.Store {
	return report.NewStore(filepath.Join(h.Root, string(h.Site.Paths.Run), report.RunningFolder))
}

// ClosedReports are those on jobs that have ended.
func (h *Host) ClosedReports() report.Store {
	return report.NewStore(filepath.Join(h.Root, h.Site.Paths.ReportsFolder()))
}

// agent tells what somebody wants of the node's agent, as sample.Ask.
func (h *Host) agent(verb sample.Verb, id string) (end func(), err error) {
	return sample.Ask(filepath.Join(h.Root, string(h.Site.Paths.Run), sample.SocketName), verb, id, agentWait)
}

// quiet has the agent close the driver, whose hold on a GPU would keep it from being
// reset or split, until end is called or this process ends. An agent that does not
// answer is no reason not to go on.
func (h *Host) quiet(id string) (end func()) {
	end, err := h.agent(sample.Hold, id)
	if err != nil {
		h.say("%v; it may keep GPUs open meanwhile", err)
	}
	return end
}

// begun notes for the agent that the job begins, if it has GPUs and there is an
// agent.
func (h *Host) begun(job slurm.Job) {
	if !bool(h.Site.Report.Enabled) || !job.HasGPUs() || !h.hasAgent() {
		return
	}
	name, _ := slurm.NodeName(h.getenv)
	restarts, _ := h.getenv("SLURM_RESTART_COUNT")
	het, _ := h.getenv("SLURM_HET_JOB_ID")
	b := report.Begun{Job: job.ID, UID: job.UID, User: oneLine(job.User), Node: name, Time: h.Now().UTC()}
	b.Restarts, _ = strconv.Atoi(restarts) // not set: never
	if _, err := strconv.ParseUint(het, 10, 32); err == nil && het != "0" {
		b.HetJob = het
	}
	for _, variable := range h.Environ {
		name, _, _ := strings.Cut(variable, "=")
		if slices.Contains(gpuVariables, name) {
			b.Environ = append(b.Environ, variable)
		}
	}
	if err := h.Marks().Put(b); err != nil {
		h.say("job %s: no report on its GPUs: %v", job.ID, err)
		return
	}
	// Nobody waits for it, and the agent looks by itself every now and then.
	_, _ = h.agent(sample.Begin, job.ID)
}

// gpuVariables are those of the Prolog that say which GPUs the job has.
var gpuVariables = []string{
	"SLURM_JOB_ID", "SLURM_JOB_UID", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
	"SLURM_CONF", "SLURMD_NODENAME",
}

// hasAgent tells whether an agent runs, or has been killed: one that is stopped takes
// its socket away.
func (h *Host) hasAgent() bool {
	_, err := os.Lstat(filepath.Join(h.Root, string(h.Site.Paths.Run), sample.SocketName))
	return err == nil
}

// ended closes the report on the job. Whatever goes wrong is said and no more.
func (h *Host) ended(id string) {
	if _, err := h.Marks().Get(id); errors.Is(err, fs.ErrNotExist) {
		if err := h.Marks().Drop(id); err != nil { // what a Prolog has begun that was killed
			h.say("job %s: report on its GPUs: %v", id, err)
		}
		return
	}
	end := h.Now().UTC()
	if _, err := h.agent(sample.Last, id); err != nil {
		h.say("job %s: %v", id, err)
	}
	done := make(chan error, 1)
	go func() {
		defer func() {
			if fault := recover(); fault != nil {
				done <- fmt.Errorf("fault in gputune: %v", fault)
			}
		}()
		done <- h.CloseReport(id, report.Ended, end)
	}()
	var err error
	select {
	case err = <-done:
	case <-time.After(reportWait):
		err = fmt.Errorf("not written within %v", reportWait)
	}
	if err != nil {
		h.say("job %s: report on its GPUs: %v", id, oneLine(err.Error()))
	}
}

// CloseReport closes the report on a job that has begun, puts it where its user can
// read it, and removes what is too old or too much. A job that was too short, or that
// has begun on a node whose site wants no reports, has none.
func (h *Host) CloseReport(id string, state report.State, end time.Time) error {
	marks, running, closed := h.Marks(), h.RunningReports(), h.ClosedReports()
	b, err := marks.Get(id)
	if err != nil {
		return errors.Join(err, marks.Drop(id)) // nothing that is not gputune's can be there
	}
	at := report.Entry{UID: b.UID, Job: b.Job, Time: b.Time}
	r, err := running.Get(at)
	var trouble []error
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			trouble = append(trouble, err)
		}
		r = report.New(b, nil, time.Duration(h.Site.Report.Interval))
	}
	if end.Before(b.Time) { // somebody has set the clock
		end = b.Time
	}
	if bool(h.Site.Report.Enabled) && (state == report.Lost || end.Sub(b.Time) >= time.Duration(h.Site.Report.MinTime)) {
		r.Close(state, end)
		trouble = append(trouble, h.openState(), closed.Put(r))
		_, err := closed.Prune(h.Now(), h.ReportLimits())
		trouble = append(trouble, err)
	}
	return errors.Join(append(trouble, marks.Drop(id), running.Drop(at))...)
}

// ReportLimits is how many reports the site keeps.
func (h *Host) ReportLimits() report.Limits {
	site := h.Site.Report
	return report.Limits{Age: time.Duration(site.MaxAge) * 24 * time.Hour, All: int(site.Max), PerUser: int(site.MaxPerUser)}
}

// openState lets users through paths.state, which an earlier gputune has closed,
// where reports are in it.
func (h *Host) openState() error {
	if h.Site.Paths.Reports != "" {
		return nil
	}
	d := folder.Folder{Dir: filepath.Join(h.Root, string(h.Site.Paths.State)), Mode: 0o711}
	if info, err := os.Lstat(d.Dir); err == nil && info.Mode().Perm() == d.Mode {
		return nil
	}
	return d.MakeBase()
}

// Devices returns the GPUs and MIG devices of a job that has begun.
func (h *Host) Devices(b report.Begun) ([]report.Device, error) {
	as := *h
	as.Environ = b.Environ
	job, err := slurm.ReadJob(as.getenv)
	if err != nil {
		return nil, err
	}
	n, err := node.Read(as.Root, as.Site.Paths, as.getenv)
	if err != nil {
		return nil, err
	}
	var list []report.Device
	add := func(d report.Device) {
		if !slices.ContainsFunc(list, func(is report.Device) bool { return is.Name() == d.Name() }) && d.Name() != "" {
			list = append(list, d)
		}
	}
	shared := ""
	if job.Part != "" {
		shared = "other jobs can have used the same GPU: " + job.Part + ", and figures are of the whole GPU"
	}
	gpu := func(position int) {
		g := n.Machine.GPUs[position]
		why := shared
		if why == "" && position < len(n.Sharded) && n.Sharded[position] {
			why = "other jobs can have used the same GPU: gres/shard gives parts of it, and figures are of the whole GPU"
		}
		add(report.Device{PCI: g.PCI, UUID: g.UUID, Model: g.Model, Shared: why})
	}
	indices := slices.Clone(job.GPUs)
	for _, d := range job.Visible.Devices {
		switch {
		case d.Kind == slurm.ByMIG || d.Kind == slurm.ByInstance:
			add(report.Device{UUID: d.UUID})
			indices = nil
		case d.Kind == slurm.ByGPU:
			for position, g := range n.Machine.GPUs {
				if g.UUID != "" && strings.HasPrefix(strings.ToLower(g.UUID), strings.ToLower(d.UUID)) {
					gpu(position)
				}
			}
			indices = nil
		case len(job.GPUs) == 0:
			indices = append(indices, d.Index)
		}
	}
	for _, index := range indices {
		switch {
		case index >= len(n.Order):
		case n.MIG[index] != "":
			add(report.Device{UUID: n.MIG[index]})
		case n.Order[index] >= 0 && n.Doubt[index] == "":
			gpu(n.Order[index])
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("job %s: not known which GPUs SLURM_JOB_GPUS and CUDA_VISIBLE_DEVICES of its Prolog mean", b.Job)
	}
	return list, nil
}
