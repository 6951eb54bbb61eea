//go:build vm

package vm

import (
	"fmt"
	"strings"
	"testing"

	"gputune/internal/idset"
)

// followScript starts a step with two workers, neither of which binds itself, one
// with its memory where the other's GPU is; tells the driver's stand-in who uses which
// GPU; and says each second where they are, until they are where they should be.
//
//	follow GPU-OF-0 GPU-OF-1 NODE-OF-0 NODE-OF-1 CPUS-OF-0 CPUS-OF-1
const followScript = `#!/bin/bash
cd /tmp && rm -f worker.* followed
processes=/var/lib/fakenvml/fakenvml.processes
systemctl start gputuned || exit
setsid srun -Q -n1 -c8 --gpus=4 --gpu-numa-bind=follow,verbose bash -c \
	"$TOOLS/worker $4 $MIB /tmp/worker.0 & $TOOLS/worker $3 $MIB /tmp/worker.1 & wait" </dev/null >followed 2>&1 &
for i in {1..100}; do [ -e worker.0 ] && [ -e worker.1 ] && break; sleep 0.2; done
pids=($(cat worker.0) $(cat worker.1)) || { cat followed; exit 1; }
# The anonymous pages of the largest mapping on a node; all CPUs that its threads and its child's may use.
pages() { awk -v node="N$2=" '!/ file=/ { n = 0; for (i = 3; i <= NF; i++) if (index($i, node) == 1) n = substr($i, length(node) + 1) + 0; if (n > most) most = n } END { print most + 0 }' /proc/$1/numa_maps; }
cpus() { sed -n 's/^Cpus_allowed_list:\t//p' /proc/$1/task/*/status $(printf '/proc/%s/status ' $(pgrep -P $1)) | sort -u | paste -sd' '; }
look() { echo "$1 cpus $(cpus ${pids[0]}) and $(cpus ${pids[1]}) pages $(pages ${pids[0]} $3) $(pages ${pids[0]} $4) and $(pages ${pids[1]} $4) $(pages ${pids[1]} $3) threads $(ls /proc/${pids[0]}/task | wc -l)"; }
look before "${@:2}"
printf '%s %d 1\n' $1 ${pids[0]} $2 ${pids[1]} >$processes.new && mv $processes.new $processes
for ((end = SECONDS + 60; SECONDS < end;)); do
	now=$(look after "${@:2}")
	case $now in "after cpus $5 and $6 pages "[1-9][0-9][0-9][0-9]*" 0 and "[1-9][0-9][0-9][0-9]*" 0 "*) break ;; esac
	sleep 0.5
done
echo "$now"
rm $processes
kill -9 ${pids[@]}
wait
for i in {1..50}; do [ -z "$(ls /run/gputune/steps)" ] && [ -z "$(pgrep -P $(pgrep -x gputuned -o))" ] && break; sleep 0.2; done
echo "left$(ls /run/gputune/steps)$(pgrep -P $(pgrep -x gputuned -o))"
systemctl stop gputuned
journalctl -q -u gputuned -o cat --since=-5min | sed 's/^/said /'
sed 's/^/task /' followed
`

// Two workers of one task, which nobody bound, are on the CPUs of the GPU that each
// uses, threads and children included, and their pages on its node.
func testFollow(t *testing.T, m *machine) {
	const mib = 32
	var gpus [2]string // UUID of a GPU of each node
	var home [2]gpu
	for line := range strings.Lines(m.must(t, "cat /run/numavm/gpus")) {
		var minor, node int
		var pci, uuid string
		if _, err := fmt.Sscan(line, &minor, &pci, &uuid, &node); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		gpus[node], home[node] = uuid, m.layout.gpu(pci, m.layout.cpus)
	}
	m.put(t, "/tmp/follow", followScript)
	output := m.must(t, fmt.Sprintf("TOOLS=%s MIB=%d /tmp/follow %s %s %s %s %s %s", guestTools, mib,
		gpus[0], gpus[1], home[0].mems, home[1].mems, home[0].pool, home[1].pool))
	t.Log(output)
	const pages = mib << 8
	var before, after [4]int
	var cpus [4]string
	var threads int
	for line := range strings.Lines(output) {
		switch {
		case strings.HasPrefix(line, "before "):
			if _, err := fmt.Sscanf(line, "before cpus %s and %s pages %d %d and %d %d threads %d", &cpus[0], &cpus[1], &before[0], &before[1], &before[2], &before[3], &threads); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
		case strings.HasPrefix(line, "after "):
			if _, err := fmt.Sscanf(line, "after cpus %s and %s pages %d %d and %d %d threads %d", &cpus[2], &cpus[3], &after[0], &after[1], &after[2], &after[3], &threads); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
		}
	}
	all := m.layout.cpus.String()
	if want := [4]string{all, all, home[0].pool.String(), home[1].pool.String()}; cpus != want || home[0].pool.Equal(home[1].pool) {
		t.Errorf("their CPUs are %q, want %q", cpus, want)
	}
	if threads < 4 {
		t.Errorf("%d threads: that tested too little", threads)
	}
	// At home, and on the other's node: nothing, then all of it, but for a page that
	// the kernel is busy with just then.
	const busy = 4
	for i := range 2 {
		if before[2*i+1] < pages || after[2*i] < pages-busy || after[2*i+1] > busy {
			t.Errorf("worker %d: pages at home and away %v, then %v: want all %d of them away, then at home", i, before[2*i:2*i+2], after[2*i:2*i+2], pages)
		}
	}
	if !strings.Contains(output, "\nleft\n") {
		t.Error("the step's file or the child that asks the driver is left")
	}
	if strings.Contains(output, "warning: ") || !strings.Contains(output, "mems "+idset.Of(0, 1).String()+" prefer") {
		t.Error("the task should have both nodes and no warning")
	}
	if strings.Count(output, "said a worker is bound to its GPU: job ") != 2 {
		t.Error("the journal does not have both workers")
	}
}
