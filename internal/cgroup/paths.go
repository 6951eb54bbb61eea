// Package cgroup finds the control groups of a Slurm task, tells whether one is
// the task's alone, and sets its cpuset. It follows the kernel's
// Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/cpusets.rst, and never
// makes a cgroup: Slurm could not take its own away with one inside.
package cgroup

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

// Place is one cgroup of one hierarchy. The zero value is no cgroup: the process
// is in none of that hierarchy, or the hierarchy is not mounted.
type Place struct {
	Dir  string // its folder, below the root that Of was given
	Path string // its path in the hierarchy, as in /proc/PID/cgroup: "/system.slice/…"
}

// None tells whether p is no cgroup.
func (p Place) None() bool { return p.Dir == "" }

// Paths are the cgroups of one process that matter for binding it. On a pure v2
// system V2 alone is set; on a hybrid one V2 has no controllers and the others
// are set; on a v1 system V2 may be missing.
type Paths struct {
	V2      Place // the unified hierarchy
	Devices Place // v1, devices
	Cpuset  Place // v1, cpuset
}

// ErrGone is in the error of Of for a process whose cgroup was removed.
var ErrGone = errors.New("its cgroup was removed")

// Hierarchies are the cgroup hierarchies that are mounted.
type Hierarchies struct {
	root   string
	mounts []mount
}

// Mounted returns the hierarchies that /proc/self/mountinfo below root shows,
// "/" outside tests.
func Mounted(root string) (Hierarchies, error) {
	file := filepath.Join(root, "proc/self/mountinfo")
	text, err := os.ReadFile(file)
	if err != nil {
		return Hierarchies{}, err
	}
	mounts, err := parseMounts(string(text))
	if err != nil {
		return Hierarchies{}, fmt.Errorf("%s: %w", file, err)
	}
	return Hierarchies{root, mounts}, nil
}

// Of is Hierarchies.Of for a single process.
func Of(root string, pid int) (Paths, error) {
	hierarchies, err := Mounted(root)
	if err != nil {
		return Paths{}, err
	}
	return hierarchies.Of(pid)
}

// Of returns the cgroups of process pid. It reads /proc/PID/cgroup; that and the
// folders are below the root that Mounted was given. An error says which file
// could not be read or understood, or that one of the process's cgroups is not
// visible from here (a cgroup namespace); what was found is returned beside it.
// For a process that does not exist errors.Is(err, fs.ErrNotExist) holds.
func (h Hierarchies) Of(pid int) (Paths, error) {
	file := filepath.Join(h.root, "proc", strconv.Itoa(pid), "cgroup")
	text, err := os.ReadFile(file)
	if err != nil {
		return Paths{}, err
	}
	members, err := parseMembership(string(text))
	if err != nil {
		return Paths{}, fmt.Errorf("%s: %w", file, err)
	}
	var paths Paths
	var errs []error
	for _, hierarchy := range []struct {
		controller string
		place      *Place
	}{{unified, &paths.V2}, {"devices", &paths.Devices}, {"cpuset", &paths.Cpuset}} {
		path, member := members[hierarchy.controller]
		if !member {
			continue
		}
		if *hierarchy.place, err = locate(h.root, hierarchy.controller, path, h.mounts); err != nil {
			errs = append(errs, fmt.Errorf("cgroup of pid %d: %w", pid, err))
		}
	}
	return paths, errors.Join(errs...)
}

// Unified returns the cgroup v2 at a path as /proc/PID/cgroup has it, no cgroup
// where v2 is not mounted. For one that is not there errors.Is(err,
// fs.ErrNotExist) holds.
func (h Hierarchies) Unified(path string) (Place, error) {
	return locate(h.root, unified, path, h.mounts)
}

// unified stands for the v2 hierarchy where controllers are named.
const unified = ""

// deleted is what the kernel writes behind the path of a removed cgroup.
const deleted = " (deleted)"

// parseMembership reads /proc/PID/cgroup (proc(5), cgroups(7)): a line
// "ID:controllers:path" for each hierarchy, the unified one with ID 0 and no
// controllers. The result is the path for each controller; hierarchies with a
// name in place of controllers are left out.
func parseMembership(text string) (map[string]string, error) {
	members := map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			continue
		}
		id, rest, _ := strings.Cut(line, ":")
		controllers, path, found := strings.Cut(rest, ":")
		if _, err := strconv.ParseUint(id, 10, 32); err != nil || !found || !strings.HasPrefix(path, "/") {
			return nil, fmt.Errorf("line %q: want ID:controllers:/path", line)
		}
		for controller := range strings.SplitSeq(controllers, ",") {
			if controller == unified && id != "0" || strings.HasPrefix(controller, "name=") {
				continue
			}
			members[controller] = path
		}
	}
	return members, nil
}

// mount is one mounted cgroup hierarchy.
type mount struct {
	controllers []string // unified alone for v2
	root        string   // path in the hierarchy of what is mounted
	point       string   // where
}

// parseMounts reads the cgroup mounts of /proc/self/mountinfo (proc(5)): "ID
// parent major:minor root point options optional… - type source superoptions".
func parseMounts(text string) ([]mount, error) {
	var mounts []mount
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		dash := slices.Index(fields, "-")
		if dash < 0 || dash < 6 || len(fields) < dash+3 {
			if len(fields) == 0 {
				continue
			}
			return nil, fmt.Errorf("line %q: want ten fields or more and a dash", strings.TrimSuffix(line, "\n"))
		}
		m := mount{root: unescape(fields[3]), point: unescape(fields[4])}
		switch fields[dash+1] {
		case "cgroup2":
			m.controllers = []string{unified}
		case "cgroup":
			if len(fields) > dash+3 {
				m.controllers = strings.Split(fields[dash+3], ",")
			}
		default:
			continue
		}
		mounts = append(mounts, m)
	}
	return mounts, nil
}

// unescape undoes the octal escapes of blanks and backslashes in mountinfo.
func unescape(text string) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+3 < len(text) {
			if code, err := strconv.ParseUint(text[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(code))
				i += 3
				continue
			}
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

// locate finds the folder of the cgroup at path. A hierarchy can be mounted
// several times, and only a part of it (a container's bind mount); a folder that
// exists is preferred, since a mount point can be hidden by a later mount.
func locate(root, controller, path string, mounts []mount) (Place, error) {
	if rest, gone := strings.CutSuffix(path, deleted); gone {
		return Place{}, fmt.Errorf("%s: %w", rest, ErrGone)
	}
	mounted := false
	var candidates []Place
	for _, m := range mounts {
		if !slices.Contains(m.controllers, controller) {
			continue
		}
		mounted = true
		if below, inside := relative(m.root, path); inside {
			candidates = append(candidates, Place{Dir: filepath.Join(root, m.point, below), Path: path})
		}
	}
	if len(candidates) == 0 {
		if !mounted {
			return Place{}, nil
		}
		return Place{}, fmt.Errorf("%s: not below any mount of its hierarchy that is visible here", path)
	}
	for _, place := range candidates {
		if info, err := os.Stat(place.Dir); err == nil && info.IsDir() {
			return place, nil
		}
	}
	return Place{}, fmt.Errorf("%s: %w", candidates[0].Dir, fs.ErrNotExist)
}

// relative returns path below base. A path that leaves the namespace, "/../x",
// is below nothing.
func relative(base, path string) (string, bool) {
	if slices.Contains(strings.Split(path, "/"), "..") {
		return "", false
	}
	if base == "/" {
		return path, true
	}
	rest, found := strings.CutPrefix(path, base)
	return rest, found && (rest == "" || strings.HasPrefix(rest, "/"))
}

// DeviceProcs returns the cgroup.procs file of the cgroup in which Slurm
// constrains the task's devices, "" if the process is in no task's: a process
// that writes "0" there may open what the task may open. On v1, and on hybrid
// systems, that moves it in the devices hierarchy alone.
func (p Paths) DeviceProcs() string {
	for _, place := range []Place{p.Devices, p.V2} {
		switch KindOf(place.Path) {
		case Task, Special, Step:
			return filepath.Join(place.Dir, procsFile)
		default:
		}
	}
	return ""
}
