//go:build vm

package vm

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gputune/internal/idset"
)

// Two jobs on the node at the same time, both bound: each stays in what it was
// granted.
func testTwoJobs(t *testing.T, m *machine) {
	p := policy{mem: "bind", cpus: "exclusive"}
	srun := "srun -Q -n2 -c2 --gpus=2 --gpus-per-task=1 " + p.option()
	a := m.hold(t, "a", srun, 2)
	b := m.hold(t, "b", srun, 2)
	var taken idset.Set
	var gpus []string
	for _, h := range []*held{a, b} {
		o := h.look(t)
		m.check(t, o, p)
		if granted := o.tasks[0].granted(); !granted.And(taken).Empty() {
			t.Errorf("%s was granted to both jobs", granted.And(taken))
		}
		for _, k := range o.tasks {
			if both := k.cpus.And(taken); !both.Empty() {
				t.Errorf("CPUs %s are of two tasks", both)
			}
			taken = taken.Or(k.cpus)
			gpus = append(gpus, k.gpus...)
		}
	}
	slices.Sort(gpus)
	if len(slices.Compact(gpus)) != 4 {
		t.Errorf("two jobs with two GPUs each have %v", gpus)
	}
	a.release(t)
	b.release(t)
	m.waitIdle(t)
	if states := m.must(t, "scontrol -o show job | tail -n 2 | grep -o 'JobState=[A-Z]* \\|ExitCode=[0-9:]*'"); strings.Count(states, "JobState=COMPLETED") != 2 || strings.Count(states, "ExitCode=0:0") != 2 {
		t.Errorf("the jobs ended as %s", states)
	}
}

// changing is what differs between any two jobs: ids, points in time, durations,
// priorities, process ids.
var changing = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d|\b\d\d:\d\d:\d\d\b|\b\d+:\d\d\b|\b\d{9,}\b|\b0\.\d{6,}\b|\bs[0-9A-Z]{13}\b|Pid=\S+|AllocNode:Sid=\S+`)

// Slurm says the same about a job with the option as about one without.
func testJobLooksTheSame(t *testing.T, m *machine) {
	if os.Getenv("GPUTUNE_VM_FULL") == "" {
		t.Skip("what Slurm shows of a job is not compared reliably yet; set GPUTUNE_VM_FULL to try")
	}
	m.put(t, "/tmp/job", "#!/bin/bash\nsrun -n2 --gpus-per-task=1 sh -c 'until [ -e /tmp/described ]; do sleep 0.3; done'\n")
	describe := func(option string) string {
		t.Helper()
		job := strings.TrimSpace(m.must(t, "rm -f /tmp/described; sbatch --parsable -n2 --gpus=2 -o /dev/null "+option+" /tmp/job"))
		output := m.must(t, fmt.Sprintf(`for i in $(seq 200); do [ -n "$(squeue -h -s -j %[1]s | grep '%[1]s\.0')" ] && break; sleep 0.1; done
squeue -j %[1]s -o %%all | tr '|' '\n'; squeue -s -j %[1]s; scontrol -d show job %[1]s; scontrol show step %[1]s; touch /tmp/described
for i in $(seq 200); do [ -z "$(squeue -h)" ] && break; sleep 0.1; done; scontrol -d show job %[1]s`, job))
		output = strings.ReplaceAll(output, " "+option+" ", " ") // in the command line
		return changing.ReplaceAllString(regexp.MustCompile(`\b`+job+`\b`).ReplaceAllString(output, "JOB"), "*")
	}
	without, with := describe("-Q"), describe("--gpu-numa-bind=mem=bind")
	if !strings.Contains(without, "TresPerJob=gres") && !strings.Contains(without, "TresPerJob=gpu") && !strings.Contains(without, "gres/gpu") {
		t.Fatalf("this is not what a job with GPUs looks like:\n%s", without)
	}
	a, b := strings.Split(without, "\n"), strings.Split(with, "\n")
	if len(a) != len(b) {
		t.Fatalf("%d lines without the option and %d with it", len(a), len(b))
	}
	for i := range a {
		if strings.Join(strings.Fields(a[i]), " ") != strings.Join(strings.Fields(b[i]), " ") {
			t.Errorf("without the option: %q, with it: %q", a[i], b[i])
		}
	}
	m.waitIdle(t)
}

// job is one of fifty: a command that returns when the job has ended.
type job struct {
	command string
	status  int // that it ends with; -1 for a job that is killed
}

// mixedJobs makes jobs of all kinds, with the option in some, the same each time.
func mixedJobs(count int) []job {
	rng := rand.New(rand.NewPCG(50, 1))
	options := []string{
		"", "--gpu-numa-bind", "--gpu-numa-bind=mem=bind", "--gpu-numa-bind=cpus=exclusive,mem=bind", "--gpu-numa-bind=enforce=affinity,quiet",
		"", "--gpu-numa-bind=cpus=socket,mem=interleave", "--gpu-numa-bind=verbose,smt=one,mem=none",
	}
	option := func() string { return options[rng.IntN(len(options))] }
	var jobs []job
	for round := 0; len(jobs) < count; round++ {
		kinds := []job{
			{"srun -Q -n1 --gpus=1 " + option() + " true", 0},
			{"srun -Q -n2 --gpus-per-task=1 " + option() + " true", 0},
			{"batch -n2 --gpus=2 'srun " + option() + " -n2 --gpus-per-task=1 true && srun -n1 true'", 0},
			{"srun -Q -n1 --gpus=1 " + option() + " sh -c 'exit 3'", 3},
			{"batch -n1 --gpus=1 " + option() + " 'srun -n1 --gpu-numa-bind=off true && exit 5'", 5},
			{"killed -n1 --gpus=1 'srun " + option() + " -n1 sleep 60'", -1},
			{"srun -Q -n4 --gpus-per-task=1 " + option() + " true", 0},
			{"batch -n2 --gpus=2 'srun --overlap -n1 --gpus=2 " + option() + " sleep 1 & srun --overlap -n2 --gpus=2 " + option() + " true; wait'", 0},
			{"srun -Q -n1 " + option() + " true", 0},
			{"srun -Q -n1 --gpus=2 -c2 " + option() + " true", 0},
		}
		if round == 0 { // Slurm keeps the cores of such a job for half a minute
			kinds = append(kinds, job{"cancelled -n1 --gpus=1 'srun " + option() + " -n1 sleep 60'", -1}, job{"lost -n1 --gpus=1 " + option(), -1})
		}
		jobs = append(kinds, jobs...) // these first, so that others pass by them
	}
	return jobs[:count]
}

// jobsScript runs a job for each line of standard input, some more at once than
// the node has cores, and prints how each ended.
const jobsScript = `#!/bin/bash
batch() { sbatch -Q -W -o /dev/null "${@:1:$#-1}" --wrap "${@: -1}"; }
submit() { sbatch --parsable -o /dev/null "${@:1:$#-1}" --wrap "${@: -1}"; }
there() { [ -n "$(squeue -h -j "$1" 2>/dev/null)" ]; }
killed() { # its steps, at some point of their life
	local id; id=$(submit "$@") || return
	sleep $((RANDOM % 3)).$((RANDOM % 10))
	while there "$id"; do scancel --signal=KILL "$id"; sleep 0.5; done
	return 137
}
cancelled() { # as a whole, as users do
	local id; id=$(submit "$@") || return
	sleep 2.$((RANDOM % 10))
	scancel "$id"
	while there "$id"; do sleep 1; done
	return 137
}
lost() { # its srun is killed, once the step runs
	srun -Q "$@" sleep 60 & local srun=$!
	sleep 3.$((RANDOM % 10))
	kill -9 $srun; wait $srun
}
number=0
while read -r line; do
	while [ "$(jobs -rp | wc -l)" -ge 6 ]; do wait -n; done
	( eval "$line" </dev/null >/tmp/job.$number.out 2>&1; echo "job $number ended $?" ) 2>/dev/null &
	number=$((number + 1))
done
wait
`

// Fifty jobs of all kinds, several at a time, leave nothing behind.
func testFiftyJobs(t *testing.T, m *machine) {
	jobs := mixedJobs(50)
	var lines strings.Builder
	for _, j := range jobs {
		fmt.Fprintln(&lines, j.command)
	}
	m.put(t, "/tmp/jobs", jobsScript)
	m.put(t, "/tmp/jobs.list", lines.String())
	result := m.tryFor(t, 6*time.Minute, "/tmp/jobs </tmp/jobs.list")
	for i, j := range jobs {
		match := regexp.MustCompile(fmt.Sprintf(`(?m)^job %d ended (\d+)$`, i)).FindStringSubmatch(result.Output)
		switch {
		case match == nil:
			t.Errorf("job %d did not end: %s", i, j.command)
		case j.status < 0 && match[1] == "0", j.status >= 0 && match[1] != fmt.Sprint(j.status):
			t.Errorf("job %d ended with %s, want %d: %s\n%s", i, match[1], j.status, j.command, m.must(t, fmt.Sprintf("cat /tmp/job.%d.out", i)))
		}
	}
	m.checkClean(t)
	m.must(t, "! grep -E 'error:.*gputune|fault in gputune' /var/log/slurm/slurmd.log")
	with := 0
	for _, j := range jobs {
		if strings.Contains(j.command, "gpu-numa-bind") {
			with++
		}
	}
	t.Logf("%d jobs, %d of them with the option, in %.0f s", len(jobs), with, result.Took.Seconds())
	if started := strings.TrimSpace(m.must(t, "grep -c 'launch task' /var/log/slurm/slurmd.log")); started == "0" {
		t.Error("slurmd's log shows no step")
	}
}
