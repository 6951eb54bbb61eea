package verify

import (
	"fmt"
	"io"
	"strconv"
)

// Report is what a person, or a program, reads about tasks. Lists of CPUs and
// nodes are in the kernel's form.
type Report struct {
	Tasks []TaskReport `json:"tasks"`
}

// TaskReport is one task against its plan.
type TaskReport struct {
	Job       string    `json:"job,omitempty"`
	Step      string    `json:"step,omitempty"`
	PID       int       `json:"pid"`
	Program   string    `json:"program"`
	GPUs      string    `json:"gpus"`
	CPUs      string    `json:"cpus"`
	Mems      string    `json:"mems"`
	Policy    string    `json:"mem_policy"`
	Processes int       `json:"processes"`
	Threads   int       `json:"threads"`
	MiB       int64     `json:"memory_mib"`      // anonymous memory that was looked at
	AwayMiB   int64     `json:"away_memory_mib"` // of that, on other nodes than planned
	Findings  []Problem `json:"findings"`
}

// Problem is one finding.
type Problem struct {
	PID     int    `json:"pid"`
	Program string `json:"program"`
	Kind    Kind   `json:"kind"`
	Want    string `json:"want"`
	Found   string `json:"found"`
	text    string
}

// Select returns the tasks that which names: "" all on this node, else a job that
// has some here, or a process. process says that it is one in any case.
func (h Host) Select(which string, process bool) ([]Task, error) {
	number, err := strconv.ParseUint(which, 10, 31)
	if which != "" && (err != nil || number == 0) {
		return nil, fmt.Errorf("%q: want the number of a job or of a process", which)
	}
	if process {
		task, err := h.Of(int(number))
		return []Task{task}, err
	}
	all, err := h.Tasks()
	if err != nil || which == "" {
		return all, err
	}
	var tasks []Task
	for _, task := range all {
		if task.Job == which {
			tasks = append(tasks, task)
		}
	}
	if len(tasks) > 0 {
		return tasks, nil
	}
	task, err := h.Of(int(number))
	if err != nil {
		return nil, fmt.Errorf("no bound task of a job %s is here: %w", which, err)
	}
	return []Task{task}, nil
}

// CheckAll checks tasks and reports on them.
func (h Host) CheckAll(tasks []Task) (Report, error) {
	report := Report{Tasks: []TaskReport{}}
	for _, task := range tasks {
		r, err := h.Check(task)
		if err != nil {
			return report, err
		}
		first := task.Processes[0]
		one := TaskReport{
			Job: task.Job, Step: task.Step, PID: first.PID, Program: first.Program, GPUs: task.Plan.GPUs,
			CPUs: task.Plan.CPUs.String(), Mems: task.Plan.Mems.String(), Policy: task.Plan.Policy,
			Processes: len(task.Processes), Threads: r.Threads, MiB: r.Pages >> 8, AwayMiB: r.Away >> 8, Findings: []Problem{},
		}
		for _, f := range r.Findings {
			one.Findings = append(one.Findings, Problem{f.PID, f.Program, f.Kind, f.Want, f.Found, f.String()})
		}
		report.Tasks = append(report.Tasks, one)
	}
	return report, nil
}

// Off tells whether anything is not as planned.
func (r Report) Off() bool {
	for _, task := range r.Tasks {
		if len(task.Findings) > 0 {
			return true
		}
	}
	return false
}

// Write writes the report as lines for people.
func (r Report) Write(w io.Writer) error {
	if len(r.Tasks) == 0 {
		_, err := fmt.Fprintln(w, "no bound task is on this node")
		return err
	}
	for _, task := range r.Tasks {
		of := ""
		if task.Job != "" {
			of = fmt.Sprintf("job %s step %s: ", task.Job, task.Step)
		}
		mems := ""
		if task.Mems != "" {
			mems = fmt.Sprintf(", mems %s %s", task.Mems, task.Policy)
		}
		state := "as planned"
		if len(task.Findings) > 0 {
			state = "NOT as planned"
		}
		if _, err := fmt.Fprintf(w, "%stask %d (%s): gpus %s, cpus %s%s: %d processes, %d threads, %d MiB: %s\n",
			of, task.PID, task.Program, task.GPUs, task.CPUs, mems, task.Processes, task.Threads, task.MiB, state); err != nil {
			return err
		}
		for _, f := range task.Findings {
			if _, err := fmt.Fprintln(w, "  "+f.text); err != nil {
				return err
			}
		}
	}
	return nil
}
