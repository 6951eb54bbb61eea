package compare

import (
	"fmt"
	"strings"
	"testing"

	"gputune/internal/idset"
	"gputune/internal/placement"
	"gputune/internal/topology"
	"gputune/tests/machines"
)

func machineOf(t *testing.T, name string) *topology.Machine {
	t.Helper()
	description, err := machines.Get(name)
	if err != nil {
		t.Fatal(err)
	}
	dir, remove, err := machines.Scratch()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := remove(); err != nil {
			t.Error(err)
		}
	})
	machine, err := description.Machine(dir)
	if err != nil {
		t.Fatal(err)
	}
	return machine
}

// ways compares one task for each GPU.
func ways(m *topology.Machine, cpus, mems idset.Set) map[string]Way {
	request := placement.Request{Policy: placement.Default(), CPUs: cpus, Mems: mems}
	for i := range m.GPUs {
		request.GPUs = append(request.GPUs, i)
		request.Tasks = append(request.Tasks, placement.Task{LocalID: i, GPUs: []int{i}})
	}
	named := make(map[string]Way)
	for _, way := range All(m, request, placement.Plan(m, request)) {
		named[way.Name] = way
	}
	return named
}

// The examples are worked out by hand from the documentation of each way.
func TestAll(t *testing.T) {
	all := idset.Set{}
	read := make(map[string]*topology.Machine)
	for _, c := range []struct {
		machine, way string
		cpus, mems   idset.Set
		want         string // CPUs of each task, or why it fails
		counts       Counts
	}{
		{"dgx-h100", "gputune", all, all, "0-55,112-167 0-55,112-167 0-55,112-167 0-55,112-167 56-111,168-223 56-111,168-223 56-111,168-223 56-111,168-223", Counts{Local: 8}},
		// 112 cores for eight tasks are 14 each, and the packages are filled in order: right by chance.
		{
			"dgx-h100", "slurm block", all, all, "0-13,112-125 14-27,126-139 28-41,140-153 42-55,154-167 56-69,168-181 70-83,182-195 84-97,196-209 98-111,210-223",
			Counts{Local: 8},
		},
		// In turn over the packages, every second task is on the wrong one.
		{
			"dgx-h100", "slurm cyclic", all, all, "0-13,112-125 56-69,168-181 14-27,126-139 70-83,182-195 28-41,140-153 84-97,196-209 42-55,154-167 98-111,210-223",
			Counts{Local: 4, Remote: 4},
		},
		{"dgx-a100", "slurm block", all, all, "", Counts{Remote: 8}},
		{"dgx-a100", "numactl", all, all, "", Counts{Local: 8}},
		{"dgx-a100", "torchrun socket", all, all, "", Counts{Mixed: 8}},
		{
			"dgx-a100", "torchrun exclusive", all, all,
			"48-55,176-183 56-63,184-191 16-23,144-151 24-31,152-159 112-119,240-247 120-127,248-255 80-87,208-215 88-95,216-223",
			Counts{Local: 8},
		},
		{
			"dgx-a100", "torchrun core-complex", all, all,
			"48-51,176-179 52-55,180-183 16-19,144-147 20-23,148-151 112-115,240-243 116-119,244-247 80-83,208-211 84-87,212-215",
			Counts{Local: 8},
		},
		// numa_node is -1: numactl refuses it, torchrun takes it for node 0.
		{"gpu-at-minus-one", "numactl", all, all, "0-7,16-23 numa_node is -1, which is no node", Counts{Local: 1, Failed: 1}},
		{"gpu-at-minus-one", "torchrun node", all, all, "0-7,16-23 0-7,16-23", Counts{Local: 1, Unknown: 1}},
		// One CPU of node 1 alone is granted.
		{"demo-dual", "torchrun node", idset.Of(1), all, "no CPU of node 0 is granted no CPU of node 0 is granted 1 1", Counts{Local: 2, Failed: 2}},
		{"demo-dual", "numactl", all, idset.Of(0), "0 0 memory of node 1 is not granted memory of node 1 is not granted", Counts{Local: 2, Failed: 2}},
		{"demo-dual", "torchrun exclusive", all, all, "1 cores of node 0 for 2 GPUs", Counts{Failed: 4}},
		// Two cores for four tasks: they share.
		{"demo-dual", "slurm block", all, all, "0 1 0 1", Counts{Local: 2, Remote: 2}},
	} {
		if read[c.machine] == nil {
			read[c.machine] = machineOf(t, c.machine)
		}
		way, found := ways(read[c.machine], c.cpus, c.mems)[c.way]
		if !found {
			t.Fatalf("no way %q", c.way)
		}
		var got []string
		for _, task := range way.Tasks {
			if task.Failure != "" {
				got = append(got, task.Failure)
			} else {
				got = append(got, task.CPUs.String())
			}
		}
		if text := strings.Join(got, " "); !strings.HasPrefix(text, c.want) || way.Counts() != c.counts {
			t.Errorf("%s, %s: %s, %+v; want %s, %+v", c.machine, c.way, text, way.Counts(), c.want, c.counts)
		}
	}
}

// Whatever the machine and the grant, no way leaves the grant, and every task has
// CPUs or a reason.
func TestEveryMachine(t *testing.T) {
	for _, description := range machines.All() {
		m := machineOf(t, description.Name)
		for _, cpus := range []idset.Set{{}, idset.Of(m.CPUs.Min()), m.CPUs.And(idset.Range(0, m.CPUs.Max()/2))} {
			granted := cpus
			if granted.Empty() {
				granted = m.CPUs
			}
			for name, way := range ways(m, cpus, idset.Set{}) {
				c := way.Counts()
				if c.Local+c.Mixed+c.Remote+c.Unknown+c.Failed != len(m.GPUs) {
					t.Errorf("%s, %s: %+v for %d tasks", description.Name, name, c, len(m.GPUs))
				}
				for _, task := range way.Tasks {
					if !task.CPUs.SubsetOf(granted) || task.CPUs.Empty() != (task.Failure != "") {
						t.Errorf("%s, %s: %s", description.Name, name, fmt.Sprintf("%+v", task))
					}
				}
			}
		}
	}
}
