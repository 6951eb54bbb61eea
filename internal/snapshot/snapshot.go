// Package snapshot keeps /run/gputune/topology.json, which tells the plugin what
// NVML knows about the machine: who takes it, by hand or in the agent, and when it
// has to be taken again.
package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"gputune/internal/topology"
)

// Take reads the machine below root, asks NVML and writes the snapshot to path.
// NVML knows the machine that it runs on and no other: it is not asked about one
// below another root. Warnings are the machine's.
func Take(root, path string, nvml topology.NVML) (*topology.Machine, error) {
	machine, err := topology.Read(root, topology.Options{NICs: true})
	if err != nil {
		return nil, err
	}
	if filepath.Clean(root) == "/" && nvml != nil {
		machine.AddNVML(nvml)
	}
	return machine, topology.WriteSnapshot(root, path, machine)
}

// driver has what the NVIDIA driver shows of itself: the open kernel module makes
// the folder anew when it is loaded, and below capabilities are the MIG instances.
const (
	driver       = "proc/driver/nvidia"
	module       = "sys/module/nvidia"
	capabilities = driver + "/capabilities"
)

// Key is a text that is another one when the driver was loaded again, or GPUs or
// MIG instances have come or gone: then a snapshot does not hold any longer,
// even where ReadSnapshot accepts it. It reads names in /proc and /sys alone.
func Key(root string) string {
	var b strings.Builder
	for _, name := range []string{driver, module} {
		if info, err := os.Stat(filepath.Join(root, name)); err == nil {
			if st, known := info.Sys().(*syscall.Stat_t); known {
				fmt.Fprintf(&b, "%s %d\n", name, st.Ino)
			}
		}
	}
	var found []string
	for _, pattern := range []string{
		driver + "/gpus/*",
		capabilities + "/gpu*/mig",
		capabilities + "/gpu*/mig/gi*",
		capabilities + "/gpu*/mig/gi*/ci*",
	} {
		names, err := filepath.Glob(filepath.Join(root, pattern))
		if err == nil {
			found = append(found, names...)
		}
	}
	slices.Sort(found)
	for _, name := range found {
		fmt.Fprintln(&b, strings.TrimPrefix(name, root))
	}
	return b.String()
}

// Stale returns why the snapshot at path does not hold for the machine below
// root, nil if it does. key is Key's text when it was taken, "" not known.
func Stale(root, path, key string) error {
	if _, err := topology.ReadSnapshot(root, path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return errors.New("there is none")
		}
		return err
	}
	if key == "" {
		return errors.New("it was taken by an earlier run")
	}
	if now := Key(root); now != key {
		return errors.New("the driver was loaded again, or GPUs or MIG devices have come or gone")
	}
	return nil
}
