//go:build vm

package vm

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// noEpilog keeps Epilogs from putting anything back, until withEpilog.
const (
	noEpilog   = "mv /usr/sbin/gputune-epilog /usr/sbin/gputune-epilog.kept && ln -s /bin/true /usr/sbin/gputune-epilog"
	withEpilog = "mv /usr/sbin/gputune-epilog.kept /usr/sbin/gputune-epilog"
)

// cgroupOf sets group to the folder of a job's cgroup, whatever its name is.
const cgroupOf = `pid=$(pgrep -f '^slurmstepd: \[%[1]s\.' | head -n 1)
group=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/$pid/cgroup | sed 's,\(slurmstepd.scope/[^/]*\)/.*,\1,')
`

// killJob kills all that a job has on the node, with its slurmstepds, at once.
func (m *machine) killJob(t *testing.T, job string) {
	t.Helper()
	m.must(t, fmt.Sprintf(cgroupOf+`[ -e $group/cgroup.kill ] && echo 1 >$group/cgroup.kill
for i in $(seq 100); do [ -e $group ] && ! grep -q 'populated 0' $group/cgroup.events || exit 0; sleep 0.1; done; exit 1`, job))
}

// nodeSettings are values of the node that "hold" sets, by key.
func (m *machine) nodeSettings(t *testing.T) map[string]string {
	t.Helper()
	irq := strings.Fields(m.must(t, `for nic in /sys/bus/pci/drivers/virtio-pci/0000:*; do
	for i in $nic/msi_irqs/*; do [ ! -e /proc/irq/${i##*/} ] || { echo ${nic##*/} ${i##*/}; exit 0; }; done
done; exit 1`))
	return map[string]string{
		"sysctl/vm.swappiness":                            "7",
		"thp/enabled":                                     "never",
		"hugepages/node1/2048kB":                          "8",
		"cpuidle/cpu1/latency":                            "100",
		fmt.Sprintf("irq/%s/%s/affinity", irq[0], irq[1]): "1",
	}
}

// ofNode and ofIRQs print those values as the kernel has them.
const (
	ofNode = `cat /proc/sys/vm/swappiness /sys/kernel/mm/transparent_hugepage/enabled /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages \
	/sys/devices/system/cpu/cpu1/power/pm_qos_resume_latency_us`
	ofIRQs = `cat /proc/irq/*/smp_affinity_list`
)

// noneHeld is that these jobs have no record, as a condition of the shell.
func noneHeld(jobs ...string) string {
	var parts []string
	for _, job := range jobs {
		parts = append(parts, "[ ! -e /var/lib/gputune/jobs/"+job+" ]")
	}
	return strings.Join(parts, " && ")
}

// What jobs hold that were killed with their slurmstepds, and whose Epilog does not
// come, is put back after the grace and not before; a job that lives keeps what it
// has. All kinds of settings, in the unit as shipped.
func testAgentRecovers(t *testing.T, m *machine) {
	m.must(t, installMPS+"; systemctl stop gputuned")
	before, node := m.gpuState(t), m.must(t, ofNode+"; "+ofIRQs)
	m.startAgent(t, agentConfig(""))
	m.must(t, noEpilog)
	mig := m.holdJob(t, "", "--gpus=1 --gpu-mig=1g.18gb:2 --gpu-power=450")
	mps := m.holdJob(t, asNobody, "--gpus=1 --gpu-mps=50 --gpu-clocks=1200")
	lives := m.holdJob(t, "", "--gpus=1 --gpu-power=500")
	const gone = "39999999" // no job of Slurm's
	var arguments []string
	for key, value := range m.nodeSettings(t) {
		arguments = append(arguments, key+"="+value)
	}
	killed := m.now(t)
	m.must(t, guestTools+"/hold "+gone+" "+strings.Join(arguments, " "))
	if changed := m.must(t, ofNode+"; "+ofIRQs); changed == node {
		t.Fatal("hold changed nothing")
	}
	for _, job := range []*batch{mig, mps} {
		m.killJob(t, job.id)
	}
	m.waitFor(t, "what they have left to be put back", noneHeld(mig.id, mps.id, gone))
	for _, job := range []string{mig.id, mps.id, gone} {
		// It says so when the process that does it has ended.
		m.waitFor(t, "the agent to say so", "journalctl -q --no-pager -o cat -u gputuned GPUTUNE_ACTION=restored GPUTUNE_JOB="+job+" | grep .")
	}
	for job, wants := range map[string][]string{mig.id: {"mig", "power.limit"}, mps.id: {"mps", "compute.mode", "clocks.sm"}, gone: {"sysctl/vm.swappiness", "thp/enabled", "hugepages/node1/2048kB", "cpuidle/cpu1/latency"}} {
		for _, want := range wants {
			found := m.journal(t, "-u gputuned GPUTUNE_JOB="+job+" GPUTUNE_SETTING="+want)
			if len(found) != 1 || found[0].field("GPUTUNE_ACTION") != "restored" || found[0].field("_SYSTEMD_UNIT") != "gputuned.service" ||
				(found[0].field("GPUTUNE_GPU") == "") != (job == gone) {
				t.Errorf("job %s: %s: %v", job, want, found)
				continue
			}
			if after := found[0].when(t).Sub(killed); after < grace {
				t.Errorf("job %s: %s was put back %v after it was killed, which is before the grace", job, want, after)
			}
		}
	}
	for _, job := range []string{mig.id, mps.id, gone} {
		if failed := m.journal(t, "-u gputuned GPUTUNE_JOB="+job+" GPUTUNE_ACTION=failed GPUTUNE_ACTION=drifted"); len(failed) > 0 {
			t.Errorf("job %s: %v", job, failed)
		}
	}
	if now := m.must(t, ofNode+"; "+ofIRQs); now != node {
		t.Errorf("the node has\n%s, had\n%s", now, node)
	}
	if touched := m.journal(t, "-u gputuned GPUTUNE_JOB="+lives.id); len(touched) > 0 {
		t.Errorf("the agent did something about job %s, which lives: %v", lives.id, touched)
	}
	if power := m.must(t, "grep -c ' 500000$' "+gpuState); power != "1\n" {
		t.Errorf("job %s lives, and the GPUs are\n%s", lives.id, m.gpuState(t))
	}
	left := m.must(t, "systemctl list-units --all --no-legend 'gputune-mps*'; pgrep -a nvidia-cuda-mps || true")
	if strings.TrimSpace(left) != "" {
		t.Errorf("left of job %s: %s", mps.id, left)
	}
	m.must(t, withEpilog+"; scancel "+mig.id+" "+mps.id)
	lives.release(t)
	m.checkAsBefore(t, before)
	// Slurm leaves the cgroups of slurmstepds that were killed.
	m.must(t, "find /sys/fs/cgroup/system.slice/node1_slurmstepd.scope -depth -type d -path '*/job_*' -exec rmdir {} + 2>/dev/null; true")
	m.must(t, "systemctl stop gputuned")
	m.forgetLog(t)
}

// killsScript starts jobs, each of which says whether its GPU is as it asked for
// when it ends, and kills the agent meanwhile. Its arguments are for how long the
// agent lives each time.
const killsScript = `#!/bin/bash
rm -rf /tmp/kills; mkdir /tmp/kills
cat >/tmp/kills/job <<'JOB'
#!/bin/bash
sleep $1
uuid=$(awk -v minor=$SLURM_JOB_GPUS '$1 == minor {print $3}' /run/numavm/gpus)
echo $SLURM_JOB_ID $(grep -c '"state": *"applied"' /run/gputune/jobs/$SLURM_JOB_ID.json) $(grep "^gpu/$uuid/power_limit " ` + gpuState + `) >/tmp/kills/saw.$SLURM_JOB_ID
JOB
submit() { sbatch --parsable --no-requeue -n1 --gpus=1 --gpu-power=500 -D / -o /dev/null /tmp/kills/job $1; }
for i in 0 1 2 3 4 0 1 2 3 4; do submit $i.$((RANDOM % 10)) >>/tmp/kills/jobs; done
kills=0
for life in "$@"; do
	sleep $life
	pid=$(systemctl show -p MainPID --value gputuned)
	[ "$pid" != 0 ] && kill -9 $pid && kills=$((kills + 1))
	until next=$(systemctl show -p MainPID --value gputuned); [ "$next" != 0 ] && [ "$next" != "$pid" ]; do sleep 0.3; done
done
echo $kills
`

// The agent is killed ten times, in a full run twenty, while jobs begin, run and end,
// of which some have no Epilog. Nothing stays, and nothing is put back under a job
// that runs.
func testAgentKilled(t *testing.T, m *machine) {
	before := m.gpuState(t)
	m.must(t, withDropIn("RestartSec=100ms"))
	m.startAgent(t, agentConfig(""))
	m.must(t, `mv /usr/sbin/gputune-epilog /usr/sbin/gputune-epilog.kept
printf '#!/bin/sh\n[ $((SLURM_JOB_ID %% 3)) = 0 ] && exit 0\nexec /usr/sbin/gputune-epilog.kept\n' >/usr/sbin/gputune-epilog; chmod 755 /usr/sbin/gputune-epilog`)
	rng := rand.New(rand.NewPCG(10, 1))
	var lives strings.Builder
	times := 10
	if full() {
		times = 20
	}
	for i := range times {
		life := rng.Float64() // less than the grace
		if i%5 == 4 {
			life += grace.Seconds() // it puts back, and may die in it
		}
		fmt.Fprintf(&lives, " %.1f", life)
	}
	m.put(t, "/tmp/kill-agent", killsScript)
	since := m.now(t).Unix()
	kills := strings.TrimSpace(m.must(t, "/tmp/kill-agent"+lives.String()))
	m.waitFor(t, "the jobs to end", `[ -z "$(squeue -h)" ]`)
	m.waitFor(t, "all to be put back", `[ -z "$(ls -A /var/lib/gputune/jobs)" ]`)
	m.must(t, withEpilog+"; systemctl stop gputuned; "+withoutDropIn)
	m.checkAsBefore(t, before)
	saw := m.must(t, "cat /tmp/kills/saw.*")
	// On a busy host a Prolog's time can be over: then its report says so, and the job
	// has nothing that could be taken from it.
	applied := regexp.MustCompile(`(?m)^\d+ 1 .*/power_limit (\d+)$`).FindAllStringSubmatch(saw, -1)
	if strings.Count(saw, "\n") != 10 || len(applied) < 5 || kills != strconv.Itoa(times) {
		t.Errorf("the agent was killed %s times, jobs saw\n%s", kills, saw)
	}
	for _, job := range applied {
		if job[1] != "500000" {
			t.Errorf("%s: its setting was taken from it\n%s", job[0], m.must(t, "journalctl -q --no-pager -o short-precise -t gputune-prolog -t gputune-epilog -t gputuned"))
		}
	}
	restored := len(m.journal(t, fmt.Sprintf("-u gputuned --since=@%d GPUTUNE_SETTING=power.limit GPUTUNE_ACTION=restored", since)))
	t.Logf("the agent was killed %s times beside %d jobs, and put back what %d of them had left", kills, 10, restored)
	m.forgetLog(t)
}
