//go:build vm

package vm

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

// killScript starts a step and kills it while it is launched: SIGKILL to what the
// first argument says, after the second, in seconds since the step's cgroup was
// made. The rest is srun's.
const killScript = `#!/bin/bash
exec 2>/tmp/kill.log
set -x
victim=$1 delay=$2; shift 2
scope=/sys/fs/cgroup/system.slice/node1_slurmstepd.scope
srun -Q -K -n4 --gpus-per-task=1 "$@" sleep 30 </dev/null >/tmp/killed.out 2>&1 & srun=$!
for i in $(seq 500); do
	step=$(echo $scope/*/step_0)
	[ -d "$step" ] && break
	sleep 0.02
done
[ -d "$step" ] || { echo "no step"; cat /tmp/killed.out; exit 1; }
sleep $delay
tasks=$(cat "$step"/user/*/cgroup.procs 2>/dev/null | wc -l)
stepd=$(echo $(cat "$step"/slurm/cgroup.procs 2>/dev/null))
case $victim in
tasks) [ ! -d "$step/user" ] || echo 1 >"$step/user/cgroup.kill" ;;
stepd) kill -9 $stepd $srun 2>/dev/null; sleep 0.3; echo 1 >"$step/cgroup.kill" ;;
all) echo 1 >"$step/cgroup.kill"; kill -9 $srun ;;
esac 2>/dev/null
began=${EPOCHREALTIME/./}
if [ $victim = tasks ] && [ $tasks -gt 0 ]; then
	# Tasks that were killed end the step by itself.
	for i in $(seq 100); do kill -0 $srun || break; sleep 0.3; done
	! kill -0 $srun || echo "srun hangs"
fi
scancel $(squeue -h -o %i)
wait $srun
for i in $(seq 100); do [ "$(sinfo -h -o %T)" = idle ] && [ -z "$(squeue -h)" ] && break; sleep 0.4; done
echo "$(sinfo -h -o '%T %E') $(( (${EPOCHREALTIME/./} - began) / 1000 )) ms after killing $victim ($tasks tasks, slurmstepd ${stepd:-none}) at $delay s"
# Whoever kills slurmstepd keeps the cgroups that only slurmstepd removes. They must be empty.
left=$(ls -d $scope/*/step_0 2>/dev/null)
[ -z "$left" ] || echo "left $(dirname $left)"
find $scope -mindepth 1 -depth -type d -not -path "$scope/system*" -exec rmdir {} + 2>&1
`

// A step that is killed hard while it is launched, at any point of that: the node
// is ready for the next step at once, and nothing of gputune is left.
func testKilledSteps(t *testing.T, m *machine) {
	if os.Getenv("GPUTUNE_VM_FULL") == "" {
		t.Skip("how a killed step ends depends on the moment, which the test does not allow for yet; set GPUTUNE_VM_FULL to try")
	}
	m.put(t, "/tmp/kill", killScript)
	rng := rand.New(rand.NewPCG(9, 9))
	victims := []string{"tasks", "stepd", "all"}
	round := func(i int, option string) string {
		t.Helper()
		// The tasks are bound about 0.3 s after the cgroup was made.
		result := m.try(t, fmt.Sprintf("/tmp/kill %s %.2f %s", victims[i%len(victims)], 0.7*rng.Float64(), option))
		text := strings.TrimSpace(result.Output)
		if result.Code != 0 || !strings.HasPrefix(text, "idle none ") || strings.Contains(text, "hangs") || strings.Contains(text, "rmdir") {
			t.Errorf("%s: status %d: %s\n%s", option, result.Code, text, m.must(t, "cat /tmp/kill.log"))
		}
		return text
	}
	leftPlain, leftBound := 0, 0
	for i := range len(victims) {
		leftPlain += strings.Count(round(i, ""), "left ")
	}
	const rounds = 10
	for i := range rounds {
		text := round(i, "--gpu-numa-bind=mem=bind")
		t.Log(text)
		leftBound += strings.Count(text, "left ")
	}
	t.Logf("empty cgroups that Slurm left: %d after %d killed steps without the option, %d after %d with it", leftPlain, len(victims), leftBound, rounds)
	if leftPlain == 0 && leftBound > 0 {
		t.Errorf("cgroups are left behind with the option alone")
	}
	if lines := m.must(t, "grep gputune /var/log/slurm/slurmd.log || true"); lines != "" {
		t.Logf("slurmd's log about gputune:\n%s", lines)
	}
	m.forgetLog(t) // it may well have failed to bind a task that was gone

	m.check(t, m.step(t, "srun -Q -n4 --gpus-per-task=1 "+policy{mem: "bind"}.option()+" look-at-task 8"), policy{mem: "bind"})
}
