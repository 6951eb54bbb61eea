package bed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Job is a line of squeue: a job that is waiting, running or completing.
type Job struct {
	ID     string // 12, or 12_3 for a task of an array
	State  string // RUNNING, PENDING, COMPLETING …
	User   string
	Reason string // why it waits, None if it does not
	Name   string
}

// query runs one of Slurm's programs and returns what it has printed; any
// status but 0 is an error.
func (b *Bed) query(ctx context.Context, name string, args ...string) (string, error) {
	result, err := b.Run(ctx, name, args...)
	if err != nil {
		return "", err
	}
	if !result.OK() {
		return "", fmt.Errorf("bed: %s", result)
	}
	return result.Stdout, nil
}

// Jobs returns the jobs that have not ended, in squeue's order.
func (b *Bed) Jobs(ctx context.Context) ([]Job, error) {
	text, err := b.query(ctx, "squeue", "--noheader", "--all", "--format=%i|%T|%u|%r|%j")
	if err != nil {
		return nil, err
	}
	return parseJobs(text)
}

func parseJobs(text string) ([]Job, error) {
	var jobs []Job
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		fields := strings.SplitN(line, "|", 5)
		if len(fields) != 5 {
			return nil, fmt.Errorf("bed: squeue printed %q: want 5 fields", line)
		}
		jobs = append(jobs, Job{ID: fields[0], State: fields[1], User: fields[2], Reason: fields[3], Name: fields[4]})
	}
	return jobs, nil
}

// NodeState returns the node's state as scontrol shows it, in lower case, and why
// it is drained or down, "" if it is not. The state is idle, mixed, allocated,
// down …, with an asterisk if slurmd does not respond, and with flags such as
// +drain, +completing; a node that is drained and runs nothing is idle+drain.
//
// It is not sinfo that is asked: after a restart of slurmctld, that of Slurm
// 22.05 goes on showing the CPUs that were in use then.
func (b *Bed) NodeState(ctx context.Context) (state, reason string, err error) {
	text, err := b.query(ctx, "scontrol", "show", "node", b.Node)
	if err != nil {
		return "", "", err
	}
	if state, reason = parseNode(text); state == "" {
		return "", "", fmt.Errorf("bed: scontrol shows no state of node %s: %q", b.Node, text)
	}
	return state, reason, nil
}

func parseNode(text string) (state, reason string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if value, found := strings.CutPrefix(line, "State="); found {
			state, _, _ = strings.Cut(strings.ToLower(value), " ")
		}
		if value, found := strings.CutPrefix(line, "Reason="); found {
			reason = value
		}
	}
	return state, reason
}

// hopeless reports whether a node in this state gets no more jobs.
func hopeless(state string) bool {
	return strings.Contains(state, "drain") || strings.Contains(state, "down") || strings.Contains(state, "inval") || strings.Contains(state, "fail")
}

// WaitIdle returns when no job is left, the node is idle and the last
// slurmstepd has gone. It returns an error at once if the node can no longer
// get idle since it is drained or down, and an error that says what still runs
// when ctx ends (after Options.Timeout if ctx has no deadline).
func (b *Bed) WaitIdle(ctx context.Context) error {
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, b.options.Timeout)
		defer cancel()
	}
	for {
		jobs, errJobs := b.Jobs(ctx)
		state, reason, errState := b.NodeState(ctx)
		stepds := b.Stepds()
		if errJobs == nil && errState == nil && len(jobs) == 0 && len(stepds) == 0 {
			switch {
			case state == "idle":
				return nil
			case hopeless(state):
				return fmt.Errorf("bed: node %s is %s: %s", b.Node, state, reason)
			}
		}
		if sleep(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("bed: not idle: jobs %v, node %s, slurmstepds %v: %w", jobs, state, stepds, errors.Join(context.Cause(ctx), errJobs, errState))
		}
	}
}

// Reconfigure has the daemons read their configuration again.
func (b *Bed) Reconfigure(ctx context.Context) error {
	_, err := b.query(ctx, "scontrol", "reconfigure")
	return err
}
