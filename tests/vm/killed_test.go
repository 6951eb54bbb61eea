//go:build vm

package vm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"gputune/tests/vm/numavm"
)

// killTimeout is more than all that killScript waits for.
const killTimeout = 5 * time.Minute

// killScript starts a step of four tasks and kills it hard: the first argument
// says whom, the second what it waits for first, the third how many seconds after
// that; the rest is srun's. Prints one line of NAME=VALUE, separated by tabs. At
// its end no cgroup of the step is left, unless a process is in it.
const killScript = `#!/bin/bash
exec 2>/tmp/kill.log {never}<> <(:)
set -x
shopt -s nullglob
victim=$1 moment=$2 delay=$3 srun_ms=; shift 3
scope=/sys/fs/cgroup/system.slice/node1_slurmstepd.scope
pause() { read -rt "$1" <&$never; } # no process, as sleep is
since() { echo $(((${EPOCHREALTIME/./} - $1) / 1000)); }

look() { # at the step as it is now
	tasks=() stepd=() running=0 core=0 bound=0
	mapfile -t stepd <"$step/slurm/cgroup.procs"
	for file in "$step"/user/*/cgroup.procs; do mapfile -t -O ${#tasks[@]} tasks <"$file"; done
	for pid in "${tasks[@]}"; do read -r comm <"/proc/$pid/comm" && [ "$comm" = sleep ] && running=$((running + 1)); done
	for pid in "${stepd[@]}"; do
		mapfile -t maps <"/proc/$pid/maps"
		[[ ${maps[*]} != *libgputune* ]] || core=1
	done
	for file in "$step"/user/*/cpuset.cpus; do read -r cpus <"$file" && [ -n "$cpus" ] && bound=$((bound + 1)); done
}
came() {
	case $moment in
	cgroup) true ;;
	tasks) [ ${#tasks[@]} -ge 4 ] ;;
	core) [ $core = 1 ] ;;
	bound) [ $bound = 4 ] ;;
	esac
}

srun -Q -K -n4 --gpus-per-task=1 "$@" sleep 300 </dev/null >/tmp/killed.out 2>&1 & srun=$!
began=${EPOCHREALTIME/./}
until step=$(echo $scope/*/step_0) && [ -n "$step" ]; do
	[ "$(since $began)" -lt 60000 ] || { echo "there is no step: $(</tmp/killed.out)"; exit 1; }
	pause 0.02
done
until look; came; do
	[ "$(since $began)" -lt 60000 ] || { echo "waited in vain until $moment: tasks ${#tasks[@]}, running $running, core $core, bound $bound"; exit 1; }
	pause 0.02
done
pause $delay
look
case $victim in
tasks) echo 1 >"$step/user/cgroup.kill" ;;
stepd) kill -9 "${stepd[@]}" $srun ;;
all) echo 1 >"$step/cgroup.kill"; kill -9 $srun ;;
esac
printf 'tasks=%s\trunning=%s\tcore=%s\tbound=%s' ${#tasks[@]} $running $core $bound

# Tasks that were killed end the step, and srun, without further ado.
await_srun() {
	local began=${EPOCHREALTIME/./}
	while kill -0 $srun; do
		[ "$(since $began)" -lt 60000 ] || { kill -9 $srun; srun_ms=never; return; }
		pause 0.1
	done
	srun_ms=$(since $began)
}
if [ $victim = tasks ] && [ ${#tasks[@]} -gt 0 ]; then await_srun; fi
# So do those that are not yet the user's program, when slurmstepd has gone.
orphans=0
if [ $victim = stepd ]; then
	for i in {1..100}; do
		look
		orphans=$((${#tasks[@]} - running))
		[ $orphans -gt 0 ] || break
		pause 0.1
	done
	echo 1 >"$step/cgroup.kill"
fi
printf '\torphans=%s' $orphans

began=${EPOCHREALTIME/./} idle=no
scancel $(squeue -h -o %i)
while [ "$(since $began)" -lt 60000 ]; do
	[ -z "$(squeue -h)" ] && [ "$(sinfo -h -o '%T %E')" = "idle none" ] && { idle=yes; break; }
	pause 0.5
done
printf '\tidle=%s\tidle_ms=%s\tnode=%s' $idle "$(since $began)" "$(sinfo -h -o '%T %E')"
[ -n "$srun_ms" ] || await_srun
wait $srun
printf '\tsrun_ms=%s\tsrun_status=%s' $srun_ms $?

# slurmstepd removes the cgroups when it ends, a moment after the job has. Where it was killed nobody does.
began=${EPOCHREALTIME/./}
inside() { cat $scope/*/step_0/cgroup.events | grep -c 'populated 1'; }
while left=($scope/*/step_0) && [ ${#left[@]} -gt 0 ]; do
	alive=$(inside)
	[ "$alive" != 0 ] || [ $victim = tasks ] || break
	[ "$(since $began)" -lt 20000 ] || break
	pause 0.2
done
printf '\tleft=%s\tinside=' ${#left[@]}
[ ${#left[@]} = 0 ] || for pid in $(find "${left[@]}" -name cgroup.procs -exec cat {} +); do
	printf '%s (%s, %s) ' $pid "$(cat /proc/$pid/comm)" "$(cat /proc/$pid/wchan)"
done
echo
for job in $scope/*/; do
	[ "$job" = $scope/system/ ] || find "$job" -depth -type d -exec rmdir {} +
done
exit 0
`

// A step that is killed hard while it is launched, at any point of that: the node
// is ready for the next step, and no process is left. The same is asked of one
// Slurm without the option first. What Slurm leaves in both cases, and may, are
// empty cgroups where its slurmstepd was killed.
func testKilledSteps(t *testing.T, m *machine) {
	m.put(t, "/tmp/kill", killScript)
	rng := rand.New(rand.NewPCG(9, 9))
	p := policy{mem: "bind"}
	type kill struct{ victim, moment, option string }
	all := []kill{
		{"tasks", "cgroup", p.option()},
		{"tasks", "tasks", p.option()},
		{"tasks", "core", p.option()},
		{"tasks", "bound", p.option()},
		{"stepd", "tasks", p.option()},
		{"stepd", "core", p.option()},
		{"stepd", "bound", p.option()},
		{"all", "cgroup", p.option()},
		{"all", "core", p.option()},
		{"all", "bound", p.option()},
	}
	// Every other one, in turn, but for a full run; what Slurm does without the option once.
	var kills []kill
	if m.suite == numavm.Trixie {
		kills = []kill{{"tasks", "tasks", ""}, {"stepd", "tasks", ""}, {"all", "tasks", ""}}
	}
	turn := slices.Index(numavm.Suites(), m.suite)
	for i, kill := range all {
		if i%2 == turn%2 || full() {
			kills = append(kills, kill)
		}
	}
	binding := 0
	for _, kill := range kills {
		arguments := fmt.Sprintf("%s %s %.2f %s", kill.victim, kill.moment, 0.25*rng.Float64(), kill.option)
		result := m.tryFor(t, killTimeout, "/tmp/kill "+arguments)
		f := fields(strings.TrimSpace(result.Output))
		ok := result.Code == 0 && f["srun_ms"] != "never" && f["srun_status"] != "0" && f["orphans"] == "0" && f["idle"] == "yes" && f["inside"] == "" &&
			(f["left"] == "0" || kill.victim != "tasks")
		t.Logf("%-65s tasks %s, running %s, core %s, bound %s; srun ended after %s ms, the node was idle after %s ms",
			arguments, f["tasks"], f["running"], f["core"], f["bound"], f["srun_ms"], f["idle_ms"])
		if !ok {
			t.Fatalf("%s: status %d, %q\n%s", arguments, result.Code, result.Output, m.must(t, "tail -c 4000 /tmp/kill.log"))
		}
		if f["core"] == "1" && f["running"] == "0" {
			binding++
		}
	}
	if binding == 0 {
		t.Errorf("none of %d steps was killed while gputune was at work", len(kills))
	}
	m.check(t, m.step(t, "srun -Q -n4 --gpus-per-task=1 "+p.option()+" look-at-task 8"), p)
}
