package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"gputune/conf"
	"gputune/internal/node"
	"gputune/internal/nvml"
	"gputune/internal/slurm"
	"gputune/internal/topology"
)

// Open reads the node whose files are below root, "/" outside tests. site and
// broken are gputune.toml and why it cannot be used; lookup is getenv(3), for
// SLURM_CONF and SLURMD_NODENAME.
func Open(root string, site conf.Config, broken error, lookup func(string) (string, bool)) (*Host, error) {
	h := &Host{Root: root, Config: broken, SlurmConf: slurm.ConfPath(lookup), Release: Release}
	paths := site.Paths
	paths.Machine = conf.Path(filepath.Join(root, string(paths.Machine)))
	paths.Snapshot = conf.Path(filepath.Join(root, string(paths.Snapshot)))
	var err error
	h.Node, err = node.Read(root, paths, func(name string) (string, bool) {
		if name == "SLURM_CONF" {
			return h.path(h.SlurmConf), true
		}
		if value, found := lookup(name); found || name != "SLURMD_NODENAME" {
			return value, found
		}
		host, err := os.Hostname() // slurmd takes that, too
		host, _, _ = strings.Cut(host, ".")
		return host, err == nil
	})
	if err != nil {
		return nil, err
	}
	// Launching a task has no time for NICs; here they are wanted. Their order
	// leaves that of the GPUs alone.
	if len(h.Node.Machine.NICs) == 0 {
		whole, err := topology.Read(string(paths.Machine), topology.Options{NICs: true})
		if err != nil {
			return nil, err
		}
		h.Node.Machine.NICs = whole.NICs
	}
	if paths.Machine == "/" {
		h.Node.Machine.AddNVML(nvml.New())
	}
	// What cannot be read has been said in Node.Unread.
	h.Slurm, _ = slurm.ReadSlurm(h.path(h.SlurmConf))
	h.Cgroup, err = slurm.ReadCgroup(h.path(filepath.Dir(h.SlurmConf), "cgroup.conf"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && h.Node.Unread == nil {
		h.Node.Unread = err
	}
	return h, nil
}

// Release asks slurmd, or where there is none sinfo, for Slurm's release: "24.11".
func Release(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var first error
	for _, program := range [][]string{{"slurmd", "-V"}, {"sinfo", "--version"}} {
		output, err := exec.CommandContext(ctx, program[0], program[1:]...).Output()
		if err == nil {
			if release, found := parseRelease(string(output)); found {
				return release, nil
			}
			err = fmt.Errorf("%s %s: %.40q", program[0], program[1], output)
		}
		if first == nil {
			first = err
		}
	}
	return "", first
}

// parseRelease reads "slurm 24.11.5" or Debian's "slurm-wlm 22.05.8".
func parseRelease(text string) (string, bool) {
	words := strings.Fields(text)
	if len(words) != 2 || !strings.HasPrefix(words[0], "slurm") {
		return "", false
	}
	numbers := strings.Split(words[1], ".")
	if len(numbers) < 2 || strings.Trim(numbers[0]+numbers[1], "0123456789") != "" {
		return "", false
	}
	return numbers[0] + "." + numbers[1], true
}
