package slurm

import (
	"errors"
	"fmt"
	"strings"
)

// Cgroup is what cgroup.conf says of the cgroups that tasks are put into.
type Cgroup struct {
	ConstrainCores    bool // tasks have a cpuset: the step's cores
	ConstrainDevices  bool // tasks may open their own GPUs alone
	ConstrainRAMSpace bool
	Plugin            string // CgroupPlugin: "cgroup/v1", "cgroup/v2", "autodetect", or "disabled" since 23.11
	Mountpoint        string // CgroupMountpoint, without a slash at its end
}

// DefaultCgroup returns what Slurm 22.05 to 26.05 take for keys that are
// missing, and all of it where there is no cgroup.conf: nothing is constrained,
// the plugin is found by looking (cgroup v1 where /sys/fs/cgroup/systemd is a
// v1 hierarchy, that is also on hybrid systems), at /sys/fs/cgroup.
func DefaultCgroup() Cgroup {
	return Cgroup{Plugin: "autodetect", Mountpoint: "/sys/fs/cgroup"}
}

// ReadCgroup reads cgroup.conf(5). Keys it does not know are passed over. What
// could be read is returned beside an error, a *ConfigError or several joined;
// of a missing file that is DefaultCgroup.
func ReadCgroup(path string) (Cgroup, error) {
	return parseCgroup(readConf(path))
}

// parseCgroup takes the result of readConf.
func parseCgroup(lines []confLine, err error) (Cgroup, error) {
	errs := []error{err}
	conf := DefaultCgroup()
	for _, line := range lines {
		for _, pair := range line.pairs {
			if err := conf.set(pair); err != nil {
				errs = append(errs, line.fail("%w", err))
			}
		}
	}
	return conf, errors.Join(errs...)
}

func (c *Cgroup) set(pair confPair) error {
	var err error
	switch pair.key {
	case "constraincores":
		err = setBoolean(&c.ConstrainCores, pair)
	case "constraindevices":
		err = setBoolean(&c.ConstrainDevices, pair)
	case "constrainramspace":
		err = setBoolean(&c.ConstrainRAMSpace, pair)
	case "cgroupplugin":
		c.Plugin = pair.value
	case "cgroupmountpoint":
		if c.Mountpoint = strings.TrimRight(pair.value, "/"); c.Mountpoint == "" {
			c.Mountpoint = "/"
		}
	}
	return err
}

// setBoolean reads Slurm's boolean words (s_p_handle_boolean).
func setBoolean(target *bool, pair confPair) error {
	switch strings.ToLower(pair.value) {
	case "yes", "up", "true", "1":
		*target = true
	case "no", "down", "false", "0":
		*target = false
	default:
		return fmt.Errorf("%s=%s: want yes or no", pair.key, pair.value)
	}
	return nil
}
