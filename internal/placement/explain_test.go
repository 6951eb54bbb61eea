package placement

import (
	"slices"
	"strings"
	"testing"

	"gputune/internal/idset"
	"gputune/tests/machines"
)

// Every task of every plan is explained, by its own GPUs, CPUs and nodes.
func TestExplainEverything(t *testing.T) {
	for _, description := range machines.All() {
		machine := machineOf(t, description)
		for _, c := range cases(machine) {
			result := Plan(machine, c.request)
			for i, reasons := range Explain(machine, c.request, result) {
				b := result.Tasks[i]
				text := strings.Join(reasons, "\n")
				for _, gpu := range b.GPUs {
					if !strings.Contains(text, "GPU "+machine.GPUs[gpu].PCI) {
						t.Errorf("%s, %s: gpu %d is missing in\n%s", description.Name, c.name, gpu, text)
					}
				}
				if len(b.GPUs) > 0 && (!strings.Contains(text, "\n"+string(b.Locality)+": ") ||
					!b.CPUs.Empty() && !strings.Contains(text, "runs on cpus "+b.CPUs.String()) ||
					!b.Mems.Empty() && !strings.Contains(text, " "+b.Mems.String()+" ")) {
					t.Errorf("%s, %s, task %d: %+v is explained as\n%s", description.Name, c.name, b.LocalID, b, text)
				}
				if len(b.GPUs) == 0 && len(reasons) != 1 {
					t.Errorf("%s: without a GPU: %q", description.Name, reasons)
				}
				if strings.Contains(text, "%!") || strings.Contains(text, "  ") || slices.Contains(reasons, "") {
					t.Errorf("%s, %s: %q", description.Name, c.name, text)
				}
			}
		}
	}
}

func TestExplain(t *testing.T) {
	machine := machineOf(t, described(t, "snc-two-nodes"))
	policy := Default()
	policy.CPUs, policy.Mem = CPUsExclusive, MemBind
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	request := Request{
		Policy: policy, CPUs: idset.Range(0, 20), Mems: idset.Of(0), GPUs: all,
		Tasks: []Task{{LocalID: 0, GPUs: all}, {LocalID: 1, GPUs: all}},
	}
	got := Explain(machine, request, Plan(machine, request))[1]
	want := []string{
		"Uses GPUs 4,5,6,7: the 2 tasks see the same 8 GPUs, and each uses its part in turn (gpus=auto).",
		"GPU 0000:9b:00.0 is at nodes 2-3: known from nvml memory affinity.",
		"GPU 0000:bb:00.0 is at nodes 2-3: known from nvml memory affinity.",
		"GPU 0000:cb:00.0 is at nodes 2-3: known from nvml memory affinity.",
		"GPU 0000:db:00.0 is at nodes 2-3: known from nvml memory affinity.",
		"None of the 96 CPUs of nodes 2-3 is granted; of the granted ones, those of node 0 are the nearest.",
		"The 21 granted cores of node 0 are divided among the 8 GPUs of the step there (cpus=exclusive).",
		"So it runs on cpus 12-20.",
		"New memory comes from node 0 and no other (mem=bind), the nearest to nodes 2-3 that is granted and has memory.",
		"remote: no CPU of it is near any of its GPUs.",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func described(t *testing.T, name string) machines.Description {
	t.Helper()
	description, err := machines.Get(name)
	if err != nil {
		t.Fatal(err)
	}
	return description
}
