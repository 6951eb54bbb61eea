//go:build vm

package vm

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Variables of slurm-up and testroot-up: the GPU of node 1 is the first, and the one
// of no known node the last. Of GPUs without Cores= a job gets the first before any
// with them.
const (
	gpuOfNode1First = "GPU_MINORS='3 1 2 0'"
	gpuOnNode1      = gpuOfNode1First + " GRES_CORES='1 2'"
)

// nodeSite is the site's configuration while node settings are tested. The deadlines
// are for a host that gives a machine a tenth of a CPU.
const nodeSite = `[paths]
machine = "/run/testroot"
[job]
prolog_deadline = "5m"
epilog_deadline = "5m"
[drop_caches]
sync_deadline = "1m"
[hugepages]
max_percent = 100
[thp]
shared = "allow"
[profile.whole]
thp = "madvise"
thp_defrag = "defer"
khugepaged_defrag = "off"
governor = "performance"
idle_latency = 20
irqs = "local"
[profile.whole.sysctl]
"kernel.numa_balancing" = 0
"net.ipv4.ip_local_port_range" = "1024 65000"
"vm.swappiness" = 1
"vm.dirty_bytes" = 104857600
"vm.dirty_background_ratio" = 3
"vm.zone_reclaim_mode" = 1
`

// setByWhole is what the profile sets on every machine, but for interrupts.
func (m *machine) setByWhole() values {
	set := values{
		sysTHP + "enabled": "always [madvise] never\n", sysTHP + "defrag": "always [defer] defer+madvise madvise never\n", sysTHP + "khugepaged/defrag": "0\n",
		"/proc/sys/kernel/numa_balancing": "0\n", "/proc/sys/net/ipv4/ip_local_port_range": "1024\t65000\n",
		sysVM + "swappiness": "1\n", sysVM + "dirty_ratio": "0\n", sysVM + "dirty_bytes": "104857600\n", sysVM + "dirty_background_ratio": "3\n",
		sysVM + "zone_reclaim_mode": "1\n",
	}
	for _, n := range m.layout.nodes {
		for cpu := range n.cpus.All() {
			set[fmt.Sprintf("%s%d/power/pm_qos_resume_latency_us", sysCPU, cpu)] = "20\n"
		}
	}
	return set
}

// nodeSite makes the configuration nodeSite, until the function that it returns is
// called.
func (m *machine) nodeSite(t *testing.T) (before func()) {
	t.Helper()
	const file = "/etc/gputune/gputune.toml"
	m.must(t, "cp "+file+" /var/tmp/gputune.toml && cat >"+file+" <<'END'\n"+nodeSite+"END")
	return func() { m.must(t, "mv /var/tmp/gputune.toml "+file) }
}

// What slurmd gives the Prolog of a job, for who runs it again, and what that writes:
// slurmd logs it only where the Prolog fails.
const (
	prologEnvironment = "/var/tmp/prolog.environment"
	prologOutput      = "/var/tmp/prolog.output"
	noteProlog        = "mv /usr/sbin/gputune-prolog /usr/sbin/gputune-prolog.real && printf '#!/bin/sh\ncat /proc/self/environ >" + prologEnvironment +
		"\nexec /usr/sbin/gputune-prolog.real 2>" + prologOutput + "\n' >/usr/sbin/gputune-prolog && chmod 755 /usr/sbin/gputune-prolog"
	noNoteProlog = "mv /usr/sbin/gputune-prolog.real /usr/sbin/gputune-prolog"
)

// Programs that change the same, by their names; the first prints their pids.
const (
	startOthers = "for name in irqbalance tuned; do cp /bin/sleep /var/tmp/$name; setsid /var/tmp/$name 3600 </dev/null >/dev/null 2>&1 & echo $name $!; done"
	endOthers   = "for pid in %s; do kill $pid; done"
)

// wholeNode are options of a job that has all of the node but GPUs, of which it has
// that of node 1. With --exclusive it would have all of them.
const wholeNode = "-c8 --gpus=1 "

// nodeReport is what the tests read of a job's report.
type nodeReport struct {
	Options []struct {
		Option  string
		State   string
		Dropped *struct {
			Nodes []struct{ Node, MiB int }
		}
		Skipped   []struct{ Key string }
		Unmovable []struct {
			PCI  string
			IRQs []int
		}
	}
}

// A job that has the node for itself gets hugepages, interrupts and CPUs of its
// GPU's node, sysctls and an empty page cache; and all that can be is afterwards
// what it was.
func testSettingsOfNode(t *testing.T, m *machine) {
	defer m.nodeSite(t)()
	pids := map[string]string{}
	for line := range strings.Lines(m.must(t, noteProlog+" && "+startOthers)) {
		name, pid, _ := strings.Cut(strings.TrimSpace(line), " ")
		pids[name] = pid
	}
	defer func() {
		m.must(t, noNoteProlog+"; "+fmt.Sprintf(endOthers, strings.Join(slices.Collect(maps.Values(pids)), " ")))
	}()
	before := m.nodeValues(t)
	gpu := m.gpus[0]
	if n := m.layout.local[gpu]; !n.Equal(mustSet(t, "1")) {
		t.Fatalf("the first GPU, %s, is on node %s", gpu, n)
	}
	// A file that is larger than a node's memory.
	m.must(t, "sync; echo 3 >/proc/sys/vm/drop_caches; truncate -s 1G /var/tmp/file && cat /var/tmp/file >/dev/null")
	job := m.holdJob(t, "", wholeNode+"--node-profile=whole --hugepages=2M:64 --drop-caches")
	now := m.nodeValues(t)

	set := m.setByWhole()
	set[hugepagesFile(1)] = "64\n"
	var unmovable []string
	var effective []int // of interrupts that the card's traffic causes
	network := ""
	for _, d := range m.devices(t) {
		if d.pci != gpu && (d.name == "" || d.node != 1) {
			continue
		}
		managed := d.managed()
		for irq, name := range d.irqs {
			if !managed.Has(irq) {
				set[affinityFile(irq)] = m.layout.nodes[1].cpus.String() + "\n"
			}
			if strings.Contains(name, "put.") {
				effective = append(effective, irq)
			}
		}
		if !managed.Empty() {
			unmovable = append(unmovable, d.pci+" "+managed.String())
		}
		network += d.name
	}
	if len(unmovable) != 1 || len(effective) < 2 {
		t.Fatalf("unmovable interrupts %v, interrupts of a card %v", unmovable, effective)
	}
	if d := now.differ(before.with(set)); d != "" {
		t.Errorf("while the job runs:\n%s", d)
	}
	// Where an interrupt really goes changes with its next occurrence.
	script := fmt.Sprintf("ip link set %[1]s up; ip addr add 10.0.2.15/24 dev %[1]s; for i in 1 2 3; do echo >/dev/udp/10.0.2.2/9; sleep 0.2; done; ip addr flush dev %[1]s; ip link set %[1]s down\n", network)
	for _, irq := range effective {
		script += fmt.Sprintf("cat /proc/irq/%d/effective_affinity_list\n", irq)
	}
	for line := range strings.Lines(m.must(t, script)) {
		if is := strings.TrimSpace(line); !mustSet(t, is).SubsetOf(m.layout.nodes[1].cpus) {
			t.Errorf("one of the interrupts %v goes to CPU %s", effective, is)
		}
	}

	var report nodeReport
	text := m.must(t, "cat /run/gputune/jobs/"+job.id+".json")
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		t.Fatal(err)
	}
	log := m.must(t, "cat "+prologOutput+"; gputune doctor; true")
	freed := map[int]int{}
	sum := 0
	seen := map[string]bool{}
	for _, o := range report.Options {
		if o.State != "applied" {
			t.Errorf("--%s: %s", o.Option, o.State)
		}
		seen[o.Option] = true
		if o.Dropped != nil {
			for _, n := range o.Dropped.Nodes {
				freed[n.Node] = n.MiB
				sum += n.MiB
			}
		}
		if o.Option != "node-profile" {
			continue
		}
		if len(o.Skipped) != 1 || o.Skipped[0].Key != "governor" {
			t.Errorf("left out: %+v, want the governor", o.Skipped)
		}
		var got []string
		for _, u := range o.Unmovable {
			got = append(got, u.PCI+" "+setOf(u.IRQs))
		}
		if !slices.Equal(got, unmovable) {
			t.Errorf("reported as unmovable: %v, want %v", got, unmovable)
		}
		pci, irqs, _ := strings.Cut(unmovable[0], " ")
		if want := fmt.Sprintf("left alone: interrupts %s of %s: ", irqs, pci); strings.Count(log, want) != 1 {
			t.Errorf("not once in the log: %q", want)
		}
	}
	if want := []string{"drop-caches", "hugepages", "node-profile"}; !slices.Equal(slices.Sorted(maps.Keys(seen)), want) {
		t.Errorf("reported are %v, want %v: %s", seen, want, text)
	}
	// The file is in the memory of two nodes at least.
	had := 0
	for _, mib := range freed {
		if mib >= 50 {
			had++
		}
	}
	if sum < 1000 || sum > 2000 || had < 2 {
		t.Errorf("%d MiB were dropped: %v", sum, freed)
	}
	said := regexp.MustCompile(`--drop-caches: dropped (\d+) MiB \(node 0: (-?\d+), node 1: (-?\d+), .*\) in `).FindStringSubmatch(log)
	if said == nil || said[1] != strconv.Itoa(sum) || said[2] != strconv.Itoa(freed[0]) || said[3] != strconv.Itoa(freed[1]) {
		t.Errorf("the log says %q, the report %v", said, freed)
	}
	for name, pid := range pids {
		what := fmt.Sprintf("%s runs (pid %s) and changes ", name, pid)
		if inLog := strings.Count(log, fmt.Sprintf("job %s: %s", job.id, what)); inLog != 1 || strings.Count(log, what) != 2 {
			t.Errorf("%q is %d times in the log and %d times there or among the doctor's findings, want once each", what, inLog, strings.Count(log, what))
		}
	}
	job.release(t)
	m.waitIdle(t)
	if d := m.nodeValues(t).differ(before); d != "" {
		t.Errorf("after the job:\n%s", d)
	}
	m.checkNothingLeft(t)
	t.Logf("dropped %d MiB: %v", sum, freed)
}

func setOf(ids []int) string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = strconv.Itoa(id)
	}
	return mustParse(strings.Join(texts, ",")).String()
}

// checkNothingLeft wants nothing of any job in gputune's folders.
func (m *machine) checkNothingLeft(t *testing.T) {
	t.Helper()
	if left := m.must(t, "find /var/lib/gputune/jobs /var/lib/gputune/aside /run/gputune/jobs -mindepth 1 2>/dev/null || true"); left != "" {
		t.Errorf("left of jobs:\n%s", left)
	}
}

// What a job cannot have is refused in one line, and nothing of it stays. Two jobs
// on a node may want the same, and not two things.
func testSettingsShared(t *testing.T, m *machine) {
	defer m.nodeSite(t)()
	before, gpus := m.nodeValues(t), m.gpuState(t)
	refused := func(options, want string) {
		t.Helper()
		result := m.try(t, "srun -Q -n1 "+options+" echo ran 2>&1 | grep -v '^srun: '; exit ${PIPESTATUS[0]}")
		line := regexp.MustCompile("^gputune: node1: error: " + want + "\n$")
		if result.Code != 1 || !line.MatchString(result.Output) {
			t.Errorf("%s: status %d, said %q, want one line that matches %q", options, result.Code, result.Output, line)
		}
	}
	// More than there is, whatever can be written back or thrown away. What the kernel
	// refuses that looked possible is in the tests of Kernel.
	m.must(t, "sync; echo 3 >/proc/sys/vm/drop_caches")
	free := 0
	for line := range strings.Lines(m.must(t, fmt.Sprintf("cat %s1/meminfo", sysNode))) {
		switch f := strings.Fields(line); f[2] {
		case "MemFree:", "Active(file):", "Inactive(file):", "SReclaimable:":
			kib, err := strconv.Atoi(f[3])
			if err != nil {
				t.Fatal(err)
			}
			free += kib
		}
	}
	most := free/2048 + 8 // between then and now some can be freed
	refused(fmt.Sprintf(wholeNode+"--hugepages=2M:%d", most),
		fmt.Sprintf(`--hugepages=2M:%d: node 1: hugepages of 2048 kB: %d in all: \d+ MiB of the node are free or cached files; nearest: 2M:\d+`, most, most))
	refused("--gpus=1 --drop-caches", `--drop-caches: it is the whole node's, and the job does not have the node for itself: ask for --exclusive`)
	if d := m.nodeValues(t).differ(before); d != "" {
		t.Errorf("after refusals:\n%s", d)
	}

	set := before.with(values{sysTHP + "enabled": "always [madvise] never\n"})
	job := m.holdJob(t, "", "--gpus=1 --thp=madvise")
	if d := m.nodeValues(t).differ(set); d != "" {
		t.Errorf("while the first job runs:\n%s", d)
	}
	refused("--thp=always", fmt.Sprintf(`--thp=always: .*\b%s\b.*`, job.id))
	if output := m.must(t, "srun -Q -n1 --thp=madvise node-values"); parseValues(t, output).differ(set) != "" {
		t.Errorf("the second job sees:\n%s", parseValues(t, output).differ(set))
	}
	m.must(t, `for i in $(seq 100); do [ "$(squeue -h | wc -l)" = 1 ] && break; sleep 0.3; done`)
	if d := m.nodeValues(t).differ(set); d != "" {
		t.Errorf("after the second of two jobs that want the same:\n%s", d)
	}
	job.release(t)
	m.checkAsBefore(t, gpus)
	if d := m.nodeValues(t).differ(before); d != "" {
		t.Errorf("after the jobs:\n%s", d)
	}
	m.forgetLog(t)
}

// killAtScript runs the Prolog and the Epilog of a job, as slurmd runs them. Of
// each pair of a program and a file that is given one is killed when it is about to
// write that file, as everything of it is when a node runs out of memory; then comes
// the Epilog. It prints what the values are after each of these.
const killAtScript = `#!/bin/bash
exec 2>>/tmp/kill-at.log # where the shell says who was killed
mapfile -d '' -t environment <` + prologEnvironment + `
run() { env -i PATH=/usr/sbin:/usr/bin "${environment[@]}" "$@" </dev/null >>/tmp/kill-at.log 2>&1; }
for pair; do
	program=${pair%%:*} file=${pair#*:}
	[ $program = gputune-prolog ] || run gputune-prolog || echo "@failed gputune-prolog"
	run strace -f -qq -o /dev/null -P "/run/testroot$file" -e trace=write -e inject=write:signal=KILL /usr/sbin/$program --role work
	echo "@killed $pair $?"
	node-values
	run gputune-epilog || echo "@failed gputune-epilog"
	echo "@after $pair $(find /var/lib/gputune/jobs -mindepth 1 | wc -l)"
	node-values
done
`

// A Prolog and an Epilog that are killed leave nothing that the next Epilog does
// not put back.
func testSettingsKilled(t *testing.T, m *machine) {
	defer m.nodeSite(t)()
	before := m.nodeValues(t)
	m.put(t, "/tmp/kill-at", killAtScript)
	points := []string{
		"gputune-prolog:" + sysTHP + "defrag", "gputune-prolog:" + sysVM + "dirty_bytes",
		"gputune-epilog:" + sysVM + "dirty_ratio", "gputune-epilog:" + hugepagesFile(1),
	}
	output := m.must(t, "rm -f /tmp/kill-at.log; /tmp/kill-at "+strings.Join(points, " "))
	states := strings.Split(output, "@")[1:]
	half := 0
	for i := 0; i < len(states); i++ {
		head, text, _ := strings.Cut(states[i], "\n")
		f := strings.Fields(head)
		switch {
		case f[0] == "killed" && f[2] == "137":
			if d := parseValues(t, text).differ(before); d != "" {
				half++
			}
		case f[0] == "after" && f[2] == "0":
			if d := parseValues(t, text).differ(before); d != "" {
				t.Errorf("%s:\n%s", head, d)
			}
		default:
			t.Errorf("%s\n%s", head, m.must(t, "cat /tmp/kill-at.log"))
		}
	}
	if len(states) != 2*len(points) || half != len(points) {
		t.Errorf("%d states of %d points, %d of them killed in the middle", len(states), len(points), half)
	}
	m.checkNothingLeft(t)
}

// startSlurm starts what slurm-up has set up, with the state that it has, after a
// boot. The driver has forgotten what was set on the GPUs.
const startSlurm = gpuOfNode1First + ` testroot-up && env -i /var/lib/fakenvml/fakenvml reset && ip link set lo up && ip addr replace 192.0.2.1/32 dev lo &&
systemctl start munge slurmctld && until scontrol ping 2>/dev/null | grep -q UP; do sleep 0.2; done && systemctl start slurmd`

// The power of the node is cut while a job has it: what the kernel has forgotten by
// itself is not put back over what somebody has set since.
func testSettingsPowerCut(t *testing.T, m *machine) {
	defer m.nodeSite(t)()
	before := m.nodeValues(t)
	job := m.holdJob(t, "", wholeNode+"--no-requeue --node-profile=whole --hugepages=2M:64")
	set := m.setByWhole()
	set[hugepagesFile(1)] = "64\n"
	now := m.nodeValues(t)
	for file, want := range set {
		if now[file] != want {
			t.Errorf("%s reads %q, want %q", file, now[file], want)
		}
	}
	m.must(t, "sync")
	if err := m.PowerCycle(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Interrupts have other numbers.
	booted := m.nodeValues(t)
	if d := booted.withoutInterrupts().differ(before.withoutInterrupts()); d != "" {
		t.Fatalf("after a boot:\n%s", d)
	}
	if held := m.must(t, "gputune status"); !strings.Contains(held, job.id) {
		t.Errorf("nothing is known of job %s after a boot: %s", job.id, held)
	}
	// It can take Slurm minutes to see that nothing is left of the job, or it has lost
	// it and runs no Epilog.
	m.must(t, "echo 33 >/proc/sys/vm/swappiness; "+startSlurm+"; scancel "+job.id+" || true")
	m.waitIdle(t)
	log := m.must(t, "gputune restore --all; journalctl -o cat -t gputune-epilog GPUTUNE_JOB="+job.id)
	if want := fmt.Sprintf("job %s: sysctl/vm.swappiness: forgotten when the machine booted", job.id); !strings.Contains(log, want) {
		t.Errorf("nobody says %q", want)
	}
	if d := m.nodeValues(t).differ(booted.with(values{sysVM + "swappiness": "33\n"})); d != "" {
		t.Errorf("after the job was forgotten:\n%s", d)
	}
	m.checkNothingLeft(t)
	m.must(t, "printf %s '"+before[sysVM+"swappiness"]+"' >/proc/sys/vm/swappiness")
	m.forgetLog(t)
}
