package verify

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"gputune/internal/idset"
)

// Kind is what can be off.
type Kind string

// Kinds of findings.
const (
	CPUs   Kind = "cpus"   // a thread may run on CPUs outside the plan
	Policy Kind = "policy" // new memory comes from elsewhere
	Pages  Kind = "pages"  // memory is elsewhere
)

// Finding is one process that is off its plan in one way.
type Finding struct {
	Process
	Kind    Kind
	Threads []int  // of CPUs: which
	Want    string // "16-31", "prefer:1", "1"
	Found   string
	Away    idset.Set // of Pages: the nodes that they are on
}

// String is the finding for people.
func (f Finding) String() string {
	switch f.Kind {
	case CPUs:
		return fmt.Sprintf("process %d (%s): %d threads may run on cpus %s, planned %s", f.PID, f.Program, len(f.Threads), f.Found, f.Want)
	case Policy:
		return fmt.Sprintf("process %d (%s): memory policy %s, planned %s", f.PID, f.Program, f.Found, f.Want)
	default:
		return fmt.Sprintf("process %d (%s): %s, planned nodes %s", f.PID, f.Program, f.Found, f.Want)
	}
}

// Result is what one look at a process or more has seen.
type Result struct {
	Threads     int
	Pages, Away int64 // of 4 KiB, looked at and on other nodes than planned
	Findings    []Finding
}

func (r *Result) add(other Result) {
	r.Threads += other.Threads
	r.Pages += other.Pages
	r.Away += other.Away
	r.Findings = append(r.Findings, other.Findings...)
}

// Check looks at all of a task. It takes the memory maps' time, see CheckMemory.
func (h Host) Check(task Task) (Result, error) {
	var r Result
	var errs []error
	for _, p := range task.Processes {
		cpus, err := h.CheckCPUs(task.Plan, p)
		errs = append(errs, err)
		r.add(cpus)
		memory, err := h.CheckMemory(task.Plan, p)
		errs = append(errs, err)
		r.add(memory)
	}
	return r, errors.Join(errs...)
}

// CheckCPUs looks at the affinity of each thread of a process: one system call
// each. Fewer CPUs than planned are the program's own choice and all right. A
// process that has ended is right.
func (h Host) CheckCPUs(plan Plan, p Process) (Result, error) {
	r := Result{}
	var off []int
	var found idset.Set
	for _, id := range h.threads(p.PID) {
		cpus, err := h.Affinity(id)
		if gone(err) {
			continue
		}
		if err != nil {
			return r, err
		}
		r.Threads++
		if !cpus.SubsetOf(plan.CPUs) {
			off = append(off, id)
			found = found.Or(cpus)
		}
	}
	if len(off) > 0 && h.still(p) {
		r.Findings = []Finding{{Process: p, Kind: CPUs, Threads: off, Want: plan.CPUs.String(), Found: found.String()}}
	}
	return r, nil
}

// What memory on other nodes counts as off. A policy that prefers nodes may fall
// back to others when they are full, and each program has some pages from before.
const (
	leastAway  = 16 << 20 >> 12 // pages of 4 KiB
	shareOfAll = 10             // and one in so many
)

// maxMaps bounds what is read of a process's memory maps, in bytes.
const maxMaps = 16 << 20

// CheckMemory looks at the memory policy of a process and at where its anonymous
// memory is, by /proc/PID/numa_maps. The kernel walks the page tables for that:
// some 10 ms for each GiB of 4-KiB pages. Memory of files, which others may have
// read first, does not count.
func (h Host) CheckMemory(plan Plan, p Process) (Result, error) {
	r := Result{}
	if plan.Policy == "none" || plan.Mems.Empty() {
		return r, nil
	}
	file, err := os.Open(h.path(p.PID, "numa_maps"))
	if gone(err) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxMaps))
	if err != nil && !gone(err) {
		return r, err
	}
	maps := parseMaps(string(text))
	if !h.still(p) {
		return r, nil
	}
	if maps.policy != "" && !samePolicy(plan, maps.policy) {
		r.Findings = append(r.Findings, Finding{Process: p, Kind: Policy, Want: plan.Policy + ":" + plan.Mems.String(), Found: maps.policy})
	}
	var away idset.Set
	for node, pages := range maps.pages {
		r.Pages += pages
		if !plan.Mems.Has(node) {
			r.Away += pages
			away.Add(node)
		}
	}
	if r.Away >= leastAway && r.Away*shareOfAll >= r.Pages {
		found := fmt.Sprintf("%d MiB of %d on nodes %s", r.Away>>8, r.Pages>>8, away)
		r.Findings = append(r.Findings, Finding{Process: p, Kind: Pages, Want: plan.Mems.String(), Found: found, Away: away})
	}
	return r, nil
}

// memoryMaps is what a process's numa_maps say.
type memoryMaps struct {
	policy string        // of the process, as its stack has it, "" not known
	pages  map[int]int64 // by node, in 4 KiB
}

// parseMaps reads numa_maps (numa(7), fs/proc/task_mmu.c): address, policy, then
// words, among them file=, stack, N<node>=<pages> and kernelpagesize_kB=.
func parseMaps(text string) memoryMaps {
	maps := memoryMaps{pages: map[int]int64{}}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		policy, words := fields[1], fields[2:]
		if policy == "prefer" && len(words) > 0 && strings.HasPrefix(words[0], "(many)") {
			policy, words = policy+strings.TrimPrefix(words[0], "(many)"), words[1:]
		}
		size, ofFile := int64(4), false
		pages := map[int]int64{}
		for _, word := range words {
			var node int
			var count int64
			switch {
			case word == "stack":
				maps.policy = policy
			case strings.HasPrefix(word, "file="):
				ofFile = true
			case strings.HasPrefix(word, "kernelpagesize_kB="):
				if _, err := fmt.Sscanf(word, "kernelpagesize_kB=%d", &count); err == nil && count > 0 {
					size = count
				}
			case strings.HasPrefix(word, "N"):
				if n, err := fmt.Sscanf(word, "N%d=%d", &node, &count); err == nil && n == 2 && node >= 0 && node < idset.Limit {
					pages[node] += count
				}
			}
		}
		if ofFile {
			continue
		}
		for node, count := range pages {
			maps.pages[node] += count * size / 4
		}
	}
	return maps
}

// samePolicy compares with a policy as the kernel prints it (mpol_to_str in
// mm/mempolicy.c): "bind=static:1", "prefer:0". Fewer nodes than planned are all
// right.
func samePolicy(plan Plan, found string) bool {
	mode, nodes, _ := strings.Cut(found, ":")
	mode, _, _ = strings.Cut(mode, "=")
	if mode != plan.Policy {
		return false
	}
	set, err := idset.Parse(nodes)
	return err == nil && !set.Empty() && set.SubsetOf(plan.Mems)
}
