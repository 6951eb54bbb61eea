package launch

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"gputune/internal/slurm"
	"gputune/internal/topology"
)

// Visible returns the GPUs that this process may open, as positions in
// machine.GPUs: all of them unless some have a device file below root and others
// have none, as in a container, or may not be opened, as in a cgroup of Slurm's.
func Visible(machine *topology.Machine, root string) []int {
	var all, open []int
	for i, gpu := range machine.GPUs {
		all = append(all, i)
		if gpu.Minor < 0 {
			continue
		}
		// EACCES is only the file's mode, and no cgroup's.
		err := unix.Access(filepath.Join(root, "dev", fmt.Sprintf("nvidia%d", gpu.Minor)), unix.R_OK|unix.W_OK)
		if err == nil || errors.Is(err, unix.EACCES) {
			open = append(open, i)
		}
	}
	if len(open) == 0 {
		return all
	}
	return open
}

// Uses returns the GPUs that CUDA uses in this process, in CUDA's order: those of
// visible, or of them those that CUDA_VISIBLE_DEVICES names. note says why the
// order can be another one, "" if it cannot.
func Uses(machine *topology.Machine, visible []int, lookup func(string) (string, bool)) (gpus []int, note string, err error) {
	list, found := lookup("CUDA_VISIBLE_DEVICES")
	devices, err := slurm.ParseVisible(list, found)
	if err != nil {
		return nil, "", fmt.Errorf("CUDA_VISIBLE_DEVICES: %w", err)
	}
	if gpus, err = devices.Counted(machine, visible); err != nil {
		return nil, "", fmt.Errorf("CUDA_VISIBLE_DEVICES: %w", err)
	}
	order, _ := lookup("CUDA_DEVICE_ORDER")
	byNumber := devices.All
	for _, device := range devices.Devices {
		byNumber = byNumber || device.Kind == slurm.ByIndex
	}
	if byNumber && order != "PCI_BUS_ID" && !alike(machine, visible) {
		note = "the GPUs differ, and CUDA numbers the fastest first: set CUDA_DEVICE_ORDER=PCI_BUS_ID, which is what is counted on here"
	}
	return gpus, note, nil
}

func alike(machine *topology.Machine, gpus []int) bool {
	for _, gpu := range gpus {
		if machine.GPUs[gpu].Model != machine.GPUs[gpus[0]].Model {
			return false
		}
	}
	return true
}
