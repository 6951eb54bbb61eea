//go:build vm

package vm

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gputune/internal/idset"
)

// task is what look-at-task printed about one task.
type task struct {
	id     int // SLURM_PROCID
	uid    string
	cpus   idset.Set // Cpus_allowed_list
	mems   idset.Set // Mems_allowed_list
	bound  idset.Set // where Slurm itself had bound it
	cgroup string
	// The cpuset of the task's own cgroup: its files as they are, and what is in
	// effect; and what is in effect in the cgroup above, which is the step's.
	leafCPUs, leafMems, leafCPUsEffective, leafMemsEffective, stepCPUs, stepMems string

	policy  string      // as in numa_maps
	pages   map[int]int // of the buffer, by node
	gpus    []string    // PCI addresses of those that it may open, in order
	devices string      // minor numbers of the device files that it sees
	numactl map[string]string
	says    map[string]string // gputune's variables: gpus, cpus, mems, mem_policy, locality
}

func (t task) granted() idset.Set { return idset.MustParse(t.stepCPUs) }

// outcome is what came of one step.
type outcome struct {
	command string
	code    int
	tasks   []task // by id
	said    []string
	// Of one that was planned before (planScript): the plan, and the CPUs granted.
	plan, granted string
}

// onOneCPU before a command makes it cheaper to emulate; Slurm's tasks do not
// inherit it.
const onOneCPU = "taskset -c 0 "

// steps runs commands, each of which starts a step whose tasks look at
// themselves, one after the other: in one allocation, if arguments of salloc are
// given.
func (m *machine) steps(t *testing.T, allocation string, commands ...string) []outcome {
	t.Helper()
	var script strings.Builder
	script.WriteString("#!/bin/bash\nstep() { \"$@\" 2>/tmp/said; status=$?; echo '@said'; cat /tmp/said; echo \"@end $status\"; }\n")
	for _, command := range commands {
		fmt.Fprintf(&script, "step %s\n", command)
	}
	m.put(t, "/tmp/steps", script.String())
	run := onOneCPU + "/tmp/steps"
	if allocation != "" {
		run = onOneCPU + "salloc -Q " + allocation + " /tmp/steps"
	}
	output := m.must(t, "cat /tmp/steps >&2; "+run)
	var outcomes []outcome
	current := outcome{}
	said := false
	for line := range strings.Lines(output) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "task="):
			current.tasks = append(current.tasks, m.parseTask(t, line))
		case strings.HasPrefix(line, "plan="):
			current.plan = strings.TrimPrefix(line, "plan=")
		case strings.HasPrefix(line, "granted="):
			current.granted = strings.TrimPrefix(line, "granted=")
		case line == "@said":
			said = true
		case strings.HasPrefix(line, "@end "):
			current.code, _ = strconv.Atoi(strings.TrimPrefix(line, "@end "))
			current.command = commands[len(outcomes)]
			slices.SortFunc(current.tasks, func(a, b task) int { return a.id - b.id })
			outcomes = append(outcomes, current)
			current, said = outcome{}, false
		case said:
			current.said = append(current.said, line)
		}
	}
	if len(outcomes) != len(commands) {
		t.Fatalf("%d of %d steps ended", len(outcomes), len(commands))
	}
	return outcomes
}

// step runs one step that has to succeed.
func (m *machine) step(t *testing.T, command string) outcome {
	t.Helper()
	o := m.steps(t, "", command)[0]
	if o.code != 0 {
		t.Fatalf("status %d of %s: %s", o.code, command, strings.Join(o.said, "\n"))
	}
	return o
}

func (m *machine) parseTask(t *testing.T, line string) task {
	t.Helper()
	f := map[string]string{}
	k := task{numactl: map[string]string{}, says: map[string]string{}, pages: map[int]int{}}
	for field := range strings.SplitSeq(line, "\t") {
		name, value, found := strings.Cut(field, "=")
		if !found || strings.HasPrefix(value, "?") {
			t.Fatalf("look-at-task: %q in %s", field, line)
		}
		f[name] = value
		if rest, of := strings.CutPrefix(name, "numactl."); of {
			k.numactl[rest] = value
		}
		if rest, of := strings.CutPrefix(name, "gputune_"); of {
			k.says[rest] = value
		}
	}
	var err error
	if k.id, err = strconv.Atoi(f["task"]); err != nil {
		t.Fatalf("look-at-task: %v in %s", err, line)
	}
	k.uid, k.cgroup, k.policy, k.devices = f["uid"], f["cgroup"], f["policy"], f["devices"]
	k.cpus, k.mems = mustSet(t, f["cpus"]), mustSet(t, f["mems"])
	if k.bound, err = parseMask(f["bound"]); err != nil {
		t.Fatal(err)
	}
	k.leafCPUs, k.leafMems = f["leaf.cpus"], f["leaf.mems"]
	k.leafCPUsEffective, k.leafMemsEffective = f["leaf.cpus.effective"], f["leaf.mems.effective"]
	k.stepCPUs, k.stepMems = f["step.cpus"], f["step.mems"]
	if f["pages"] != "" {
		for item := range strings.SplitSeq(f["pages"], ",") {
			var id, count int
			if _, err := fmt.Sscanf(item, "%d:%d", &id, &count); err != nil {
				t.Fatalf("look-at-task: pages %q: %v", item, err)
			}
			k.pages[id] = count
		}
	}
	for minor := range mustSet(t, f["open"]).All() {
		pci, known := m.gpus[minor]
		if !known {
			t.Fatalf("look-at-task: may open minor %d, which is no GPU", minor)
		}
		k.gpus = append(k.gpus, pci)
	}
	slices.Sort(k.gpus)
	return k
}

// line is gputune's verbose line.
type line struct {
	task                        int
	gpus, cpus, mems, policy    string
	keptCPUs, keptMems, allText string
	locality                    string
}

var verboseLine = regexp.MustCompile(`^gputune: node1 task (\d+): gpus? (.+), cpus (\S+)(?: \(kept: (\S+)\))?, mems (?:(\S+) )?(prefer|bind|interleave|none)(?: \(kept: (\S+)\))?, (local|remote|mixed|unknown)$`)

// line returns the verbose line of a task; there must be one.
func (o outcome) line(t *testing.T, id int) line {
	t.Helper()
	var found []line
	for _, text := range o.said {
		if match := verboseLine.FindStringSubmatch(text); match != nil && match[1] == strconv.Itoa(id) {
			found = append(found, line{
				task: id, gpus: match[2], cpus: match[3], keptCPUs: match[4], mems: match[5], policy: match[6],
				keptMems: match[7], locality: match[8], allText: text,
			})
		}
	}
	if len(found) != 1 {
		t.Fatalf("%s: %d verbose lines of task %d in\n%s", o.command, len(found), id, strings.Join(o.said, "\n"))
	}
	return found[0]
}

var littleMemory = regexp.MustCompile(`^mem=bind: node \d+ has \d+ MiB free for `)

// warnings returns what a task was warned of, but for memory that is short, which
// comes and goes.
func (o outcome) warnings(id int) []string {
	var warnings []string
	for _, text := range o.said {
		if rest, found := strings.CutPrefix(text, fmt.Sprintf("gputune: node1 task %d: warning: ", id)); found && !littleMemory.MatchString(rest) {
			warnings = append(warnings, rest)
		}
	}
	return warnings
}
