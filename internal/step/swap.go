package step

import "gputune/internal/cgroup"

// NoSwap keeps the memory of the job that a process is a task of from being
// swapped out, see cgroup.Hierarchies.NoSwap. root is as in Request.
func NoSwap(root string, pid int) error {
	hierarchies, err := cgroup.Mounted(root)
	if err != nil {
		return err
	}
	return hierarchies.NoSwap(pid)
}
