//go:build gpu

package hw

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"gputune/internal/idset"
)

// needSlurm skips a test where no Slurm answers, such as the one that
// bundle/start starts.
func needSlurm(t testing.TB) {
	t.Helper()
	if err := exec.Command("sinfo", "-h").Run(); err != nil {
		t.Skip("no Slurm answers here: ", err)
	}
}

// looker is a task that says what the kernel does with it, and which GPU it has.
const looker = `#!/bin/sh
leaf=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
echo "task $SLURM_LOCALID"
sed -n 's/^Cpus_allowed_list:\t/cpus /p; s/^Mems_allowed_list:\t/mems /p' /proc/self/status
echo "cpuset $(cat "$leaf/cpuset.cpus.effective")"
echo "leaf $leaf"
sed -n '1s/^[^ ]* \([^ ]*\).*/policy \1/p' /proc/self/numa_maps
echo "told $GPUTUNE_GPUS $GPUTUNE_CPUS $GPUTUNE_MEMS $GPUTUNE_MEM_POLICY $GPUTUNE_LOCALITY"
PROGRAM </dev/null
echo end
`

// task is what one said.
type task map[string]string

// tasks runs looker in a step and returns what its tasks said by local id.
func tasks(t *testing.T, arguments ...string) map[string]task {
	t.Helper()
	needSlurm(t)
	program := cuda(t)
	script := filepath.Join(filepath.Dir(program), "look")
	if err := os.WriteFile(script, []byte(strings.Replace(looker, "PROGRAM", program, 1)), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	output := run(t, "timeout", append([]string{"60", "srun", "--label"}, append(arguments, script)...)...)
	found := map[string]task{}
	line := regexp.MustCompile(`(?m)^(\d+): (\S+) ?(.*)$`)
	for _, match := range line.FindAllStringSubmatch(output, -1) {
		if found[match[1]] == nil {
			found[match[1]] = task{}
		}
		found[match[1]][match[2]] = match[3]
	}
	for id, said := range found {
		t.Logf("task %s: %v", id, said)
	}
	return found
}

// Each task has a GPU of its own, which CUDA itself names, and is on the CPUs
// near that one, in the kernel's own words.
func TestStep(t *testing.T) {
	cpus, nodes := affinities(t)
	uuids := map[string]int{}
	for i, row := range smi(t, "uuid") {
		uuids[row[0]] = i
	}
	var addresses []string
	for _, gpu := range machine(t).GPUs {
		addresses = append(addresses, gpu.PCI)
	}
	n := len(uuids)
	for _, mode := range []string{"cpus=node", "cpus=exclusive", "cpus=node,mem=bind"} {
		t.Run(mode, func(t *testing.T) {
			found := tasks(t, "-n", strconv.Itoa(n), "-c4", "--gpus-per-task=1", "--gpu-numa-bind=verbose,"+mode)
			if len(found) != n {
				t.Fatalf("%d tasks, want %d", len(found), n)
			}
			seen := map[string]bool{}
			var taken idset.Set
			for id, said := range found {
				words := strings.Fields(said["device"]) // N UUID PCI MULTIPROCESSORS
				if len(words) != 4 || seen[words[1]] {
					t.Fatalf("task %s: device %v, others have %v", id, words, seen)
				}
				seen[words[1]] = true
				gpu := uuids[words[1]]
				own, err := idset.Parse(said["cpus"])
				if err != nil {
					t.Fatal(err)
				}
				near := idset.MustParse(cpus[gpu])
				if own.Empty() || !own.SubsetOf(near) {
					t.Errorf("task %s: CPUs %s, near its GPU are %s", id, own, near)
				}
				if said["cpuset"] != said["cpus"] {
					t.Errorf("task %s: cpuset %s, affinity %s", id, said["cpuset"], said["cpus"])
				}
				if mode == "cpus=exclusive" && !own.And(taken).Empty() {
					t.Errorf("task %s: CPUs %s, others have %s", id, own, taken)
				}
				taken = taken.Or(own)
				policy := "prefer"
				if strings.Contains(mode, "mem=bind") {
					policy = "bind"
				}
				if !strings.HasPrefix(said["policy"], policy) || !strings.HasSuffix(said["policy"], ":"+nodes[gpu]) {
					t.Errorf("task %s: policy %s, want %s of node %s", id, said["policy"], policy, nodes[gpu])
				}
				// What it has of GPUs is told by PCI address.
				if want := fmt.Sprintf("%s %s %s %s local", addresses[gpu], own, nodes[gpu], policy); said["told"] != want {
					t.Errorf("task %s was told %q, want %q", id, said["told"], want)
				}
			}
		})
	}
}

// BenchmarkStep is what a step takes with the option and without it.
func BenchmarkStep(b *testing.B) {
	needSlurm(b)
	for _, n := range []int{1, 8, 32} {
		for name, option := range map[string]string{"plain": "off", "bound": "quiet"} {
			b.Run(fmt.Sprintf("%d tasks/%s", n, name), func(b *testing.B) {
				for b.Loop() {
					run(b, "timeout", "60", "srun", "-O", "-n", strconv.Itoa(n), "--gpus=1", "--gpu-numa-bind="+option, "true")
				}
			})
		}
	}
}
