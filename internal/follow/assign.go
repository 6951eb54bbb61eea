package follow

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gputune/internal/idset"
	"gputune/internal/placement"
	"gputune/internal/verify"
)

// List is which processes the driver sees use one GPU.
type List struct {
	PCI  string `json:"pci"`
	PIDs []int  `json:"pids"`
	// MPS says that an MPS server uses it, which is not in the list. Its clients are,
	// with the drivers that tell them (an H200's 580 does).
	MPS   bool   `json:"mps,omitempty"`
	Error string `json:"error,omitempty"` // why it cannot be told
}

// Lister asks the driver.
type Lister interface {
	// List returns which processes use each of the GPUs, in their order.
	List(pci []string) []List
	// Close lets go of the driver. A List after it takes it up again.
	Close() error
}

// worker is one process of a step with the GPUs that it uses.
type worker struct {
	step *Step
	gpus []string // PCI addresses, sorted
	Share
}

// Left is a process on a GPU, or a whole GPU, that is left alone.
type Left struct {
	PCI string
	PID int // 0: all of the GPU
	Why string
}

// workers finds out whose the processes on the GPUs are and puts each one's share
// together: of several GPUs the union. What is left alone is returned with why.
func workers(steps []Step, lists []List, member func(pid int, s *Step) bool, there func(pid int) bool) (map[int]*worker, []Left) {
	found := map[int]*worker{}
	var left []Left
	for _, list := range lists {
		switch {
		case list.Error != "":
			left = append(left, Left{PCI: list.PCI, Why: list.Error})
			continue
		case list.MPS && len(list.PIDs) == 0:
			left = append(left, Left{PCI: list.PCI, Why: "NVML shows an MPS server alone: its clients, if there are any, cannot be told"})
			continue
		}
		for _, pid := range list.PIDs {
			step, share := owner(steps, list.PCI, func(s *Step) bool { return member(pid, s) })
			switch {
			case step == nil && !there(pid):
				left = append(left, Left{list.PCI, pid, "it is in another PID namespace, or has ended"})
			case step == nil:
				left = append(left, Left{list.PCI, pid, "it is in no step with --gpu-numa-bind=follow"})
			case found[pid] == nil:
				found[pid] = &worker{step: step, gpus: []string{list.PCI}, Share: share}
			default:
				found[pid].add(share)
			}
		}
	}
	return found, left
}

// owner returns the step that has both the GPU and the process.
func owner(steps []Step, pci string, member func(*Step) bool) (*Step, Share) {
	for i := range steps {
		for _, share := range steps[i].Shares {
			if share.PCI == pci && member(&steps[i]) {
				return &steps[i], share
			}
		}
	}
	return nil, Share{}
}

// add adds another GPU. What one of them leaves alone is left alone.
func (w *worker) add(share Share) {
	if slices.Contains(w.gpus, share.PCI) {
		return
	}
	w.gpus = append(w.gpus, share.PCI)
	slices.Sort(w.gpus)
	w.CPUs = union(w.CPUs, share.CPUs)
	w.Mems = union(w.Mems, share.Mems)
	if w.Locality != share.Locality {
		w.Locality = placement.Mixed
	}
}

func union(a, b idset.Set) idset.Set {
	if a.Empty() || b.Empty() {
		return idset.Set{}
	}
	return a.Or(b)
}

// inStep tells whether a process is the step's.
func inStep(h verify.Host, table verify.Table, pid int, s *Step) bool {
	if len(s.Cgroups) == 0 {
		return pid != s.PID && table.Descends(pid, s.PID)
	}
	for line := range strings.Lines(h.Cgroups(pid)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3) // ID:controllers:path
		if len(parts) < 3 {
			continue
		}
		for _, cgroup := range s.Cgroups {
			if rest, below := strings.CutPrefix(parts[2], cgroup); below && (rest == "" || rest[0] == '/') {
				return true
			}
		}
	}
	return false
}

func sortedKeys[K int | string, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// comm is a process's program, cut to 15 bytes (proc_pid_comm(5)), "" if there is no
// such process.
func comm(root string, pid int) string {
	text, err := os.ReadFile(filepath.Join(root, "proc", strconv.Itoa(pid), "comm"))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(text), "\n")
}

// String is what is left alone, for people.
func (l Left) String() string {
	if l.PID == 0 {
		return fmt.Sprintf("gpu %s: %s", l.PCI, l.Why)
	}
	return fmt.Sprintf("gpu %s: process %d: %s", l.PCI, l.PID, l.Why)
}
