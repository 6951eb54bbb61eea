package step

import (
	"fmt"
	"strings"
	"testing"

	"gputune/internal/idset"
)

// Tasks that see the same GPUs are paired in the order in which their programs count them.
func TestPairedAsProgramsCount(t *testing.T) {
	for name, c := range map[string]struct {
		environment map[string]string
		option      string
		access      []string
		want        string
	}{
		"none":            {nil, "", []string{"0-3", "0-3", "0-3", "0-3"}, "[0] [1] [2] [3]"},
		"Slurm's":         {visible("0,1,2,3"), "", []string{"0-3", "0-3", "0-3", "0-3"}, "[0] [1] [2] [3]"},
		"permuted":        {visible("3,1,0,2"), "", []string{"0-3", "0-3", "0-3", "0-3"}, "[3] [1] [0] [2]"},
		"two each":        {visible("3,1,0,2"), "", []string{"0-3", "0-3"}, "[3 1] [0 2]"},
		"by UUID":         {visible("{3},{1},{0},{2}"), "", []string{"0-3", "0-3", "0-3", "0-3"}, "[3] [1] [0] [2]"},
		"two by UUID":     {visible("{3},{2}"), "", []string{"0-3", "0-3"}, "[3] [2]"},
		"some":            {visible("2,0"), "", []string{"0-3", "0-3"}, "[2] [0]"},
		"some, for three": {visible("2,0"), "", []string{"0-3", "0-3", "0-3"}, "[2 0] [2 0] [2 0]"},
		"gpus=all":        {visible("3,1,0,2"), "gpus=all", []string{"0-3", "0-3"}, "[3 1 0 2] [3 1 0 2]"},
		// Numbers are of what the task may open.
		"a job of two":     {visible("1,0"), "", []string{"1,3", "1,3"}, "[3] [1]"},
		"each its own":     {visible("1,0"), "", []string{"0-1", "2-3"}, "[1 0] [3 2]"},
		"the step's":       {visible("0,1,2,3"), "", []string{"0-1", "2-3"}, "[0 1] [2 3]"},
		"stops":            {visible("3,1,9,0"), "", []string{"0-3", "0-3"}, "[3] [1]"},
		"numbers, UUIDs":   {visible("3,1,{0}"), "", []string{"0-3", "0-3"}, "[3] [1]"},
		"strange":          {visible("3,x,0"), "", []string{"0-3", "0-3"}, "[3] [3]"},
		"not a task's":     {visible("{3},{0}"), "", []string{"0-1", "0-1"}, "[0] [1]"},
		"none, to CUDA":    {visible("3,1,0,2"), "", []string{"0-1", "0-1"}, "[0] [1]"},
		"a GPU twice":      {visible("3,3"), "", []string{"0-3", "0-3"}, "[0 1] [2 3]"},
		"set, and nothing": {visible(""), "", []string{"0-3", "0-3"}, "[0 1] [2 3]"},
	} {
		request := laidOut(t, "ConstrainDevices=yes\n")
		request.Option = items(c.option)
		s := open(t, request)
		s.environment = named(s, c.environment)
		got := ""
		for _, task := range bind(t, s, c.access...).Tasks {
			got += " " + fmt.Sprint(task.Binding.GPUs)
		}
		if got != " "+c.want {
			t.Errorf("%s:%s, want %s", name, got, c.want)
		}
	}
}

func visible(list string) map[string]string {
	return map[string]string{"CUDA_VISIBLE_DEVICES": list}
}

// items leaves CPUs and memory alone: nothing is about this machine.
func items(more string) string {
	if more == "" {
		return "cpus=none,mem=none"
	}
	return "cpus=none,mem=none," + more
}

// named replaces {0} by the UUID of GPU 0.
func named(s *Step, environment map[string]string) map[string]string {
	filled := map[string]string{}
	for name, value := range environment {
		for i, gpu := range s.Machine.GPUs {
			value = strings.ReplaceAll(value, fmt.Sprintf("{%d}", i), gpu.UUID)
		}
		filled[name] = value
	}
	return filled
}

// Where devices are not constrained a task decides for itself. What is likely goes by
// the step's list, but that of Slurm is a set.
func TestLikely(t *testing.T) {
	for name, c := range map[string]struct {
		environment map[string]string
		want        string
	}{
		"Slurm's":      {map[string]string{"CUDA_VISIBLE_DEVICES": "2,0", "SLURM_STEP_GPUS": "2,0"}, "0 2"},
		"the job's":    {map[string]string{"CUDA_VISIBLE_DEVICES": "2,0", "SLURM_JOB_GPUS": "2,0"}, "0 2"},
		"permuted":     {map[string]string{"CUDA_VISIBLE_DEVICES": "3,1,0,2", "SLURM_STEP_GPUS": "0-3"}, "1,3 0,2"},
		"some":         {map[string]string{"CUDA_VISIBLE_DEVICES": "3,0", "SLURM_STEP_GPUS": "0-3"}, "3 0"},
		"some of some": {map[string]string{"CUDA_VISIBLE_DEVICES": "3,1,0,2", "SLURM_STEP_GPUS": "0,1"}, "1 0"},
		"others":       {map[string]string{"CUDA_VISIBLE_DEVICES": "3", "SLURM_STEP_GPUS": "0,1"}, "0 1"},
	} {
		request := withNICs(t, "", "[environment]\nNODE = \"{node}\"\n")
		request.Environment = c.environment
		request.Option = items("")
		var got []idset.Set
		for _, task := range bind(t, open(t, request), "0-3", "0-3").Tasks {
			got = append(got, task.Variables.GPUs)
		}
		if text := got[0].String() + " " + got[1].String(); text != c.want {
			t.Errorf("%s: %s, want %s", name, text, c.want)
		}
	}
}
