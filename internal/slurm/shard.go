package slurm

import (
	"strings"

	"gputune/internal/topology"
)

// Sharded tells for each GPU of the machine whether gres/shard can give it to
// several jobs at once. declared is Conf.DeclaresShards.
//
// It is the node's configuration that is asked since nothing else tells: Slurm
// gives the Prolog of a job with shards the same SLURM_JOB_GPUS as that of one
// that has the whole GPU, and no variable beside it (gres_p_prep_set_env of
// src/plugins/gres/shard/gres_shard.c, 22.05 to 26.05). A record with File=
// shares that GPU, one without shares all (gres.conf(5)).
func Sharded(gres Gres, declared bool, node string, machine *topology.Machine, devices DeviceNumbers) []bool {
	shared := make([]bool, len(machine.GPUs))
	all := func() []bool {
		for i := range shared {
			shared[i] = true
		}
		return shared
	}
	o := ordering{machine: machine, devices: devices}
	found := false
	for _, record := range gres.forNode(node) {
		if !strings.EqualFold(record.Name, "shard") {
			continue
		}
		found = true
		if len(record.Files) == 0 {
			return all()
		}
		for _, file := range record.Files {
			gpu := o.find(file)
			if gpu < 0 {
				return all()
			}
			shared[gpu] = true
		}
	}
	if declared && !found {
		return all()
	}
	return shared
}
