package launch

import (
	"strings"
	"testing"
)

func lookup(environment string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, variable := range strings.Fields(environment) {
			if key, value, _ := strings.Cut(variable, "="); key == name {
				return value, true
			}
		}
		return "", false
	}
}

func TestFromEnvironment(t *testing.T) {
	for environment, want := range map[string]Rank{
		"":                                {0, 1, ""},
		"LOCAL_RANK=3 LOCAL_WORLD_SIZE=8": {3, 8, "LOCAL_RANK"},
		"LOCAL_RANK=3":                    {3, 0, "LOCAL_RANK"},
		"LOCAL_RANK=":                     {0, 1, ""},
		"OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 SLURM_LOCALID=0": {1, 2, "OMPI_COMM_WORLD_LOCAL_RANK"},
		"MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2":                                       {0, 2, "MPI_LOCALRANKID"},
		"SLURM_LOCALID=0":                                                           {0, 1, "SLURM_LOCALID"}, // a batch script
		"SLURM_LOCALID=2 SLURM_STEP_TASKS_PER_NODE=4":                               {2, 4, "SLURM_LOCALID"},
		"SLURM_LOCALID=2 SLURM_STEP_TASKS_PER_NODE=4(x2),3 SLURM_NODEID=1":          {2, 4, "SLURM_LOCALID"},
		"SLURM_LOCALID=2 SLURM_STEP_TASKS_PER_NODE=4(x2),3 SLURM_NODEID=2":          {2, 3, "SLURM_LOCALID"},
		// torchrun in a step of Slurm's.
		"SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=1 LOCAL_RANK=5 LOCAL_WORLD_SIZE=8": {5, 8, "LOCAL_RANK"},
	} {
		if got, err := FromEnvironment(lookup(environment)); err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", environment, got, err, want)
		}
	}
	for environment, want := range map[string]string{
		"LOCAL_RANK=x":                      `LOCAL_RANK="x": want a number from 0 to 4096`,
		"LOCAL_RANK=-1":                     "want a number",
		"LOCAL_RANK=99999999999999999999":   "want a number",
		"LOCAL_RANK=0 LOCAL_WORLD_SIZE=two": "LOCAL_WORLD_SIZE=",
		"LOCAL_RANK=8 LOCAL_WORLD_SIZE=8":   "there are 8 ranks on this node",
		"SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=4(x2),3 SLURM_NODEID=3": "says nothing about node 3",
		"SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=4(x SLURM_NODEID=0":     "want numbers of tasks",
		"SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=4(x-1)":                 "want numbers of tasks",
		"SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=many":                   "want numbers of tasks",
		"SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=999999999999":           "want numbers of tasks",
		"SLURM_LOCALID=4 SLURM_STEP_TASKS_PER_NODE=4":                      "there are 4 ranks",
		"SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE=4 SLURM_NODEID=first":   "SLURM_NODEID=",
		"OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=-3":       "OMPI_COMM_WORLD_LOCAL_SIZE=",
	} {
		if _, err := FromEnvironment(lookup(environment)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", environment, err, want)
		}
	}
}
