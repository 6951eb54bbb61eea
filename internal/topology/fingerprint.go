package topology

import (
	"fmt"
	"slices"
	"strings"
)

// fingerprint is what must not have changed for a snapshot to hold: a reboot
// can renumber everything, a CPU or a node can have gone offline or come
// (the driver brings a Grace GPU's memory online as nodes), a GPU can have
// fallen off the bus, and another driver can answer otherwise.
type fingerprint struct {
	BootID string   `json:"boot_id"` // /proc/sys/kernel/random/boot_id
	Driver string   `json:"driver"`  // version of the NVIDIA driver, "" none
	GPUs   []string `json:"gpus"`    // names below /proc/driver/nvidia/gpus, sorted
	CPUs   string   `json:"cpus"`    // /sys/devices/system/cpu/online
	Nodes  string   `json:"nodes"`   // /sys/devices/system/node/online
}

// readFingerprint reads the machine's present one. It costs five files.
func readFingerprint(t *tree) (fingerprint, error) {
	var f fingerprint
	for _, fact := range []struct {
		path     string
		value    *string
		optional bool
	}{
		{"proc/sys/kernel/random/boot_id", &f.BootID, false},
		{cpuFolder + "online", &f.CPUs, false},
		{nodeFolder + "online", &f.Nodes, true}, // a kernel without NUMA has none
	} {
		content, err := t.Read(fact.path)
		*fact.value = strings.TrimSpace(string(content))
		if isMissing(err) && fact.optional {
			continue
		}
		if err != nil {
			return f, fmt.Errorf("/%s: %w", fact.path, err)
		}
		if *fact.value == "" && !fact.optional {
			return f, fmt.Errorf("/%s: empty", fact.path)
		}
	}
	var err error
	if f.Driver, err = readDriverVersion(t); err != nil && !isMissing(err) {
		return f, fmt.Errorf("/%sversion: %w", driverFolder, err)
	}
	if f.GPUs, err = t.Names(gpuFolder); err != nil && !isMissing(err) {
		return f, fmt.Errorf("/%s: %w", gpuFolder, err)
	}
	slices.Sort(f.GPUs)
	return f, nil
}

// differs returns the first difference to what is true now, nil if none.
func (f fingerprint) differs(now fingerprint) *StaleError {
	for _, fact := range []struct{ what, then, now string }{
		{"boot id", f.BootID, now.BootID},
		{"driver version", f.Driver, now.Driver},
		{"GPUs", strings.Join(f.GPUs, ","), strings.Join(now.GPUs, ",")},
		{"online CPUs", f.CPUs, now.CPUs},
		{"online NUMA nodes", f.Nodes, now.Nodes},
	} {
		if fact.then != fact.now {
			return &StaleError{What: fact.what, Then: fact.then, Now: fact.now}
		}
	}
	return nil
}
