package step

import (
	"fmt"
	"strings"
	"testing"

	"gputune/internal/affinity"
	"gputune/internal/idset"
	"gputune/internal/mig"
)

// TestDeal: tasks get the MIG devices of the GPUs that they have, in order, and
// are bound next to those.
func TestDeal(t *testing.T) {
	allowed, err := affinity.Get(0)
	if err != nil {
		t.Fatal(err)
	}
	if !idset.Range(0, 1).SubsetOf(allowed) {
		t.Skipf("this process may run on cpus %s: CPUs 0 and 1 are needed", allowed)
	}
	machine := open(t, laidOut(t, "")).Machine
	// GPUs 0 and 1 are of node 0, GPUs 2 and 3 of node 1.
	handout := mig.Handout{
		{GPU: machine.GPUs[3].UUID, UUIDs: []string{"MIG-3a", "MIG-3b"}},
		{GPU: machine.GPUs[0].UUID, UUIDs: []string{"MIG-0a"}},
	}.String()
	for name, c := range map[string]struct {
		constrain   string
		access      []string
		environment map[string]string
		want        []string // devices, CPUs and notes of sharing
	}{
		"all GPUs": {"yes", []string{"0,3", "0,3", "0,3"}, nil, []string{"MIG-0a 0", "MIG-3a 1", "MIG-3b 1"}},
		"own GPUs": {"yes", []string{"3", "0"}, nil, []string{"MIG-3a,MIG-3b 1", "MIG-0a 0"}},
		"shared": {"yes", []string{"3", "0", "3", "0", "3"}, nil, []string{
			"MIG-3a 1 shared by 2", "MIG-0a 0 shared by 2", "MIG-3b 1", "MIG-0a 0 shared by 2", "MIG-3a 1 shared by 2",
		}},
		"one that is not split": {"yes", []string{"1", "3"}, nil, []string{" 0", "MIG-3a,MIG-3b 1"}},
		"not constrained": {
			"no",
			[]string{"0-3", "0-3", "0-3", "0-3"},
			map[string]string{"SLURM_STEP_GPUS": "0,3"},
			[]string{"MIG-0a 0 shared by 2", "MIG-3a 1", "MIG-3b 1", "MIG-0a 0 shared by 2"},
		},
		"not constrained, one GPU": {"no", []string{"0-3", "0-3"}, map[string]string{"SLURM_STEP_GPUS": "3"}, []string{"MIG-3a 1", "MIG-3b 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			request := laidOut(t, "ConstrainDevices="+c.constrain+"\n")
			request.MIG, request.Environment = handout, c.environment
			s := open(t, request)
			tasks := sleepers(t, len(c.access))
			if err := s.Locate(tasks); err != nil {
				t.Fatal(err)
			}
			for i, gpus := range c.access {
				tasks[i].Access, tasks[i].Probed = idset.MustParse(gpus), nil
			}
			result, err := s.Bind(tasks)
			if err != nil {
				t.Fatal(err)
			}
			for i, outcome := range result.Tasks {
				cpus, err := affinity.Get(tasks[i].PID)
				if err != nil {
					t.Fatal(err)
				}
				got := strings.Join(outcome.Visible, ",") + " " + cpus.String()
				for _, note := range outcome.Notes {
					if device, sharers, shared := strings.Cut(note, ": "); shared && strings.HasSuffix(note, " tasks share it") && device == outcome.Visible[0] {
						got += " shared by " + strings.Fields(sharers)[0]
					}
				}
				if got != c.want[i] || outcome.ByEnvironment {
					t.Errorf("task %d: %q, want %q; %+v", i, got, c.want[i], outcome)
				}
			}
		})
	}
}

// What the Prolog of another version has written, or for another machine, is said
// and lived without.
func TestDealNonsense(t *testing.T) {
	for text, want := range map[string]string{
		"mps GPU-a\n":           "MIG devices: ",
		"gpu GPU-other MIG-a\n": "gpu GPU-other: the job has MIG devices of it, and this machine has no such GPU",
	} {
		request := laidOut(t, "ConstrainDevices=yes\n")
		request.MIG = text
		s := open(t, request)
		if log := strings.Join(s.Log, "\n"); len(s.splits) > 0 || !strings.Contains(log, want) {
			t.Errorf("%q: %v, log %s", text, s.splits, log)
		}
	}
	if s := (&Step{splits: nil}); fmt.Sprint(s.dealt(s.Option.Policy)) != fmt.Sprint(s.Option.Policy) {
		t.Error("the policy of a step without MIG is changed")
	}
}
