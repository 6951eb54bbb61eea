package slurm

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"gputune/internal/topology"
)

// environment returns getenv over "NAME=VALUE" strings.
func environment(variables ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, variable := range variables {
			if value, found := strings.CutPrefix(variable, name+"="); found {
				return value, true
			}
		}
		return "", false
	}
}

// The environments are those that slurmd 22.05 gave its Prolog for such jobs.
func TestReadJob(t *testing.T) {
	of22 := []string{
		"SLURMD_NODENAME=n1", "SLURM_JOB_CPUS_PER_NODE=1", "SLURM_JOB_GID=1000", "SLURM_JOB_ID=7", "SLURM_JOB_PARTITION=main",
		"SLURM_JOB_UID=1000", "SLURM_JOB_USER=alice", "SLURM_SCRIPT_CONTEXT=prolog_slurmd",
	}
	base := Job{ID: "7", UID: 1000, GID: 1000, HasGID: true, User: "alice", Partition: "main", CPUs: 1}
	for name, c := range map[string]struct {
		more []string
		want func(*Job)
		mig  bool
	}{
		"no GPU": {nil, func(*Job) {}, false},
		"two GPUs": {
			[]string{"SLURM_JOB_GPUS=0,2-3", "CUDA_VISIBLE_DEVICES=0,2,3"},
			func(j *Job) {
				j.GPUs = []int{0, 2, 3}
				j.Visible.Devices = []Device{{Index: 0}, {Index: 2}, {Index: 3}}
			}, false,
		},
		"gres/mps": {
			[]string{"SLURM_JOB_GPUS=0", "CUDA_VISIBLE_DEVICES=0", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=2500"},
			func(j *Job) {
				j.GPUs, j.Visible.Devices, j.Part = []int{0}, []Device{{}}, "gres/mps gives it a part of the GPU"
			}, false,
		},
		"a UUID, as since 25.11": {
			[]string{"SLURM_JOB_GPUS=0", "CUDA_VISIBLE_DEVICES=GPU-4b0480b4-0000-4000-8000-000000000000"},
			func(j *Job) {
				j.GPUs = []int{0}
				j.Visible.Devices = []Device{{Kind: ByGPU, UUID: "4b0480b4-0000-4000-8000-000000000000"}}
			}, false,
		},
		"a MIG device": {
			[]string{"SLURM_JOB_GPUS=3", "CUDA_VISIBLE_DEVICES=MIG-5d1c0000-0000-4000-8000-000000000000"},
			func(j *Job) {
				j.GPUs = []int{3}
				j.Visible.Devices = []Device{{Kind: ByMIG, UUID: "5d1c0000-0000-4000-8000-000000000000"}}
			}, true,
		},
		"none visible": {[]string{"CUDA_VISIBLE_DEVICES=NoDevFiles"}, func(*Job) {}, false},
		"with accounting": {
			[]string{"SLURM_JOB_ACCOUNT=physics"},
			func(j *Job) { j.Account = "physics" }, false,
		},
	} {
		got, err := ReadJob(environment(append(c.more, of22...)...))
		want := base
		c.want(&want)
		if len(got.Visible.Devices) == 0 {
			got.Visible = Visible{}
		}
		for i := range got.Visible.Devices { // the part of the UUID that counts
			got.Visible.Devices[i].UUID = strings.TrimPrefix(strings.TrimPrefix(got.Visible.Devices[i].UUID, "GPU-"), "MIG-")
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v\nwant %+v", name, got, err, want)
		}
		if got.HasMIG() != c.mig || got.HasGPUs() != (len(want.GPUs) > 0 || len(want.Visible.Devices) > 0) {
			t.Errorf("%s: MIG %v, GPUs %v", name, got.HasMIG(), got.HasGPUs())
		}
	}
}

func TestReadJobRefuses(t *testing.T) {
	for variable, want := range map[string]string{
		"SLURM_JOB_ID=":             `SLURM_JOB_ID="": want a job's number`,
		"SLURM_JOB_ID=7/../8":       `SLURM_JOB_ID="7/../8": want`,
		"SLURM_JOB_UID=-1":          `SLURM_JOB_UID="-1": want a number`,
		"SLURM_JOB_GID=x":           `SLURM_JOB_GID="x": want a number`,
		"SLURM_JOB_GPUS=0;1":        "SLURM_JOB_GPUS: ",
		"SLURM_JOB_GPUS=0-99999999": "SLURM_JOB_GPUS: ",
		"CUDA_VISIBLE_DEVICES=zero": "CUDA_VISIBLE_DEVICES: ",
	} {
		_, err := ReadJob(environment(variable, "SLURM_JOB_ID=7", "SLURM_JOB_UID=0"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", variable, err, want)
		}
	}
	if _, err := ReadJob(environment("SLURM_JOB_ID=7")); err == nil || err.Error() != "SLURM_JOB_UID is not set: want the job's user" {
		t.Errorf("%v", err)
	}
}

func TestSharded(t *testing.T) {
	machine := &topology.Machine{GPUs: []topology.GPU{{Minor: 1}, {Minor: 0}, {Minor: 2}}}
	for name, c := range map[string]struct {
		gres, nodes, want string
	}{
		"none":           {"Name=gpu File=/dev/nvidia[0-2]", "NodeName=n1 Gres=gpu:3", "---"},
		"all":            {"Name=gpu File=/dev/nvidia[0-2]\nName=shard Count=8", "NodeName=n1 Gres=gpu:3,shard:8", "xxx"},
		"declared alone": {"AutoDetect=nvml", "NodeName=n1 Gres=gpu:3,shard:8", "xxx"},
		"one GPU":        {"Name=gpu File=/dev/nvidia[0-2]\nName=shard Count=8 File=/dev/nvidia0", "NodeName=n1 Gres=gpu:3,shard:8", "-x-"},
		"another node":   {"NodeName=n2 Name=shard Count=8", "NodeName=n1 Gres=gpu:3", "---"},
		"two GPUs":       {"NodeName=n1 Name=shard Count=8 File=/dev/nvidia[1-2]", "NodeName=n1 Gres=gpu:3,shard:8", "x-x"},
		"unknown file":   {"Name=shard Count=8 File=/dev/nvidia9", "NodeName=n1 Gres=gpu:3,shard:8", "xxx"},
		"dynamic node":   {"Name=gpu File=/dev/nvidia[0-2]", "", "xxx"},
		"not declared":   {"Name=shard Count=8 File=/dev/nvidia0", "NodeName=n1 Gres=gpu:3(S:0,1),mps:300", "-x-"},
	} {
		folder := t.TempDir()
		for file, text := range map[string]string{"gres.conf": c.gres + "\n", "slurm.conf": "ClusterName=c\nGresTypes=gpu,shard\n" + c.nodes + "\n"} {
			if err := os.WriteFile(filepath.Join(folder, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		gres, err := ReadGres(filepath.Join(folder, "gres.conf"))
		if err != nil {
			t.Fatal(err)
		}
		conf, err := ReadSlurm(filepath.Join(folder, "slurm.conf"))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, shared := range Sharded(gres, conf.DeclaresShards("n1"), "n1", machine, nil) {
			got += map[bool]string{false: "-", true: "x"}[shared]
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
