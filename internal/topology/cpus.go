package topology

import (
	"cmp"
	"math"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"gputune/internal/idset"
)

const cpuFolder = "sys/devices/system/cpu/"

// errMissing is what a file that is absent under all its names answers.
const errMissing = unix.ENOENT

func cpuPath(cpu int) string { return cpuFolder + "cpu" + strconv.Itoa(cpu) + "/" }

// cpus reads which CPUs are online and which are present but offline.
func (r *reader) cpus(m *Machine) error {
	online, err := r.list(cpuFolder + "online")
	if err != nil || online.Empty() {
		if online, err = r.onlineByFolders(err); err != nil {
			return err
		}
	}
	m.CPUs = online
	present, err := r.list(cpuFolder + "present")
	if err != nil {
		r.warnError(cpuFolder+"present", err)
		return nil
	}
	if offline := present.AndNot(online); !offline.Empty() {
		m.Offline = offline
	}
	return nil
}

// onlineByFolders finds the online CPUs where the list of them is missing or
// malformed: every cpuN whose own "online" file does not say 0. CPUs that
// cannot be taken offline have no such file.
func (r *reader) onlineByFolders(listed error) (idset.Set, error) {
	all, err := r.ids(cpuFolder, "cpu")
	if err != nil {
		return idset.Set{}, ErrNoCPUs
	}
	var online idset.Set
	for cpu := range all.All() {
		state, err := r.Read(cpuPath(cpu) + "online")
		if err == nil && len(state) > 0 && state[0] == '0' {
			continue
		}
		online.Add(cpu)
	}
	if online.Empty() {
		return online, ErrNoCPUs
	}
	if listed == nil {
		listed = ErrNoCPUs
	}
	r.warnError(cpuFolder+"online", listed)
	return online, nil
}

// members reads a list that has at least the CPU it is read for, and tells
// which file it is from.
func (r *reader) members(folder string, a *attribute) (set idset.Set, path string, ok bool) {
	set, ok = r.set(folder, a)
	path = folder + a.names[a.known]
	if ok && set.Empty() {
		r.warn(path, "empty: want the CPU itself at least")
		ok = false
	}
	return set, path, ok
}

// partition splits the CPUs into disjoint groups. group tells for a CPU which
// CPUs its group has; it is asked once per group, for the lowest CPU. CPUs
// for which it has no answer are left out. A CPU that two groups claim stays
// with the first, as hwloc has it, and the second claim is reported.
func (r *reader) partition(cpus idset.Set, what string, group func(cpu int) (set idset.Set, path string, ok bool)) []idset.Set {
	var groups []idset.Set
	var covered idset.Set
	for cpu := range cpus.All() {
		if covered.Has(cpu) {
			continue
		}
		stated, path, ok := group(cpu)
		if !ok {
			continue
		}
		set := stated.And(cpus)
		if !set.Has(cpu) {
			r.warn(path, "%q: the %s of CPU %d does not have CPU %d", clip(stated.String()), what, cpu, cpu)
			set.Add(cpu)
		}
		if taken := set.And(covered); !taken.Empty() {
			r.warn(path, "%q: CPUs %s belong to another %s already", clip(stated.String()), clip(taken.String()), what)
			set = set.AndNot(covered)
		}
		covered = covered.Or(set)
		groups = append(groups, set)
	}
	return groups
}

// cores reads the hardware threads of each core. A CPU for which the kernel
// states no siblings is a core of its own, which is also what the kernel
// assumes on architectures that tell it nothing (include/linux/topology.h).
func (r *reader) cores(m *Machine) {
	groups := r.partition(m.CPUs, "core", func(cpu int) (idset.Set, string, bool) {
		set, path, ok := r.members(cpuPath(cpu)+"topology/", &r.core)
		if !ok {
			set = idset.Of(cpu)
		}
		return set, path, true
	})
	m.Cores = make([]Core, len(groups))
	for i, set := range groups {
		m.Cores[i] = Core{CPUs: set}
	}
}

// packages reads the processor packages. Several can have the id -1: some
// architectures number none (POWER, old ARM).
func (r *reader) packages(m *Machine) {
	listed := true
	groups := r.partition(m.CPUs, "package", func(cpu int) (idset.Set, string, bool) {
		if !listed {
			return idset.Set{}, "", false
		}
		set, path, ok := r.members(cpuPath(cpu)+"topology/", &r.pkg)
		listed = !r.missed[r.pkg.names[0]]
		return set, path, ok
	})
	for _, set := range groups {
		m.Packages = append(m.Packages, Package{ID: r.packageID(set.Min()), CPUs: set})
	}
	if !listed {
		r.packagesByID(m)
	}
	slices.SortStableFunc(m.Packages, func(a, b Package) int { return cmp.Compare(a.ID, b.ID) })
}

func (r *reader) packageID(cpu int) int {
	id, ok := r.number(cpuPath(cpu)+"topology/physical_package_id", -1, math.MaxInt32)
	if !ok {
		return -1
	}
	return int(id)
}

// packagesByID groups the CPUs that are in no package yet by their package's
// number, for kernels that list no siblings.
func (r *reader) packagesByID(m *Machine) {
	left := m.CPUs
	for _, p := range m.Packages {
		left = left.AndNot(p.CPUs)
	}
	byID := make(map[int]*idset.Set)
	for cpu := range left.All() {
		id := r.packageID(cpu)
		if id < 0 {
			continue
		}
		if byID[id] == nil {
			byID[id] = new(idset.Set)
		}
		byID[id].Add(cpu)
	}
	for id, set := range byID {
		m.Packages = append(m.Packages, Package{ID: id, CPUs: *set})
	}
}
