// Package conflict finds programs on a node that change the same settings as
// gputune. It changes nothing: a site decides which of the two it wants.
package conflict

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Finding is one program that runs.
type Finding struct {
	Program string // "irqbalance"
	PID     int    // the lowest, where there are several
	Detail  string // what is known of how it is set up, "" nothing
	Changes string // what both change
	Advice  string // what a site can do

	keys []string // how the keys of such settings begin
}

// Touches tells whether the program changes any of the settings with these keys.
func (f Finding) Touches(keys ...string) bool {
	return slices.ContainsFunc(keys, func(key string) bool {
		return slices.ContainsFunc(f.keys, func(start string) bool { return strings.HasPrefix(key, start) })
	})
}

// What says that it runs, and what both change.
func (f Finding) What() string {
	detail := ""
	if f.Detail != "" {
		detail = ", " + f.Detail
	}
	return fmt.Sprintf("%s runs (pid %d%s) and changes %s, too", f.Program, f.PID, detail, f.Changes)
}

// String is the one line for people.
func (f Finding) String() string { return f.What() + ": " + f.Advice }

// program is what is known of a program that is in gputune's way.
type program struct {
	changes, advice string
	keys            []string // see Finding
	detail          func(root string) string
}

// programs by the names of their processes.
//
// irqbalance can be told to leave interrupts alone while it runs (irqbalance(1),
// "settings ban irqs"), but that forgets those that the site has banned, newer
// releases read no more than 255 bytes of it, and a restart forgets it; what was
// there before could not be put back for certain. Hence the advice.
var programs = map[string]program{
	"irqbalance": {
		changes: "the CPUs of interrupts",
		keys:    []string{"irq/"},
		advice:  "it moves them back within seconds; have it leave those of GPUs and fast network devices alone (--banirq, --policyscript or --banmod in its configuration), or stop it",
	},
	"tuned": {
		changes: "sysctls, transparent hugepages, governors and idle states",
		keys:    []string{"sysctl/", "thp/", "cpufreq/", "cpuidle/"},
		advice:  "its values count as those before a job, and a change of its profile during a job is left alone; do not change profiles while jobs run",
		detail: func(root string) string {
			profile, err := os.ReadFile(filepath.Join(root, "etc/tuned/active_profile"))
			if name := strings.TrimSpace(string(profile)); err == nil && len(name) > 0 && len(name) <= 128 && !strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) {
				return "profile " + name
			}
			return ""
		},
	},
	"power-profiles-": { // power-profiles-daemon: the kernel cuts names at 15 bytes
		changes: "governors and energy preferences",
		keys:    []string{"cpufreq/"},
		advice:  "stop it on compute nodes",
	},
	"tlp": {
		changes: "governors and energy preferences",
		keys:    []string{"cpufreq/"},
		advice:  "remove it from compute nodes",
	},
	"numad": {
		changes: "the CPUs and memory of processes",
		advice:  "stop it: it moves tasks that gputune has bound",
	},
}

// Find returns the programs that run, in order of name, each once. root is
// prepended to /proc and /etc, "/" outside tests.
func Find(root string) ([]Finding, error) {
	entries, err := os.ReadDir(filepath.Join(root, "proc"))
	if err != nil {
		return nil, fmt.Errorf("look for other programs: %w", err)
	}
	found := map[string]*Finding{}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		comm, err := os.ReadFile(filepath.Join(root, "proc", entry.Name(), "comm"))
		if err != nil {
			continue // it has ended
		}
		name := strings.TrimSuffix(string(comm), "\n")
		p, known := programs[name]
		if !known || !roots(root, entry.Name()) {
			continue
		}
		if f := found[name]; f != nil {
			f.PID = min(f.PID, pid)
			continue
		}
		found[name] = &Finding{Program: strings.TrimSuffix(name, "-"), PID: pid, Changes: p.changes, Advice: p.advice, keys: p.keys}
		if p.detail != nil {
			found[name].Detail = p.detail(root)
		}
	}
	list := make([]Finding, 0, len(found))
	for _, f := range found {
		list = append(list, *f)
	}
	slices.SortFunc(list, func(a, b Finding) int { return strings.Compare(a.Program, b.Program) })
	return list, nil
}

// roots tells whether a process is root's: anybody can give a process a name.
func roots(root, pid string) bool {
	text, err := os.ReadFile(filepath.Join(root, "proc", pid, "status"))
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	for line := range strings.Lines(string(text)) {
		if ids, isUID := strings.CutPrefix(line, "Uid:"); isUID {
			fields := strings.Fields(ids)
			return len(fields) > 1 && fields[1] == "0"
		}
	}
	return false
}
