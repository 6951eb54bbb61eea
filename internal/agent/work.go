package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"gputune/conf"
	"gputune/internal/follow"
	"gputune/internal/job"
	"gputune/internal/ledger"
	"gputune/internal/sample"
	"gputune/internal/slurm"
	"gputune/internal/snapshot"
	"gputune/internal/topology"
)

// Roles of a child.
const (
	RoleRestore  = "restore"  // answer: Restored
	RoleHeld     = "held"     // answer: Held
	RoleSnapshot = "snapshot" // answer: Snapshot
)

// Restored is what a child has put back.
type Restored struct {
	Outcomes []Outcome `json:"outcomes"`
	Error    string    `json:"error,omitempty"` // what else went wrong
}

// Outcome is what was done about one key, as ledger.Outcome.
type Outcome struct {
	Job    string        `json:"job"`
	Key    string        `json:"key"`
	Action ledger.Action `json:"action"`
	Text   string        `json:"text"` // the line for people
}

// Held is what jobs hold and what is there now.
type Held struct {
	Keys []HeldKey `json:"keys"`
}

// HeldKey is one key that a job holds.
type HeldKey struct {
	Job     string `json:"job"`
	Key     string `json:"key"`
	Set     string `json:"set"`
	Current string `json:"current"`
	Drift   bool   `json:"drift"`
	Error   string `json:"error,omitempty"` // why Current cannot be read
}

// Snapshot is a snapshot that was taken.
type Snapshot struct {
	GPUs     int      `json:"gpus"`
	Warnings []string `json:"warnings"`
}

// Driver is the driver's library for children.
type Driver interface {
	topology.NVML
	// Lists returns what tells who uses GPUs.
	Lists() follow.Lister
	// Sampler opens it to look at GPUs.
	Sampler() (sample.Source, error)
}

// Serve does the work that is described on in and writes the answer to out. host
// is this node, its configuration left out; nvml is the driver's library.
func Serve(ctx context.Context, host *job.Host, nvml Driver, in io.Reader, out io.Writer) error {
	var work Work
	orders := json.NewDecoder(in)
	if err := orders.Decode(&work); err != nil {
		return fmt.Errorf("work: %w", err)
	}
	host.Load(work.Config)
	var answer any
	var err error
	switch work.Role {
	case RoleRestore:
		answer = restore(ctx, host, work.Jobs)
	case RoleHeld:
		answer, err = held(ctx, host)
	case RoleSnapshot:
		answer, err = take(host, nvml)
	case RoleFollow:
		return serveFollow(ctx, work, nvml.Lists(), orders, out)
	case RoleSample:
		source, err := nvml.Sampler()
		if err != nil {
			return err
		}
		return sample.Serve(source, orders, out)
	default:
		err = fmt.Errorf("role %q: want %s, %s, %s, %s or %s", work.Role, RoleRestore, RoleHeld, RoleSnapshot, RoleFollow, RoleSample)
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(answer)
}

// restore puts back what the jobs hold, unless one shows on the node again. What
// went wrong is in the answer, beside what was done.
func restore(ctx context.Context, host *job.Host, jobs []string) Restored {
	alive := func(id string) bool {
		if !slices.Contains(jobs, id) {
			return true
		}
		here, err := jobsHere(host.Root, host.Site)
		return err != nil || here[id] != ""
	}
	outcomes, err := host.RestoreEnded(ctx, alive)
	var errs []error
	for _, id := range jobs {
		if !alive(id) {
			errs = append(errs, host.Forget(id))
		}
	}
	answer := Restored{Outcomes: []Outcome{}}
	for _, o := range outcomes {
		answer.Outcomes = append(answer.Outcomes, Outcome{Job: o.Job, Key: o.Key, Action: o.Action, Text: job.Describe(o)})
	}
	if err := errors.Join(append(errs, err)...); err != nil {
		answer.Error = err.Error()
	}
	return answer
}

// jobsHere looks which jobs are on this node.
func jobsHere(root string, site conf.Config) (map[string]string, error) {
	path := filepath.Join(root, string(site.Agent.SlurmConf))
	if site.Agent.SlurmConf == "" {
		path = slurm.FindConf(root)
	}
	c, err := slurm.ReadSlurm(path)
	if err != nil {
		return nil, err
	}
	return slurm.JobsHere(root, c)
}

func held(ctx context.Context, host *job.Host) (Held, error) {
	list, err := host.Held(ctx)
	answer := Held{Keys: []HeldKey{}}
	for _, h := range list {
		key := HeldKey{Job: h.Job, Key: h.Key, Set: h.Set, Current: h.Current, Drift: h.Drift}
		if h.Err != nil {
			key.Error = h.Err.Error()
		}
		answer.Keys = append(answer.Keys, key)
	}
	return answer, err
}

func take(host *job.Host, nvml topology.NVML) (Snapshot, error) {
	machine, err := snapshot.Take(string(host.Site.Paths.Machine), filepath.Join(host.Root, string(host.Site.Paths.Snapshot)), nvml)
	if err != nil {
		return Snapshot{}, err
	}
	return Snapshot{GPUs: len(machine.GPUs), Warnings: append([]string{}, machine.Warnings...)}, nil
}
