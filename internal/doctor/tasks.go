package doctor

import (
	"context"
	"slices"
	"strings"
)

// taskPlugins: Slurm binds and constrains tasks, in the order that its manual
// wants.
func taskPlugins(_ context.Context, h *Host) []Finding {
	const set = "set TaskPlugin=task/affinity,task/cgroup in slurm.conf"
	plugins := strings.Join(h.Slurm.TaskPlugin, ",")
	if plugins == "" {
		plugins = "(none)"
	}
	cgroup, affinity := slices.Index(h.Slurm.TaskPlugin, "task/cgroup"), slices.Index(h.Slurm.TaskPlugin, "task/affinity")
	switch {
	case cgroup < 0:
		return []Finding{bad(set, "TaskPlugin=%s: without task/cgroup tasks can open every GPU of the node", plugins)}
	case affinity < 0:
		return []Finding{warn(set, "TaskPlugin=%s: without task/affinity, steps without the option are not bound", plugins)}
	case affinity > cgroup:
		return []Finding{warn(set, "TaskPlugin=%s: slurm.conf(5) wants task/affinity before task/cgroup", plugins)}
	}
	return []Finding{ok("TaskPlugin=%s", plugins)}
}

// constraints: cgroup.conf has the kernel hold tasks to their GPUs and cores.
func constraints(_ context.Context, h *Host) []Finding {
	var found []Finding
	for _, c := range []struct {
		key  string
		on   bool
		what string
	}{
		{"ConstrainDevices", h.Cgroup.ConstrainDevices, "which GPUs a task has is taken from its CUDA_VISIBLE_DEVICES"},
		{"ConstrainCores", h.Cgroup.ConstrainCores, "no cpuset holds tasks, and what a step was granted is taken from their affinity"},
	} {
		if c.on {
			found = append(found, ok("%s=yes", c.key))
		} else {
			found = append(found, warn("set "+c.key+"=yes in cgroup.conf", "%s is not set: %s", c.key, c.what))
		}
	}
	return found
}

// cgroupVersion: cgroup v2 has the cpuset controller, which alone lets a task's own
// cgroup be narrowed safely.
func cgroupVersion(_ context.Context, h *Host) []Finding {
	controllers, err := h.text("/sys/fs/cgroup/cgroup.controllers")
	switch {
	case err != nil:
		return []Finding{warn("boot with systemd.unified_cgroup_hierarchy=1", "no cgroup v2 at /sys/fs/cgroup: affinity alone is set, no cpuset")}
	case !slices.Contains(strings.Fields(controllers), "cpuset"):
		return []Finding{warn("see that no cgroup v1 hierarchy has it", "cgroup v2 lacks the cpuset controller: affinity alone is set")}
	}
	return []Finding{ok("cgroup v2 with the cpuset controller")}
}
