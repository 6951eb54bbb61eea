package slurm

import (
	"path/filepath"
	"slices"
	"strings"

	"gputune/internal/topology"
)

// Divided tells for each GPU of the machine whether gres.conf lists parts of it,
// MIG devices made beforehand, which several jobs can have at once. In the
// Prolog's environment they look like whole GPUs.
//
// Such a part is a MultipleFiles= with the GPU's file and those by which the
// driver lets a process use the part, /dev/nvidia-caps/nvidia-capN
// (gres.conf(5)); and so is a GPU's file that is listed more than once.
func Divided(gres Gres, node string, machine *topology.Machine, devices DeviceNumbers) []bool {
	divided := make([]bool, len(machine.GPUs))
	listed := make([]int, len(machine.GPUs))
	o := ordering{machine: machine, devices: devices}
	for _, record := range gres.forNode(node) {
		if !strings.EqualFold(record.Name, "gpu") {
			continue
		}
		for _, gpu := range o.expand(record) {
			if gpu.gpu < 0 {
				continue
			}
			listed[gpu.gpu]++
			divided[gpu.gpu] = divided[gpu.gpu] || listed[gpu.gpu] > 1 || record.Multiple && slices.ContainsFunc(record.Files, isCapability)
		}
	}
	return divided
}

func isCapability(file string) bool { return strings.HasPrefix(filepath.Base(file), "nvidia-cap") }
