package slurm

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Job is what Prolog and Epilog are told of a job on this node. All of it is
// slurmd's own word.
type Job struct {
	ID        string // decimal: SLURM_JOB_ID; an array's element and a heterogeneous job's component have ids of their own
	UID       uint32 // SLURM_JOB_UID
	GID       uint32 // SLURM_JOB_GID
	HasGID    bool   // without it GID says nothing: 0 is root's
	User      string // SLURM_JOB_USER, "" not known
	Account   string // SLURM_JOB_ACCOUNT, "" no accounting
	Partition string // SLURM_JOB_PARTITION

	// CPUs is how many CPUs the job has on this node, 0 not known. Which ones they
	// are slurmd does not tell. Source: SLURM_JOB_CPUS_PER_NODE.
	CPUs int
	// Oversubscribe and Exclusive are SLURM_JOB_OVERSUBSCRIBE (since 23.02) and
	// SLURM_JOB_EXCLUSIVE (since 26.05), "" not set: see Conf.Shared.
	Oversubscribe, Exclusive string

	// GPUs are the gres indices of the GPUs that the job has on this node, see
	// GPUOrder; empty without GPUs. Source: SLURM_JOB_GPUS, which slurmd sets
	// for gres/gpu and gres/mps in all releases.
	GPUs []int
	// Visible is CUDA_VISIBLE_DEVICES: gres indices, MIG UUIDs and, since 25.11
	// where slurmd asks the driver (AutoDetect=nvml, nvidia), GPU UUIDs.
	Visible Visible
	// Part says why the GPUs are not the job's alone, "" where nothing in the
	// environment says so: gres/mps gives several jobs the same GPU, and sets
	// CUDA_MPS_ACTIVE_THREAD_PERCENTAGE. gres/shard does, too, and sets nothing:
	// see Sharded.
	Part string
}

// ReadJob reads the environment of Prolog and Epilog. getenv is that of the
// process. An error names the variable, the value and what it has to be: it is
// slurmd's fault or that of somebody who runs the program by hand.
func ReadJob(getenv func(string) (string, bool)) (Job, error) {
	text := func(name string) string {
		value, _ := getenv(name)
		return value
	}
	id, err := JobID(getenv)
	if err != nil {
		return Job{}, err
	}
	job := Job{
		ID: id, User: text("SLURM_JOB_USER"), Account: text("SLURM_JOB_ACCOUNT"),
		Partition: text("SLURM_JOB_PARTITION"), Oversubscribe: text("SLURM_JOB_OVERSUBSCRIBE"), Exclusive: text("SLURM_JOB_EXCLUSIVE"),
	}
	node, _ := NodeName(getenv)
	job.CPUs = cpusHere(text("SLURM_JOB_CPUS_PER_NODE"), cmp.Or(text("SLURM_JOB_NODELIST"), text("SLURM_NODELIST")), node)
	for name, target := range map[string]*uint32{"SLURM_JOB_UID": &job.UID, "SLURM_JOB_GID": &job.GID} {
		value, found := getenv(name)
		number, err := strconv.ParseUint(value, 10, 32)
		if found && err != nil {
			return job, fmt.Errorf("%s=%q: want a number", name, cut(value))
		}
		if !found && name == "SLURM_JOB_UID" {
			return job, fmt.Errorf("%s is not set: want the job's user", name)
		}
		*target = uint32(number)
		job.HasGID = job.HasGID || found && name == "SLURM_JOB_GID"
	}
	if list := text("SLURM_JOB_GPUS"); list != "" {
		set, err := ParseGPUList(list)
		if err != nil {
			return job, fmt.Errorf("SLURM_JOB_GPUS: %w", err)
		}
		job.GPUs = slices.Collect(set.All())
	}
	visible, found := getenv("CUDA_VISIBLE_DEVICES")
	if job.Visible, err = ParseVisible(visible, found); err != nil {
		return job, fmt.Errorf("CUDA_VISIBLE_DEVICES: %w", err)
	}
	if !found {
		job.Visible = Visible{} // not "all GPUs", which it would mean to CUDA
	}
	if _, found := getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"); found {
		job.Part = "gres/mps gives it a part of the GPU"
	}
	return job, nil
}

// JobID returns the job's number, which is all that an Epilog needs to know. It
// becomes part of file names, so it is nothing but the digits of a number.
func JobID(getenv func(string) (string, bool)) (string, error) {
	id, _ := getenv("SLURM_JOB_ID")
	if number, err := strconv.ParseUint(id, 10, 32); err != nil || number == 0 || strconv.FormatUint(number, 10) != id {
		return "", fmt.Errorf("SLURM_JOB_ID=%q: want a job's number, as slurmd sets it for Prolog and Epilog", cut(id))
	}
	return id, nil
}

// HasGPUs tells whether the job has GPUs, or MIG devices, on this node.
func (j Job) HasGPUs() bool { return len(j.GPUs) > 0 || len(j.Visible.Devices) > 0 }

// HasMIG tells whether a device of the job is known to be a MIG device.
func (j Job) HasMIG() bool {
	return slices.ContainsFunc(j.Visible.Devices, func(d Device) bool { return d.Kind == ByMIG || d.Kind == ByInstance })
}

// cut bounds what a message repeats.
func cut(text string) string {
	const most = 64
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
