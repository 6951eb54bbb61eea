//go:build vm

package vm

import (
	"fmt"
	"math/rand/v2"
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

// changing is what differs between any two jobs: points in time, durations,
// priorities, process ids, the id by which 26.05 calls a job as well, and which of
// the two schedulers was faster.
var changing = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d|\b\d\d:\d\d:\d\d\b|\b\d+:\d\d\b|\b\d{9,}\b|\b0\.\d{6,}\b|\bs[0-9A-Z]{13}\b|Pid=\S+|AllocNode:Sid=\S+|Scheduler=\S+`)

// describeScript submits a job with a time limit, which Slurm otherwise fills in
// some time after the job has begun, prints what Slurm says about it while its step
// runs and after its end; the first line is its id.
const describeScript = `#!/bin/bash
rm -f /tmp/described /tmp/runs.*
job=$(sbatch --parsable -t 10 -n2 --gpus=2 -o /dev/null "$@" /tmp/job) || exit
echo $job
for i in {1..200}; do # squeue is dear
	[ -e /tmp/runs.0 ] && [ -e /tmp/runs.1 ] && break
	sleep 0.1
done
squeue -j $job -o %all | tr '|' '\n'
squeue -s -j $job
scontrol -d show job $job
scontrol show step $job
touch /tmp/described
for i in {1..60}; do
	[ -z "$(squeue -h)" ] && break
	sleep 0.5
done
scontrol -d show job $job
`

// Slurm says the same about a job with the option as about one without.
func testJobLooksTheSame(t *testing.T, m *machine) {
	m.put(t, "/tmp/job", "#!/bin/bash\nsrun -n2 --gpus-per-task=1 sh -c 'touch /tmp/runs.$SLURM_PROCID; until [ -e /tmp/described ]; do sleep 0.5; done'\n")
	m.put(t, "/tmp/describe", describeScript)
	describe := func(option string) []string {
		t.Helper()
		job, output, _ := strings.Cut(m.must(t, onOneCPU+"/tmp/describe "+option), "\n")
		if option != "" { // since 25.05 the command line is shown
			output = strings.ReplaceAll(output, " "+option+" ", " ")
		}
		for _, want := range []string{`JobState=RUNNING`, `JobState=COMPLETED`, `TresPerJob=gres[/:]gpu:2`, `StepId=` + job + `\.0 `, `TresPerTask=gres[/:]gpu[=:]1`} {
			if !regexp.MustCompile(`\b` + want).MatchString(output) {
				t.Fatalf("no %s: this is not what a job with GPUs looks like:\n%s", want, output)
			}
		}
		output = regexp.MustCompile(`\b`+job+`\b`).ReplaceAllString(output, "JOB")
		lines := strings.Split(changing.ReplaceAllString(output, "*"), "\n")
		for i, line := range lines { // squeue's columns are as wide as their content
			lines[i] = strings.Join(strings.Fields(line), " ")
		}
		return lines
	}
	without, with := describe(""), describe("--gpu-numa-bind=mem=bind")
	for i := range min(len(without), len(with)) {
		if without[i] != with[i] {
			t.Errorf("without the option: %q, with it: %q", without[i], with[i])
		}
	}
	if len(without) != len(with) {
		t.Errorf("%d lines without the option, %d with it", len(without), len(with))
	}
	m.waitIdle(t)
}

// kindsOfJobs is how many mixedJobs has, of which three are there once.
const kindsOfJobs = 13

// job is one of mixedJobs.
type job struct {
	command string // of jobsScript
	status  int    // that the job ends with; -1 for one that is killed
}

// mixedJobs makes jobs of all kinds, with the option in some, the same each time.
func mixedJobs(count int) []job {
	rng := rand.New(rand.NewPCG(50, 1))
	options := []string{
		"", "--gpu-numa-bind", "--gpu-numa-bind=mem=bind", "--gpu-numa-bind=cpus=exclusive,mem=bind", "--gpu-numa-bind=enforce=affinity,quiet",
		"", "--gpu-numa-bind=cpus=socket,mem=interleave", "--gpu-numa-bind=verbose,smt=one,mem=none",
	}
	option := func() string { return options[rng.IntN(len(options))] }
	// The whole node, and two whose cores Slurm keeps for half a minute: these first, so
	// that others pass by them.
	jobs := []job{
		{"srun -Q -n4 --gpus-per-task=1 " + option() + " true", 0},
		{"cancelled -n1 --gpus=1 'srun " + option() + " -n1 sleep 60'", -1},
		{"lost -n1 --gpus=1 " + option(), -1},
	}
	for len(jobs) < count {
		jobs = append(jobs, []job{
			{"srun -Q -n1 --gpus=1 " + option() + " true", 0},
			{"srun -Q -n2 --gpus-per-task=1 " + option() + " true", 0},
			{"batch -n2 --gpus=2 'srun " + option() + " -n2 --gpus-per-task=1 true'", 0},
			{"srun -Q -n1 --gpus=1 " + option() + " sh -c 'exit 3'", 3},
			{"batch -n1 --gpus=1 " + option() + " 'exit 5'", 5},
			{"killed -n1 --gpus=1 'srun " + option() + " -n1 sleep 60'", -1},
			{"batch -n1 --gpus=1 " + option() + " true", 0},
			{"batch -n2 --gpus=2 " + option() + " 'srun --overlap -n1 --gpus=2 " + option() + " sleep 1 & srun --overlap -n2 --gpus=2 true; wait'", 0},
			{"srun -Q -n1 " + option() + " true", 0},
			{"srun -Q -n1 --gpus=2 -c2 " + option() + " true", 0},
		}...)
	}
	return jobs[:count]
}

// jobsScript starts a job for each line of standard input, and returns when all
// have ended. Of each that srun starts it prints how that ended, of the others
// their ids.
const jobsScript = `#!/bin/bash
batch() { sbatch --parsable -o /dev/null "${@:1:$#-1}" --wrap "${@: -1}"; }
# Each squeue costs as much as a step's task: the job itself says how far it is.
told() { batch "${@:1:$#-1}" "touch /tmp/started.\$SLURM_JOB_ID; ${*: -1}; status=\$?; touch /tmp/ended.\$SLURM_JOB_ID; exit \$status"; }
await() { until [ -e "$1" ]; do sleep 0.5; done; }
killed() { # its steps, at some point of their life
	local id; id=$(told "$@") || return
	{
		await /tmp/started.$id
		sleep $((RANDOM % 2)).$((RANDOM % 10))
		until [ -e /tmp/ended.$id ] || ! scancel --signal=KILL $id; do sleep 1; done # the job may die with its step
	} >/dev/null 2>&1 &
	echo $id
}
cancelled() { # as a whole, as users do
	local id; id=$(told "$@") || return
	{
		await /tmp/started.$id
		sleep 1.$((RANDOM % 10))
		scancel $id
	} >/dev/null 2>&1 &
	echo $id
}
lost() { # its srun is killed, once the step runs
	srun -Q "$@" sleep 60 & local srun=$!
	sleep 4.$((RANDOM % 10))
	kill -9 $srun; wait $srun
}
number=0
while read -r line; do
	case $line in
	srun* | lost*)
		while [ "$(jobs -rp | wc -l)" -ge 8 ]; do wait -n; done
		( eval "$line" </dev/null >/tmp/job.$number.out 2>&1; echo "job $number ended $?" ) 2>/dev/null & ;;
	*) echo "job $number is $(eval "$line" </dev/null 2>/tmp/job.$number.out)" ;;
	esac
	number=$((number + 1))
done
wait
while [ -n "$(squeue -h)" ]; do sleep 2; done
`

// Jobs of all kinds, several at a time, leave nothing behind; nor do all jobs of this
// machine, fifty and more.
func testFiftyJobs(t *testing.T, m *machine) {
	before := m.lastJob(t)
	jobs := mixedJobs(max(kindsOfJobs, firstJob+50-1-before))
	var lines strings.Builder
	with := 0
	for _, j := range jobs {
		fmt.Fprintln(&lines, j.command)
		if strings.Contains(j.command, "gpu-numa-bind") {
			with++
		}
	}
	m.put(t, "/tmp/jobs", jobsScript)
	m.put(t, "/tmp/jobs.list", lines.String())
	result := m.tryFor(t, 12*time.Minute, onOneCPU+"/tmp/jobs </tmp/jobs.list")
	exits := map[string]string{} // status and signal, by Slurm's id
	for _, match := range regexp.MustCompile(`(?m)^JobId=(\d+) .* ExitCode=(\d+:\d+) `).FindAllStringSubmatch(m.must(t, "scontrol -o show job"), -1) {
		exits[match[1]] = strings.TrimSuffix(match[2], ":0")
	}
	ended := map[string]string{}
	for _, match := range regexp.MustCompile(`(?m)^job (\d+) (is|ended) (\d+)$`).FindAllStringSubmatch(result.Output, -1) {
		ended[match[1]] = match[3]
		if match[2] == "is" {
			ended[match[1]] = exits[match[3]]
		}
	}
	for i, j := range jobs {
		if status := ended[fmt.Sprint(i)]; status == "" || j.status < 0 && status == "0" || j.status >= 0 && status != fmt.Sprint(j.status) {
			t.Errorf("job %d ended with %q, want %d: %s\n%s", i, status, j.status, j.command, m.must(t, fmt.Sprintf("cat /tmp/job.%d.out", i)))
		}
	}
	m.checkClean(t)
	if started := strings.TrimSpace(m.must(t, "grep -c 'launch task' /var/log/slurm/slurmd.log || true")); started == "0" {
		t.Error("slurmd's log shows no step")
	}
	t.Logf("%d jobs, %d of them with the option, in %.0f s, after %d that other tests ran", len(jobs), with, result.Took.Seconds(), before-firstJob+1)
	if count := m.lastJob(t) - firstJob + 1; count < 50 {
		t.Errorf("%d jobs ran", count)
	}
}

// lastJob is the number of the job that Slurm began last.
func (m *machine) lastJob(t *testing.T) int {
	t.Helper()
	var next int
	text := m.must(t, "scontrol show config | sed -n 's/^NEXT_JOB_ID *= //p'")
	if _, err := fmt.Sscan(text, &next); err != nil {
		t.Fatalf("NEXT_JOB_ID %q: %v", text, err)
	}
	return next - 1
}
