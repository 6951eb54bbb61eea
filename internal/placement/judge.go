package placement

import (
	"gputune/internal/idset"
	"gputune/internal/topology"
)

// Judge tells how CPUs that anybody chose lie to GPUs, given by their positions
// in Machine.GPUs. Without GPUs or CPUs it is Unknown.
func Judge(machine *topology.Machine, cpus idset.Set, gpus []int) Locality {
	if len(gpus) == 0 || cpus.Empty() {
		return Unknown
	}
	p := newPlanner(machine, Request{})
	var near []idset.Set
	for _, gpu := range gpus {
		near = append(near, p.home(&machine.GPUs[gpu]).near)
	}
	return localityOf(cpus, near)
}
