package mps

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// devices returns the device files that a daemon for some GPUs needs: theirs,
// and those that all CUDA programs open, which are the ones that NVIDIA's
// container toolkit gives a container. nil if the driver does not say which
// minor number each of the GPUs has: then nothing is restricted.
//
// Source: /proc/driver/nvidia/gpus/<pci>/information.
func (h Host) devices(uuids []string) []string {
	files, err := filepath.Glob(h.path("/proc/driver/nvidia/gpus/*/information"))
	if err != nil {
		return nil
	}
	list := []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil
		}
		facts := map[string]string{}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(line, ":")
			facts[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
		if !slices.Contains(uuids, facts["GPU UUID"]) {
			continue
		}
		if _, err := strconv.ParseUint(facts["Device Minor"], 10, 8); err != nil {
			return nil
		}
		list = append(list, "/dev/nvidia"+facts["Device Minor"])
		found++
	}
	if found != len(uuids) {
		return nil
	}
	return list
}
