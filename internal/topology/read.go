package topology

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gputune/internal/idset"
)

// Options says what Read leaves out.
type Options struct {
	// NICs asks for network and InfiniBand devices too. That takes a walk over
	// the whole PCI bus, which the launch of a task has no time for.
	NICs bool
}

// ErrNoCPUs is returned for a root in which no CPU is online, which is to say
// that it is no root of a Linux machine.
var ErrNoCPUs = errors.New("no online CPU")

// Read reads the machine that /sys and /proc below root describe, "/" for
// this one, and resolves the locality of its devices (see Resolve). What is
// missing or malformed is left empty and named in Machine.Warnings, with the
// file and the value; only a root without any CPU is an error (ErrNoCPUs).
//
// The sources are the kernel's Documentation/ABI/stable/sysfs-devices-node,
// testing/sysfs-devices-system-cpu and testing/sysfs-bus-pci, and, for the
// driver's part, the "proc" chapter of NVIDIA's driver README.
func Read(root string, options Options) (*Machine, error) {
	t, err := openTree(root)
	if err != nil {
		return nil, fmt.Errorf("reading the topology: %w", err)
	}
	defer t.close()
	m, err := ReadFiles(t, options)
	if err != nil {
		return nil, fmt.Errorf("reading the topology below %s: %w", root, err)
	}
	return m, nil
}

// ReadFiles is Read for files that need not be in the file system, those of an
// archive.
func ReadFiles(files Files, options Options) (*Machine, error) {
	r := newReader(files)
	m := &Machine{Source: KindSysfs}
	if err := r.cpus(m); err != nil {
		return nil, err
	}
	r.nodes(m)
	r.packages(m)
	r.cores(m)
	r.l3(m)
	r.devices(m, options)
	m.Warnings = r.warnings
	m.Resolve()
	return m, nil
}

// maxWarnings bounds what a tree full of rubbish can make of Machine.Warnings.
const maxWarnings = 50

// reader turns files into facts and collects what is wrong with them.
type reader struct {
	Files
	warnings []string
	missed   map[string]bool   // attributes whose absence was reported
	bridges  map[string]device // bridges seen, several devices share them

	core, pkg, shared, nodeCPUs, localCPUs attribute
}

func newReader(files Files) *reader {
	return &reader{
		Files:   files,
		missed:  make(map[string]bool),
		bridges: make(map[string]device),
		// The names of the same thing, newest first: before Linux 5.3 there
		// is no core_cpus and package_cpus, before 2.6.25 there are no lists.
		core:      attribute{names: []string{"core_cpus_list", "thread_siblings_list", "core_cpus", "thread_siblings"}},
		pkg:       attribute{names: []string{"package_cpus_list", "core_siblings_list", "package_cpus", "core_siblings"}},
		shared:    attribute{names: []string{"shared_cpu_list", "shared_cpu_map"}},
		nodeCPUs:  attribute{names: []string{"cpulist", "cpumap"}},
		localCPUs: attribute{names: []string{"local_cpulist", "local_cpus"}},
	}
}

// attribute is a set-valued file that kernels of different age know by
// different names. Names that end in "list" hold lists, others masks.
type attribute struct {
	names []string
	known int // index of the name that was found last
}

func (r *reader) warn(path, format string, args ...any) {
	text := "/" + path + ": " + fmt.Sprintf(format, args...)
	switch {
	case slices.Contains(r.warnings, text):
	case len(r.warnings) < maxWarnings:
		r.warnings = append(r.warnings, text)
	case len(r.warnings) == maxWarnings:
		r.warnings = append(r.warnings, "more facts are missing or malformed than are listed here")
	}
}

// warnError reports a file that could not be read. A kernel that lacks an
// attribute lacks it everywhere, so the first place stands for all.
func (r *reader) warnError(path string, err error) {
	if isMissing(err) {
		name := path[strings.LastIndexByte(path, '/')+1:]
		if r.missed[name] {
			return
		}
		r.missed[name] = true
	}
	r.warn(path, "%v", err)
}

// list reads a file that holds a list of ids.
func (r *reader) list(path string) (idset.Set, error) {
	text, err := r.text(path)
	if err != nil {
		return idset.Set{}, err
	}
	return ParseList(text)
}

// text reads a file without what surrounds its value; some kernels end it
// with a null byte.
func (r *reader) text(path string) (string, error) {
	content, err := r.Read(path)
	return strings.Trim(string(content), "\x00\n\t "), err
}

// ParseList reads the kernel's list form of a set, as idset.Parse does, with
// errors that stay short whatever the text is.
func ParseList(text string) (idset.Set, error) {
	set, err := idset.Parse(text)
	if err != nil {
		return idset.Set{}, errors.New(clip(err.Error()))
	}
	return set, nil
}

// set reads an attribute of the folder at path, which ends in a slash. It
// reports what it cannot read or understand; ok tells that it could.
func (r *reader) set(folder string, a *attribute) (set idset.Set, ok bool) {
	for i := range a.names {
		at := (a.known + i) % len(a.names)
		path := folder + a.names[at]
		text, err := r.text(path)
		if isMissing(err) {
			continue
		}
		if err == nil {
			a.known = at
			if strings.HasSuffix(path, "list") {
				set, err = ParseList(text)
			} else {
				set, err = ParseMask(text)
			}
		}
		if err != nil {
			r.warn(path, "%v", err)
			return idset.Set{}, false
		}
		return set, true
	}
	r.warnError(folder+a.names[0], errMissing)
	return idset.Set{}, false
}

// number reads a file that holds one decimal number in [least, most].
func (r *reader) number(path string, least, most int64) (value int64, ok bool) {
	text, err := r.text(path)
	if err != nil {
		r.warnError(path, err)
		return 0, false
	}
	value, err = strconv.ParseInt(text, 10, 64)
	if err != nil || value < least || value > most {
		r.warn(path, "%q: want a number from %d to %d", clip(text), least, most)
		return 0, false
	}
	return value, true
}

// ids lists the folder at path for names such as "cpu12", prefix "cpu".
func (r *reader) ids(path, prefix string) (idset.Set, error) {
	var ids idset.Set
	names, err := r.Names(path)
	if err != nil {
		return ids, err
	}
	for _, name := range names {
		digits, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		id, err := strconv.ParseUint(digits, 10, 16)
		if err == nil && id < idset.Limit && strconv.FormatUint(id, 10) == digits {
			ids.Add(int(id))
		}
	}
	return ids, nil
}
