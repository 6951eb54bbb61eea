package placement

import (
	"testing"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

// Under cpus=none a task's CPUs are where Slurm put them.
func TestLocalityOfCPUsThatAreLeftAlone(t *testing.T) {
	machine := &topology.Machine{
		CPUs:  idset.Range(0, 11),
		Nodes: []topology.Node{{ID: 0, CPUs: idset.Range(0, 3), MemoryMiB: 1}, {ID: 1, CPUs: idset.Range(4, 7), MemoryMiB: 1}, {ID: 2, CPUs: idset.Range(8, 11), MemoryMiB: 1}},
		GPUs:  []topology.GPU{{Index: 0, Nodes: idset.Of(0)}, {Index: 1, Nodes: idset.Of(1)}, {Index: 2}},
	}
	for _, c := range []struct {
		cpus string
		gpus []int
		want Locality
	}{
		{"0-1", []int{0}, Local},
		{"0-4", []int{0}, Mixed},
		{"4-7", []int{0}, Remote},
		{"", []int{0}, Unknown}, // nobody knows where it runs
		{"0-7", []int{0, 1}, Local},
		{"0,4", []int{0, 1}, Local},
		{"0-1", []int{0, 1}, Mixed}, // nothing is near GPU 1
		{"8-9", []int{0, 1}, Remote},
		{"0-1", []int{2}, Unknown},
		{"0-1", []int{0, 2}, Mixed},
	} {
		request := Request{
			Policy: Policy{CPUs: CPUsNone, Mem: MemNone, SMT: SMTAll, GPUs: GPUsAll},
			GPUs:   c.gpus, Tasks: []Task{{GPUs: c.gpus, CPUs: idset.MustParse(c.cpus)}},
		}
		if got := Plan(machine, request).Tasks[0].Locality; got != c.want {
			t.Errorf("cpus %q, gpus %v: %s, want %s", c.cpus, c.gpus, got, c.want)
		}
		if got := Judge(machine, idset.MustParse(c.cpus), c.gpus); got != c.want {
			t.Errorf("cpus %q, gpus %v: judged %s, want %s", c.cpus, c.gpus, got, c.want)
		}
	}
}

// A source such as an old "nvidia-smi topo -m" states no CPUs at all.
func TestMachineWithoutKnownCPUs(t *testing.T) {
	machine := &topology.Machine{GPUs: []topology.GPU{{Index: 0}, {Index: 1}}}
	for _, mode := range []CPUMode{CPUsNode, CPUsExclusive, CPUsCoreComplex, CPUsSocket, CPUsNone} {
		policy := Default()
		policy.CPUs = mode
		request := Request{Policy: policy, GPUs: []int{0, 1}, Tasks: []Task{{LocalID: 0, GPUs: []int{0}}, {LocalID: 1, GPUs: []int{1}}}}
		result := Plan(machine, request)
		for i, b := range result.Tasks {
			if !b.CPUs.Empty() || b.Locality != Unknown || len(b.Warnings) == 0 {
				t.Errorf("cpus=%s: %+v", mode, b)
			}
			if reasons := Explain(machine, request, result)[i]; len(reasons) < 4 {
				t.Errorf("cpus=%s: %q", mode, reasons)
			}
		}
	}
}
