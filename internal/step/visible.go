package step

import (
	"slices"

	"gputune/internal/idset"
	"gputune/internal/slurm"
)

// counted returns those GPUs of sees that programs of the step's tasks see, in the
// order in which they count them: a framework's local rank is a position in
// CUDA_VISIBLE_DEVICES. Slurm's own list is in the order of addresses, as CUDA
// counts without one; another one gets here where Slurm writes none (no_gpu_env in
// gres.conf). A list by which CUDA would find no GPU says nothing: all of sees
// count.
func (s *Step) counted(sees idset.Set) []int {
	all := slices.Collect(sees.All())
	list, found := s.environment[visibleDevices]
	if !found || s.isSlurms(list) {
		return all
	}
	// What CUDA stops at, the task itself tells its user.
	visible, _ := slurm.ParseVisible(list, true)
	gpus, _ := visible.Counted(s.Machine, all)
	if unseen := slices.IndexFunc(gpus, func(gpu int) bool { return !sees.Has(gpu) }); unseen >= 0 {
		gpus = gpus[:unseen] // CUDA does not find it either
	}
	if len(gpus) == 0 {
		return all
	}
	return gpus
}

const visibleDevices = "CUDA_VISIBLE_DEVICES"

// isSlurms tells whether Slurm has written a list of devices where they are not
// constrained: then it is the same as that of its own variables.
func (s *Step) isSlurms(list string) bool {
	if s.constrained.devices {
		return false // its numbers and CUDA's are the same
	}
	return list == s.environment["SLURM_STEP_GPUS"] || list == s.environment["SLURM_JOB_GPUS"]
}
