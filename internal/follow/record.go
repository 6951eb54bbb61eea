// Package follow binds the workers of a step by the GPUs that the driver sees them
// use: one task, such as torchrun's, that starts a process for each GPU itself.
//
// The plugin's core writes down for each such step what share of the node each of
// its GPUs has (Record), the agent reads it and does the rest. Nothing is taken
// from a process's own environment, which is its user's: which processes are the
// step's the kernel says (cgroup, or descent from its slurmstepd), and what they
// are bound to is what root wrote.
package follow

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"gputune/internal/folder"
	"gputune/internal/idset"
	"gputune/internal/placement"
)

// Step is one step on this node whose workers are followed.
type Step struct {
	Job  string `json:"job"`
	Step string `json:"step"` // "0", "batch", "interactive"
	// PID and Began are its slurmstepd: the step is there as long as that is.
	PID   int    `json:"pid"`
	Began string `json:"began"` // in clock ticks, see verify.Process
	// Cgroups are the paths of the step's cgroups as /proc/PID/cgroup has them, none
	// where Slurm makes none: then the step's processes are those below its slurmstepd.
	Cgroups []string `json:"cgroups"`
	// MovePages says that memory is to be near the GPU.
	MovePages bool    `json:"move_pages"`
	Shares    []Share `json:"shares"`
}

// Share is what one GPU's workers are bound to.
type Share struct {
	PCI      string             `json:"pci"`
	CPUs     idset.Set          `json:"cpus"` // empty: the CPUs are left alone
	Mems     idset.Set          `json:"mems"` // empty: the memory is left alone
	Locality placement.Locality `json:"locality"`
}

// stepsName is the folder below paths.run that steps are written to.
const stepsName = "steps"

// Folder returns the folder with the steps, run being paths.run.
func Folder(run string) string { return filepath.Join(run, stepsName) }

// Record writes a step down and returns the file, which is the caller's to remove
// when the step ends. run is paths.run.
func Record(run string, s Step) (file string, err error) {
	f, err := prepare(run)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	name := stepsName + "/" + s.file()
	out, err := f.Create(name)
	if errors.Is(err, fs.ErrExist) { // of a slurmstepd before the last boot, where run outlived that
		if err = f.Remove(name); err == nil {
			out, err = f.Create(name)
		}
	}
	if err != nil {
		return "", err
	}
	_, err = out.Write(append(text, '\n'))
	if err = errors.Join(err, out.Close()); err != nil {
		return "", errors.Join(err, f.Remove(name))
	}
	return filepath.Join(run, name), nil
}

// prepare makes the folder for steps.
func prepare(run string) (folder.Folder, error) {
	f := folder.Folder{Dir: run, Mode: 0o755}
	if err := f.MakeBase(); err != nil {
		return f, err
	}
	if err := f.MakeFolder(stepsName); err != nil && !errors.Is(err, fs.ErrExist) {
		return f, err
	}
	return f, nil
}

// file is unique: in a heterogeneous step of one job several slurmstepds have the
// same numbers.
func (s Step) file() string { return fmt.Sprintf("%s.%s.%d", s.Job, s.Step, s.PID) }

// stepdOf returns the slurmstepd that a file is of.
func stepdOf(file string) (pid int, ok bool) {
	parts := strings.Split(file, ".")
	if len(parts) != 3 {
		return 0, false
	}
	pid, err := strconv.Atoi(parts[2])
	return pid, err == nil && pid > 0
}

// read returns the step that a file has.
func read(f folder.Folder, file string) (Step, error) {
	text, err := f.Read(stepsName + "/" + file)
	if err != nil {
		return Step{}, err
	}
	var s Step
	if err := json.Unmarshal(text, &s); err != nil {
		return Step{}, fmt.Errorf("%s: %w", filepath.Join(f.Dir, stepsName, file), err)
	}
	if s.PID <= 0 || s.Began == "" || s.file() != file {
		return Step{}, fmt.Errorf("%s: is of %s, not as the plugin of this version writes it", filepath.Join(f.Dir, stepsName, file), s.file())
	}
	return s, nil
}

// Steps are the steps that are written down, as far as they are known.
type Steps struct {
	// Run is paths.run.
	Run string
	// Runs tells whether a process is there, and when it began.
	Runs func(pid int) (began string, there bool)

	known map[string]Step // by file
}

// Update reads what is new, and forgets and removes what is of slurmstepds that have
// ended. changed tells whether any step is new or gone. The error is about
// files that could not be read; the steps are those that could.
func (s *Steps) Update() (changed bool, err error) {
	f := folder.Folder{Dir: s.Run, Mode: 0o755}
	names, err := f.List(stepsName)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err = prepare(s.Run); err == nil {
			names, err = f.List(stepsName)
		}
	}
	if err != nil {
		return s.forget(), err
	}
	if s.known == nil {
		s.known = map[string]Step{}
	}
	var errs []error
	here := map[string]bool{}
	for _, name := range names {
		step, known := s.known[name]
		if !known {
			if step, err = read(f, name); errors.Is(err, fs.ErrNotExist) {
				continue
			}
		}
		if pid, ok := stepdOf(name); err == nil || known || ok {
			began, there := s.Runs(pid)
			if !there || (err == nil || known) && began != step.Began {
				if gone := f.Remove(stepsName + "/" + name); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
					errs = append(errs, gone)
				}
				err = nil
				continue
			}
		}
		if err != nil {
			errs = append(errs, err)
			err = nil
			continue
		}
		here[name] = true
		if !known {
			s.known[name], changed = step, true
		}
	}
	for name := range s.known {
		if !here[name] {
			delete(s.known, name)
			changed = true
		}
	}
	return changed, errors.Join(errs...)
}

func (s *Steps) forget() (changed bool) {
	changed = len(s.known) > 0
	s.known = nil
	return changed
}

// List returns the steps, in the order of their files' names.
func (s *Steps) List() []Step {
	list := make([]Step, 0, len(s.known))
	for _, name := range sortedKeys(s.known) {
		list = append(list, s.known[name])
	}
	return list
}

// AgentLock is the file in paths.run that the agent holds a lock on and has its pid
// in.
const AgentLock = "agent.lock"

// agentProgram is the agent, as the kernel has it in /proc/PID/comm.
const agentProgram = "gputuned"

// ErrNoAgent is a node without a running agent.
var ErrNoAgent = errors.New("gputuned does not run on this node")

// Agent returns an error if no agent runs on this node. The lock itself is not asked:
// to try it would keep an agent from starting.
func Agent(root, run string) error {
	file, err := folder.Folder{Dir: run, Mode: 0o755}.Open(AgentLock, unix.O_RDONLY)
	if err != nil {
		return ErrNoAgent
	}
	defer file.Close()
	holder := make([]byte, 20)
	n, _ := file.ReadAt(holder, 0) // EOF, or nothing that is a pid
	pid, err := strconv.Atoi(strings.TrimSpace(string(holder[:n])))
	if err != nil || pid <= 0 {
		return ErrNoAgent
	}
	if comm(root, pid) != agentProgram {
		return ErrNoAgent
	}
	return nil
}
