package step

import (
	"errors"
	"fmt"
	"slices"

	"gputune/internal/affinity"
	"gputune/internal/cgroup"
	"gputune/internal/idset"
	"gputune/internal/option"
	"gputune/internal/placement"
	"gputune/internal/slurm"
)

// Task is one task of the step: a forked process that waits.
type Task struct {
	LocalID int
	PID     int

	// By Locate.
	Join   string // cgroup.procs of the cgroup that devices are constrained in, "": none
	cgroup cgroup.Paths

	// By the caller, between Locate and Bind.
	Access idset.Set // GPUs of the machine that a process in the task's cgroup may open
	Probed error     // why Access could not be found, nil: it is right
}

// Outcome is what was done for one task.
type Outcome struct {
	// Sees is the set of GPUs that the task may see.
	Sees idset.Set
	// ByEnvironment says that devices are not constrained: which GPUs out of
	// Sees the task has, only its own CUDA_VISIBLE_DEVICES tells, and nothing
	// was applied.
	ByEnvironment bool
	Binding       placement.Binding
	// Visible are the MIG devices that the task is dealt, for its
	// CUDA_VISIBLE_DEVICES; none: the variable stays as it is.
	Visible  []string
	Warnings []string // what could not be had as asked
	Notes    []string // what else is worth knowing
	// Variables are the site's for this task, if its GPUs are those.
	Variables Variables
}

// Result is what was done for the step.
type Result struct {
	GPUs   idset.Set         // of the step
	Shares []placement.Share // one for each GPU of the machine that the step may use
	Tasks  []Outcome         // one for each task
	// Cautions are what the user should know and no task fails for.
	Cautions []string
	// OfGPU are the variables for a task that has one GPU of the step alone, and
	// Anywhere those for one whose GPUs are others.
	OfGPU    []Variables
	Anywhere Variables
	// FollowFile is what was written down for the agent that follows the step's workers,
	// to be removed at the step's end, "" nothing. NotFollowed is why nobody follows
	// them though that was asked for, "" somebody does.
	FollowFile, NotFollowed string
}

var errNoDeviceCgroup = errors.New("the task is in no cgroup in which Slurm constrains devices")

// Locate finds the cgroup of each task.
func (s *Step) Locate(tasks []Task) error {
	hierarchies, err := cgroup.Mounted(s.root)
	if err != nil {
		return err
	}
	for i := range tasks {
		paths, err := hierarchies.Of(tasks[i].PID)
		tasks[i].cgroup = paths
		tasks[i].Join = paths.DeviceProcs()
		if tasks[i].Join == "" && err == nil {
			err = errNoDeviceCgroup
		}
		if tasks[i].Join == "" {
			tasks[i].Probed = err
		}
	}
	return nil
}

// Bind plans for all tasks and applies the plan to those whose GPUs are known.
func (s *Step) Bind(tasks []Task) (Result, error) {
	result := Result{Tasks: make([]Outcome, len(tasks))}
	managed := s.managed()
	for i := range tasks {
		s.see(&tasks[i], managed, &result.Tasks[i])
	}
	result.GPUs = s.stepGPUs(managed, result.Tasks)
	s.deal(&result)
	layout, err := s.layout(tasks, result)
	if err != nil {
		return Result{}, err
	}
	plan := placement.Plan(s.Machine, layout.Request())
	result.Shares = plan.Shares
	if s.Option.On && s.Option.Follow {
		s.follow(tasks, &result)
		if s.Option.Policy.Mem == placement.MemPrefer && preferOne() {
			looseMemory(&plan)
		}
	}
	for i := range tasks {
		outcome := &result.Tasks[i]
		outcome.Binding = plan.Tasks[i]
		if outcome.ByEnvironment || len(outcome.Warnings) > 0 {
			continue
		}
		for _, warning := range plan.Tasks[i].Warnings {
			if warning.Code == placement.NoGPU && !s.given {
				continue // a site's default is for tasks that have GPUs
			}
			outcome.Warnings = append(outcome.Warnings, warning.Text)
		}
		s.apply(&tasks[i], outcome)
	}
	s.variables(layout, &result)
	s.lookAtMemory(s.memoryMiB, &result)
	return result, nil
}

// managed returns the GPUs of the machine that Slurm hands out.
func (s *Step) managed() idset.Set {
	var managed idset.Set
	for _, gpu := range s.Order {
		if gpu >= 0 {
			managed.Add(gpu)
		}
	}
	return managed
}

// see tells which GPUs a task may see. A task that may open some of the node's
// GPUs and not others is constrained, and those are its own. One that may open
// all is constrained if Slurm is configured to, else its environment decides:
// where devices are constrained the environment tells nothing (CUDA's and
// Slurm's indices are renumbered for each task).
func (s *Step) see(task *Task, managed idset.Set, outcome *Outcome) {
	access := task.Access.And(managed)
	switch {
	case task.Probed != nil && s.constrained.devices:
		outcome.Warnings = append(outcome.Warnings, fmt.Sprintf("left as it is: its GPUs could not be told: %v", task.Probed))
	case task.Probed == nil && (s.constrained.devices || !access.Equal(managed)):
		outcome.Sees = access
	default:
		outcome.Sees, outcome.ByEnvironment = managed, true
	}
}

// stepGPUs returns the GPUs of the step: what its tasks may open, or what
// Slurm's variables name.
func (s *Step) stepGPUs(managed idset.Set, tasks []Outcome) idset.Set {
	var seen idset.Set
	byEnvironment := false
	for _, task := range tasks {
		seen = seen.Or(task.Sees)
		byEnvironment = byEnvironment || task.ByEnvironment
	}
	if !byEnvironment {
		return seen
	}
	for _, name := range []string{"SLURM_STEP_GPUS", "SLURM_JOB_GPUS"} {
		list, found := s.environment[name]
		if !found || list == "" {
			continue
		}
		indices, err := slurm.ParseGPUList(list)
		if err != nil {
			s.log("%s: %v", name, err)
			continue
		}
		var named idset.Set
		for index := range indices.All() {
			if index < len(s.Order) && s.Order[index] >= 0 {
				named.Add(s.Order[index])
			}
		}
		if !named.Empty() {
			return named
		}
	}
	return managed
}

// policy is what was asked for, less what the user decided by other options:
// what is left alone cannot be had otherwise than asked.
func (s *Step) policy() placement.Policy {
	policy := s.dealt(s.Option.Policy)
	if s.KeepCPUs != "" {
		policy.CPUs = placement.CPUsNone
	}
	if s.KeepMems != "" {
		policy.Mem = placement.MemNone
	}
	return policy
}

// layout says what was granted. CPUs are those of the step's cpuset where
// Slurm constrains cores, else those that its tasks were bound to together:
// then nothing but their affinity says what the step was given.
func (s *Step) layout(tasks []Task, result Result) (Layout, error) {
	layout := Layout{Policy: s.policy(), GPUs: result.GPUs}
	// Slurm holds all tasks of a step to the same nodes and the same cpuset.
	first := &tasks[0]
	var err error
	if layout.Mems, err = cgroup.MemsAllowed(s.root, first.PID); err != nil {
		return layout, err
	}
	var cpuset idset.Set
	if s.constrained.cores {
		if cpuset, err = first.cgroup.CPUs(); err != nil {
			s.log("cpuset of pid %d: %v: what its step was granted is taken from its tasks' affinity", first.PID, err)
		}
		layout.CPUs = cpuset
	}
	for i := range tasks {
		if tasks[i].PID <= 0 { // 0 would be this very process
			return layout, fmt.Errorf("task %d: pid %d: slurmstepd has not told it", tasks[i].LocalID, tasks[i].PID)
		}
		cpus, err := affinity.Get(tasks[i].PID)
		if err != nil {
			return layout, err
		}
		if cpuset.Empty() {
			layout.CPUs = layout.CPUs.Or(cpus)
		}
		task := placement.Task{LocalID: tasks[i].LocalID, CPUs: cpus}
		if !result.Tasks[i].ByEnvironment {
			task.GPUs = slices.Collect(result.Tasks[i].Sees.All())
			if len(result.Tasks[i].Visible) == 0 { // else its list is replaced
				task.GPUs = s.counted(result.Tasks[i].Sees)
			}
		}
		layout.Tasks = append(layout.Tasks, task)
	}
	return layout, nil
}

// apply writes the task's cpuset and sets its affinity. Its memory policy only
// the task itself can set.
func (s *Step) apply(task *Task, outcome *Outcome) {
	cpus, mems := outcome.Binding.CPUs, idset.Set{}
	if outcome.Binding.MemPolicy == placement.MemBind {
		mems = outcome.Binding.Mems
	}
	if s.Option.Enforce == option.EnforceCgroup && (!cpus.Empty() || !mems.Empty()) {
		s.confine(task, outcome, cpus, mems)
	}
	if cpus.Empty() {
		return
	}
	if err := affinity.Set(task.PID, cpus); err != nil {
		outcome.Warnings = append(outcome.Warnings, err.Error())
	}
}

func (s *Step) confine(task *Task, outcome *Outcome, cpus, mems idset.Set) {
	err := task.cgroup.Confine(task.PID, cpus, mems)
	var unfit *cgroup.NotOwnError
	switch {
	case err == nil:
	case errors.As(err, &unfit):
		outcome.Notes = append(outcome.Notes, fmt.Sprintf("affinity alone: %s", unfit.Reason))
	default:
		outcome.Warnings = append(outcome.Warnings, err.Error())
	}
}
