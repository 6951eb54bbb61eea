package agent

import (
	"path/filepath"

	"gputune/internal/topology"
)

// count brings the metrics up to date that come from files alone.
func (a *Agent) count() {
	m := a.Metrics
	records, err := a.Host.Records()
	if err != nil {
		return // the look after what was left has said so
	}
	reports, err := a.Host.Reports()
	if err != nil {
		return
	}
	pci := a.addresses()
	m.Update(func() {
		m.JobsHolding.Set(float64(len(records)))
		m.SettingsHeld.Reset()
		m.GPUJob.Reset()
		for _, r := range records {
			for _, key := range r.Keys {
				m.SettingsHeld.WithLabelValues(settingName(key)).Inc()
				if uuid, _ := split(key); uuid != "" {
					m.GPUJob.WithLabelValues(pci[uuid], uuid, r.Job).Set(1)
				}
			}
		}
		m.Options.Reset()
		for _, report := range reports {
			for _, option := range report.Options {
				m.Options.WithLabelValues(option.Name, string(option.State)).Inc()
			}
		}
	})
	finished, err := a.Host.TakeFinished()
	for _, f := range finished {
		m.Runs.WithLabelValues(f.Program, f.Outcome).Inc()
		m.Durations.WithLabelValues(f.Program).Observe(f.Seconds)
	}
	a.sayOnce("count", err)
}

// addresses returns the PCI address of each GPU by UUID, as the snapshot has them.
func (a *Agent) addresses() map[string]string {
	pci := map[string]string{}
	paths := a.Host.Site.Paths
	machine, err := topology.ReadSnapshot(string(paths.Machine), filepath.Join(a.Host.Root, string(paths.Snapshot)))
	if err != nil {
		return pci
	}
	for _, gpu := range machine.GPUs {
		pci[gpu.UUID] = gpu.PCI
	}
	return pci
}

func (a *Agent) writeTextfile() error {
	path := a.Host.Site.Agent.Textfile
	if path == "" {
		return nil
	}
	return a.Metrics.Write(filepath.Join(a.Host.Root, string(path)))
}
