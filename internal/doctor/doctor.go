// Package doctor looks for what is wrong with an installation and a node: a check
// is one small file and an entry in Checks. It reads files below a root and runs
// nothing but what Host has functions for, and changes nothing.
package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gputune/internal/ledger"
	"gputune/internal/node"
	"gputune/internal/slurm"
)

// Level is how bad a finding is.
type Level string

// The levels.
const (
	OK   Level = "ok"
	Warn Level = "warn" // works, could be better, or could not be told
	Bad  Level = "bad"  // does not work as it should
)

// Finding is one line of the report.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	Text  string `json:"text"`         // what was found
	Do    string `json:"do,omitempty"` // what to do about it, "" nothing
}

// Host is the node that is looked at.
type Host struct {
	Root      string // folder below which etc, proc, sys and usr are, "/" outside tests
	SlurmConf string // path of slurm.conf, without Root
	Config    error  // why gputune.toml cannot be used, nil it can
	Node      *node.Node
	Slurm     slurm.Conf
	Cgroup    slurm.Cgroup
	// Release asks for the release of Slurm that is installed, "24.11".
	Release func(context.Context) (string, error)
	// Held returns what jobs hold on this node, as ledger.Held; nil where the
	// files are those of another machine.
	Held func(context.Context) ([]ledger.Holding, error)
}

// Check is one check. It returns at least one finding, whose Check is filled in by
// Run.
type Check struct {
	Name string
	// Slurm says that the check is about slurm.conf: without one it is left out.
	Slurm bool
	Look  func(context.Context, *Host) []Finding
}

// Checks returns all checks, in the order of the report.
func Checks() []Check {
	return []Check{
		{"configuration", false, configuration},
		{"slurm.conf", false, slurmConf},
		{"plugstack", true, plugstack},
		{"prolog", true, prologAndEpilog},
		{"task plugins", true, taskPlugins},
		{"constraints", true, constraints},
		{"cgroup", false, cgroupVersion},
		{"memlock", true, memlock},
		{"gres", true, gresOrder},
		{"topology", false, topologyKnown},
		{"services", false, services},
		{"settings", false, held},
		{"peermem", false, peermem},
		{"pcie", false, links},
		{"interrupts", false, interrupts},
		{"hugepages", false, transparentHugepages},
		{"governor", false, governor},
	}
}

// Run makes all checks.
func Run(ctx context.Context, h *Host) []Finding {
	var all []Finding
	configured := h.there(h.SlurmConf)
	for _, check := range Checks() {
		if check.Slurm && !configured {
			continue
		}
		for _, finding := range check.Look(ctx, h) {
			finding.Check = check.Name
			all = append(all, finding)
		}
	}
	return all
}

func ok(format string, arguments ...any) Finding {
	return Finding{Level: OK, Text: fmt.Sprintf(format, arguments...)}
}

func warn(do, format string, arguments ...any) Finding {
	return Finding{Level: Warn, Text: fmt.Sprintf(format, arguments...), Do: do}
}

func bad(do, format string, arguments ...any) Finding {
	return Finding{Level: Bad, Text: fmt.Sprintf(format, arguments...), Do: do}
}

// path is where a path of the node is.
func (h *Host) path(parts ...string) string {
	return filepath.Join(append([]string{h.Root}, parts...)...)
}

// text reads a small file of the kernel's or a configuration, without blanks around
// it.
func (h *Host) text(path string) (string, error) {
	content, err := os.ReadFile(h.path(path))
	return strings.TrimSpace(string(content)), err
}

// there tells whether a path is.
func (h *Host) there(path string) bool {
	_, err := os.Stat(h.path(path))
	return err == nil
}

// processes returns the ids of the processes with one of the names, as the kernel
// cuts them to 15 bytes.
func (h *Host) processes(names ...string) []string {
	found, err := filepath.Glob(h.path("proc", "[0-9]*", "comm"))
	if err != nil {
		return nil
	}
	var pids []string
	for _, file := range found {
		content, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended in between
		}
		for _, name := range names {
			if strings.TrimSpace(string(content)) == name[:min(len(name), 15)] {
				pids = append(pids, filepath.Base(filepath.Dir(file)))
			}
		}
	}
	return pids
}
