package step

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"gputune/internal/cgroup"
	"gputune/internal/follow"
	"gputune/internal/idset"
	"gputune/internal/placement"
	"gputune/internal/verify"
)

// follow writes down for the agent what each of the step's GPUs brings along. What
// keeps the workers from being followed is in the result: they are somewhere in
// their task's part then.
func (s *Step) follow(tasks []Task, result *Result) {
	if len(result.Shares) == 0 {
		return
	}
	mems := s.policy().Mem
	record := follow.Step{
		Job: strconv.FormatUint(uint64(s.job), 10), Step: slurmStep(s.id), PID: os.Getpid(),
		MovePages: mems == placement.MemPrefer || mems == placement.MemBind,
	}
	self, there := verify.Host{Root: s.root}.Find(record.PID)
	if !there {
		result.NotFollowed = notFollowed(fmt.Errorf("process %d is not in /proc", record.PID))
		return
	}
	record.Began = self.Began()
	for _, share := range result.Shares {
		record.Shares = append(record.Shares, follow.Share{
			PCI: s.Machine.GPUs[share.GPU].PCI, CPUs: share.CPUs, Mems: share.Mems, Locality: share.Locality,
		})
	}
	for i := range tasks {
		for _, place := range []cgroup.Place{tasks[i].cgroup.V2, tasks[i].cgroup.Devices, tasks[i].cgroup.Cpuset} {
			if path, found := cgroup.StepOf(place.Path); found && !slices.Contains(record.Cgroups, path) {
				record.Cgroups = append(record.Cgroups, path)
			}
		}
	}
	run := filepath.Join(s.root, string(s.site.Paths.Run))
	var err error
	if result.FollowFile, err = follow.Record(run, record); err == nil {
		if err = errFollowOff; s.site.Agent.FollowInterval != 0 {
			err = follow.Agent(s.root, run)
		}
	}
	if err != nil {
		result.NotFollowed = notFollowed(err)
	}
}

var errFollowOff = fmt.Errorf("agent.follow_interval of gputune.toml is \"off\"")

func notFollowed(why error) string {
	return fmt.Sprintf("follow: %v: workers may use all of their task's CPUs", why)
}

// Steps that have a name in place of a number (slurm.h).
const (
	batchStep       = 0xfffffffb
	interactiveStep = 0xfffffffa
)

func slurmStep(id uint32) string {
	switch id {
	case batchStep:
		return "batch"
	case interactiveStep:
		return "interactive"
	}
	return strconv.FormatUint(uint64(id), 10)
}

// preferOne tells whether this kernel prefers the memory of one node alone:
// MPOL_PREFERRED_MANY came with Linux 5.15.
func preferOne() bool {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return false
	}
	return olderThan(unix.ByteSliceToString(name.Release[:]), 5, 15)
}

func olderThan(release string, major, minor int) bool {
	var a, b int
	if n, err := fmt.Sscanf(release, "%d.%d", &a, &b); n < 2 || err != nil {
		return false
	}
	return a < major || a == major && b < minor
}

// looseMemory leaves the memory policy of tasks alone where the kernel would prefer
// the lowest of their GPUs' nodes for all workers: what each then gets is memory
// of the CPUs that it is bound to. Only the process itself could set another.
func looseMemory(plan *placement.Result) {
	var all idset.Set
	for _, share := range plan.Shares {
		all = all.Or(share.Mems)
	}
	if all.Len() < 2 {
		return
	}
	for i := range plan.Shares {
		plan.Shares[i].Mems = idset.Set{}
	}
	for i := range plan.Tasks {
		plan.Tasks[i].Mems, plan.Tasks[i].MemPolicy = idset.Set{}, placement.MemNone
	}
}
