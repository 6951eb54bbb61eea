package main

import (
	"io"

	"gputune/internal/compare"
	"gputune/internal/idset"
	"gputune/internal/placement"
)

// planJSON is a plan as "gputune plan --format json" shows it. Reasons and Compare
// are there if they were asked for.
type planJSON struct {
	Source  string              `json:"source"`
	GPUs    []gpuJSON           `json:"gpus"`
	Tasks   []placement.Binding `json:"tasks"`
	Workers []workerJSON        `json:"workers,omitempty"` // with follow, of each GPU
	Reasons []reasonsJSON       `json:"reasons,omitempty"`
	Compare []wayJSON           `json:"compare,omitempty"`
}

// workerJSON is where a process goes that uses this GPU alone.
type workerJSON struct {
	GPU      int                `json:"gpu"`
	CPUs     idset.Set          `json:"cpus"`
	Mems     idset.Set          `json:"mems"`
	Locality placement.Locality `json:"locality"`
}

type reasonsJSON struct {
	LocalID int      `json:"local_id"`
	Reasons []string `json:"reasons"`
}

type wayJSON struct {
	Name  string `json:"name"`
	Means string `json:"means"`
	compare.Counts
	Tasks []compare.Task `json:"tasks"`
}

func writePlanJSON(w io.Writer, p plan) error {
	view := planJSON{Source: p.machine.Source, GPUs: gpusJSON(p.machine), Tasks: p.result.Tasks}
	if p.bind.Follow {
		for _, share := range p.result.Shares {
			view.Workers = append(view.Workers, workerJSON{share.GPU, share.CPUs, share.Mems, share.Locality})
		}
	}
	for i, reasons := range p.reasons {
		view.Reasons = append(view.Reasons, reasonsJSON{p.result.Tasks[i].LocalID, reasons})
	}
	for _, way := range p.ways {
		view.Compare = append(view.Compare, wayJSON{way.Name, way.Means, way.Counts(), way.Tasks})
	}
	return writeJSON(w, view)
}
