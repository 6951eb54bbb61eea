package node

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gputune/internal/job"
)

// siteProfile changes each kind of setting that a made-up node has.
const siteProfile = `[drop_caches]
sync_deadline = "1s"
[profile.site]
hugepages = "2M:8"
idle_latency = 20
irqs = "local"
governor = "performance"
swap = "off"
gpu_clocks = "high"
compact_memory = "on"
drop_caches = "slab"
[profile.site.sysctl]
"vm.swappiness" = 1
"vm.dirty_ratio" = 40
"vm.dirty_background_ratio" = 5
"kernel.numa_balancing" = 0
`

// exclusive is what slurmd since 23.02 says of a job that has the node for itself.
var exclusive = []string{"SLURM_JOB_OVERSUBSCRIBE=NO"}

// beginSettings makes a node with settings. Its last two GPUs are on NUMA node 1.
func beginSettings(t testing.TB, config string) (n *Node, gpus string) {
	t.Helper()
	n = begin(t, config)
	if err := n.AddSettings(); err != nil {
		t.Fatal(err)
	}
	return n, n.state(t)
}

const (
	pool0, pool1 = "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", "sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages"
	latency      = "sys/devices/system/cpu/cpu1/power/pm_qos_resume_latency_us"
)

// wantSettings is that these files have these lines, and all others what they had.
func (n *Node) wantSettings(t testing.TB, want map[string]string) {
	t.Helper()
	now, err := n.Settings()
	if err != nil {
		t.Fatal(err)
	}
	all := maps.Clone(n.kernel)
	maps.Copy(all, want)
	for name, line := range all {
		if now[name] != line {
			t.Errorf("%s is %q, want %q", name, now[name], line)
		}
	}
}

func (n *Node) wantBack(t testing.TB, gpus string) {
	t.Helper()
	if dirt := n.dirt(gpus); dirt != "" {
		t.Error(dirt)
	}
}

// All of a profile is set for a job that has the node for itself, with hugepages
// and interrupts where its GPU is, and is put back after it.
func TestNodeProfile(t *testing.T) {
	n, gpus := beginSettings(t, siteProfile)
	j := Job{ID: 51, GPUs: "2", Options: one("node-profile", "site"), Env: exclusive}
	output := n.prolog(t, j)
	n.wantSettings(t, map[string]string{
		pool1: "11", latency: "20", strings.Replace(latency, "cpu1", "cpu0", 1): "20", "proc/irq/32/smp_affinity_list": "1",
		"proc/sys/vm/swappiness": "1", "proc/sys/vm/dirty_ratio": "40", "proc/sys/vm/dirty_background_ratio": "5",
		"proc/sys/kernel/numa_balancing": "0",
	})
	state, err := n.NVML.State()
	if err != nil {
		t.Fatal(err)
	}
	for i, gpu := range n.Machine.GPUs {
		if got := state[gpu.UUID].GPUClocks; (got == "1980,1980") != (i == 2) {
			t.Errorf("gpu %d: clocks %s", i, got)
		}
	}
	for name, want := range map[string]string{"proc/sys/vm/drop_caches": "2", "sys/devices/system/node/node0/compact": "1", "sys/devices/system/node/node1/compact": "1"} {
		if line, err := n.Setting(name); err != nil || line != want {
			t.Errorf("%s is %q, %v, want %s", name, line, err, want)
		}
	}
	report, notice := n.report(t, "51")
	o := report.Options[0]
	if notice != "" || o.State != job.Applied || o.Dropped == nil || len(o.Dropped.Nodes) != 2 || o.Compacted == nil || o.Compacted.Nodes.String() != "0-1" ||
		len(o.Skipped) != 1 || o.Skipped[0].Key != "governor" || len(o.GPUs) != 1 || len(o.Node) != 8 {
		t.Errorf("notice %q, %+v", notice, o)
	}
	for _, want := range []string{
		"job 51: --node-profile=site: dropped 0 MiB (node 0: 0, node 1: 0) in ",
		"job 51: --node-profile=site: compacted the memory of node 0-1 in ",
		"job 51: --node-profile=site: left out: governor: CPU frequency of CPUs 0-1: this machine has none",
		"job 51: --node-profile: cpuidle/cpu0-1/latency 20, was 0\n",
		"job 51: --node-profile: hugepages/node1/2048kB 11, was 4\n",
		"job 51: --node-profile: sysctl/vm.dirty ratio=40, was ratio=20\n",
		"clocks.sm 1980-1980, was unlocked",
	} {
		if !strings.Contains(output, want) {
			t.Errorf("no %q in\n%s", want, output)
		}
	}
	// Twice is the same as once.
	n.prolog(t, j)
	if line, err := n.Setting(pool1); err != nil || line != "11" {
		t.Errorf("a second Prolog made it %s, %v", line, err)
	}
	n.epilog(t, j)
	n.wantBack(t, gpus)
	n.epilog(t, j)
	n.wantBack(t, gpus)
}

// What a job asks for by name wins over the profile that it asks for as well.
func TestOptionsOverProfile(t *testing.T) {
	n, gpus := beginSettings(t, siteProfile)
	j := Job{ID: 52, GPUs: "1,2", Env: exclusive, Options: map[string]string{
		"node-profile": "site", "hugepages": "2M:64", "drop-caches": "", "gpu-clocks": "1200",
	}}
	n.prolog(t, j)
	for name, want := range map[string]string{pool0: "67", pool1: "67", "proc/sys/vm/drop_caches": "1", "proc/sys/vm/swappiness": "1"} {
		if line, err := n.Setting(name); err != nil || line != want {
			t.Errorf("%s is %q, %v, want %s", name, line, err, want)
		}
	}
	state, err := n.NVML.State()
	if err != nil || state[n.Machine.GPUs[2].UUID].GPUClocks != "1200,1200" {
		t.Errorf("%+v, %v", state, err)
	}
	report, _ := n.report(t, "52")
	for _, o := range report.Options {
		if o.State != job.Applied || o.Name == "hugepages" && len(o.Node) != 2 || o.Name == "node-profile" && len(o.GPUs) > 0 {
			t.Errorf("%+v", o)
		}
	}
	n.epilog(t, j)
	n.wantBack(t, gpus)
}

// A job without GPUs gets what needs none.
func TestNodeProfileWithoutGPU(t *testing.T) {
	n, gpus := beginSettings(t, siteProfile+"[profile.strict]\ninclude = \"site\"\ngpu_clocks = { value = \"low\", missing = \"refuse\" }\n")
	j := Job{ID: 53, Options: one("node-profile", "site"), Env: exclusive}
	n.prolog(t, j)
	report, notice := n.report(t, "53")
	var skipped []string
	for _, s := range report.Options[0].Skipped {
		skipped = append(skipped, s.Key)
	}
	if notice != "" || report.Options[0].State != job.Applied || strings.Join(skipped, " ") != "hugepages governor irqs gpu_clocks" {
		t.Errorf("notice %q, %+v", notice, report.Options[0])
	}
	if line, err := n.Setting("proc/sys/vm/swappiness"); err != nil || line != "1" {
		t.Errorf("%s, %v", line, err)
	}
	n.epilog(t, j)
	n.wantBack(t, gpus)
	if now := n.state(t); now != gpus {
		t.Errorf("the GPUs are %s", now)
	}
	j = Job{ID: 54, Options: one("node-profile", "strict"), Env: exclusive}
	n.prolog(t, j)
	if _, notice := n.report(t, "54"); notice != "fail\n--node-profile=strict: gpu_clocks: it is about the job's GPUs, and the job has none on this node\n" {
		t.Errorf("notice %q", notice)
	}
	n.epilog(t, j)
	n.wantBack(t, gpus)
}

// What is the whole node's is refused, in one line, to a job that shares it, and so
// is what cannot be had.
func TestRefusedNodeSettings(t *testing.T) {
	n, gpus := beginSettings(t, "")
	const meminfo = "Node 0 MemTotal: 16777216 kB\nNode 0 MemFree: 4194304 kB\nNode 0 Active(file): 0 kB\nNode 0 Inactive(file): 0 kB\nNode 0 SReclaimable: 0 kB"
	if err := n.SetSetting("sys/devices/system/node/node0/meminfo", meminfo); err != nil {
		t.Fatal(err)
	}
	const shared = ": it is the whole node's, and the job does not have the node for itself: ask for --exclusive\n"
	for i, c := range []struct {
		config string
		job    Job
		notice string
	}{
		{"", Job{Options: one("thp", "always")}, "--thp=always" + shared},
		{"", Job{Options: one("drop-caches", "")}, "--drop-caches" + shared},
		{"", Job{Options: one("drop-caches", "all"), Env: []string{"SLURM_JOB_OVERSUBSCRIBE=OK"}}, "--drop-caches=all" + shared},
		{"", Job{GPUs: "1", Options: one("hugepages", "2M:8")}, "--hugepages=2M:8" + shared},
		{"", Job{Options: one("node-profile", "training"), Env: []string{"SLURM_JOB_CPUS_PER_NODE=1"}}, "--node-profile=training: thp" + shared},
		{"", Job{Options: one("node-profile", "none"), Env: exclusive}, "--node-profile=none: no profile \"none\": this site has benchmark, inference, training\n"},
		{"", Job{Options: one("hugepages", "2M:8"), Env: exclusive}, "--hugepages=2M:8: the job has no GPU of its own on this node, and the hugepages go where its GPUs are\n"},
		{
			"",
			Job{GPUs: "0", Options: one("hugepages", "2M:5000"), Env: exclusive},
			"--hugepages=2M:5000: node 0: hugepages of 2048 kB: 5003 in all: 4096 MiB of the node are free or cached files; nearest: 2M:2049\n",
		},
		{
			"",
			Job{GPUs: "2", Options: one("hugepages", "2M:8000"), Env: exclusive},
			"--hugepages=2M:8000: node 1: 2M:8000: pools of 16006 MiB: the site allows 90 % of the node's memory, 14745 MiB; nearest: 2M:7369\n",
		},
		{
			"",
			Job{GPUs: "2", Options: one("hugepages", "1G:1"), Env: exclusive},
			"--hugepages=1G:1: node 1: hugepages of 1048576 kB: this machine has none (/sys/devices/system/node/node1/hugepages/hugepages-1048576kB/nr_hugepages); the node has sizes 2048kB\n",
		},
		{"[thp]\ndeny = [\"user:root\"]\n", Job{Options: one("thp", "never"), Env: exclusive}, "--thp=never: the site denies it to user:root\n"},
		{
			"[profile.bad.sysctl]\n\"vm.swappiness\" = 300\n",
			Job{Options: one("node-profile", "bad"), Env: exclusive},
			"--node-profile=bad: sysctl.vm.swappiness: sysctl vm.swappiness: 300: want 0 to 200\n",
		},
		{
			"[gpu_clocks]\nmax_mhz = 900\n[profile.bad]\ngpu_clocks = 1500\n",
			Job{GPUs: "0", Options: one("node-profile", "bad"), Env: exclusive},
			"--node-profile=bad: gpu_clocks: gpu " + n.Machine.GPUs[0].PCI + ": clocks 1500 MHz: the site allows 345–900 MHz\n",
		},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			if err := n.Configure(c.config); err != nil {
				t.Fatal(err)
			}
			c.job.ID = 200 + i
			n.prolog(t, c.job)
			if _, notice := n.report(t, fmt.Sprint(c.job.ID)); notice != "fail\n"+c.notice {
				t.Errorf("notice %q\nwant %q", notice, c.notice)
			}
			n.epilog(t, c.job)
			n.wantBack(t, gpus)
			if line, err := n.Setting("proc/sys/vm/drop_caches"); err != nil || line != "0" {
				t.Errorf("drop_caches is %s, %v", line, err)
			}
		})
	}
	// What only depends on where a GPU is can be had with a part of one.
	j := Job{ID: 229, GPUs: "2", Options: map[string]string{"hugepages": "2M:8"}, Env: append([]string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"}, exclusive...)}
	if err := n.Configure("[profile.lock]\ngpu_clocks = \"low\"\n"); err != nil {
		t.Fatal(err)
	}
	n.prolog(t, j)
	if _, notice := n.report(t, "229"); notice != "" {
		t.Errorf("notice %q", notice)
	}
	n.wantSettings(t, map[string]string{pool1: "11"})
	n.epilog(t, j)
	j.Options = one("node-profile", "lock")
	n.prolog(t, j)
	if _, notice := n.report(t, "229"); notice != "fail\n--node-profile=lock: gpu_clocks: the job shares its GPU: gres/mps gives it a part of the GPU, and only a whole GPU can be changed\n" {
		t.Errorf("notice %q", notice)
	}
	n.epilog(t, j)
	n.wantBack(t, gpus)
	// Never can be had for the job alone, wherever it runs.
	j = Job{ID: 230, Options: one("thp", "never")}
	if err := n.Configure(""); err != nil {
		t.Fatal(err)
	}
	output := n.prolog(t, j)
	report, notice := n.report(t, "230")
	if o := report.Options[0]; notice != "" || o.State != job.Applied || !o.TasksOnly || !strings.Contains(output, "--thp=never: for the job's tasks alone") {
		t.Errorf("notice %q, %+v, %s", notice, report, output)
	}
	n.epilog(t, j)
	n.wantBack(t, gpus)
}

// The whole node is a job's by all of its CPUs, too, where no partition gives them
// to several.
func TestAllCPUs(t *testing.T) {
	n, gpus := beginSettings(t, siteProfile)
	j := Job{ID: 55, Options: one("node-profile", "site"), Env: []string{"SLURM_JOB_CPUS_PER_NODE=2"}}
	n.prolog(t, j)
	if _, notice := n.report(t, "55"); notice != "" {
		t.Errorf("notice %q", notice)
	}
	n.epilog(t, j)
	n.wantBack(t, gpus)
	slurmConf := fmt.Sprintf("ClusterName=test\nGresTypes=gpu\nNodeName=%s Gres=gpu:4 CPUs=2\nPartitionName=main Nodes=ALL OverSubscribe=FORCE:2\n", Name)
	if err := os.WriteFile(filepath.Join(n.Dir, "etc/slurm.conf"), []byte(slurmConf), 0o644); err != nil {
		t.Fatal(err)
	}
	n.prolog(t, j)
	const want = "fail\n--node-profile=site: drop_caches: it is the whole node's, and this release of Slurm does not tell whether the job has the node for itself, " +
		"and partition main has OverSubscribe=FORCE:2: use a node without such a partition, or one with OverSubscribe=EXCLUSIVE\n"
	if _, notice := n.report(t, "55"); !strings.HasPrefix(notice, "fail\n--node-profile=site: ") || notice[strings.Index(notice, ": it is"):] != want[strings.Index(want, ": it is"):] {
		t.Errorf("notice %q, want %q", notice, want)
	}
	n.epilog(t, j)
	n.wantBack(t, gpus)
}

// sharedProfile may be used by jobs that share the node.
const sharedProfile = `[profile.a.sysctl]
"vm.swappiness" = { value = 1, shared = "allow" }
[profile.b.sysctl]
"vm.swappiness" = { value = 2, shared = "allow" }
`

// Of two jobs on a node, the second one gets the value that the first one set, and
// no other.
func TestTwoJobs(t *testing.T) {
	n, gpus := beginSettings(t, sharedProfile)
	const swappiness = "proc/sys/vm/swappiness"
	wants := func(value string) {
		t.Helper()
		if line, err := n.Setting(swappiness); err != nil || line != value {
			t.Errorf("%s is %s, %v, want %s", swappiness, line, err, value)
		}
	}
	first, second, other := Job{ID: 61, Options: one("node-profile", "a")}, Job{ID: 62, GPUs: "0", Options: one("node-profile", "a")}, Job{ID: 63, Options: one("node-profile", "b")}
	n.prolog(t, first)
	n.prolog(t, second)
	n.prolog(t, other)
	wants("1")
	if _, notice := n.report(t, "62"); notice != "" {
		t.Errorf("the second job: %q", notice)
	}
	want := "fail\n--node-profile=b: sysctl/vm.swappiness: job 61 holds it at 1, so it cannot be 2: use 1, or wait for that job's end\n"
	if _, notice := n.report(t, "63"); notice != want {
		t.Errorf("%q, want %q", notice, want)
	}
	n.epilog(t, other)
	n.epilog(t, first)
	wants("1")
	n.prolog(t, other)
	if _, notice := n.report(t, "63"); !strings.Contains(notice, "job 62 holds it at 1") {
		t.Errorf("%q", notice)
	}
	n.epilog(t, other)
	n.epilog(t, second)
	wants("60")
	n.prolog(t, other)
	wants("2")
	n.epilog(t, other)
	n.wantBack(t, gpus)
}

// What a job has left whose Epilog never ran goes before one that has the node for
// itself; a program that is in the way, and a value that somebody has set under a
// job, are named once.
func TestOthersOnTheNode(t *testing.T) {
	n, gpus := beginSettings(t, sharedProfile+siteProfile)
	for _, pid := range []string{"90", "91"} {
		for name, text := range map[string]string{"comm": "irqbalance", "status": "Name:\tirqbalance\nUid:\t0\t0\t0\t0"} {
			if err := n.SetSetting("proc/"+pid+"/"+name, text); err != nil {
				t.Fatal(err)
			}
		}
	}
	n.prolog(t, Job{ID: 64, Options: one("node-profile", "b")})
	j := Job{ID: 65, GPUs: "2", Options: one("node-profile", "site"), Env: exclusive}
	output := n.prolog(t, j)
	if strings.Count(output, "irqbalance") != 1 || !strings.Contains(output, "job 65: irqbalance runs (pid 90) and changes the CPUs of interrupts, too: ") {
		t.Errorf("%s", output)
	}
	for _, want := range []string{"job 64: it has ended and left the node changed: putting it back\n", "job 64: sysctl/vm.swappiness: 60 again\n"} {
		if !strings.Contains(output, want) {
			t.Errorf("no %q in %s", want, output)
		}
	}
	if _, notice := n.report(t, "65"); notice != "" {
		t.Errorf("%q", notice)
	}
	n.epilog(t, j)
	n.wantBack(t, gpus)

	first, second := Job{ID: 66, Options: one("node-profile", "a")}, Job{ID: 67, Options: one("node-profile", "a")}
	output = n.prolog(t, first)
	if strings.Contains(output, "irqbalance") {
		t.Errorf("named to a job that moves no interrupts: %s", output)
	}
	if err := n.SetSetting("proc/sys/vm/swappiness", "33"); err != nil {
		t.Fatal(err)
	}
	output = n.prolog(t, second)
	if !strings.Contains(output, "job 67: sysctl/vm.swappiness: somebody had set 33 under another job: it is 1 again\n") {
		t.Errorf("%s", output)
	}
	n.epilog(t, second)
	n.epilog(t, first)
	if line, err := n.Setting("proc/sys/vm/swappiness"); err != nil || line != "33" {
		t.Errorf("%s, %v, want what somebody set", line, err)
	}
}

// An action that fails refuses the option, and nothing is set.
func TestActionFails(t *testing.T) {
	n, gpus := beginSettings(t, "[drop_caches]\nsync_deadline = \"1s\"\n")
	if err := n.SetSetting("sys/devices/system/node/has_memory", "0-7"); err != nil {
		t.Fatal(err)
	}
	j := Job{ID: 68, GPUs: "2", Options: map[string]string{"drop-caches": "page", "hugepages": "2M:8"}, Env: exclusive}
	n.prolog(t, j)
	if _, notice := n.report(t, "68"); !strings.HasPrefix(notice, "fail\n--drop-caches=page: drop caches: open ") || strings.Count(notice, "\n") != 2 {
		t.Errorf("%q", notice)
	}
	n.wantSettings(t, nil)
	n.epilog(t, j)
	n.wantBack(t, gpus)
}

// TestSettingsKilled kills Prolog and Epilog of a job with hugepages, pairs of
// sysctls, interrupts, idle states and locked clocks at their system calls, and
// wants the Epilog to make the node what it was.
func TestSettingsKilled(t *testing.T) {
	needTracer(t)
	const config = `[profile.kill]
hugepages = "2M:8"
idle_latency = 20
irqs = "local"
gpu_clocks = "low"
compact_memory = "on"
[profile.kill.sysctl]
"vm.swappiness" = 1
"vm.dirty_ratio" = 40
"vm.dirty_background_ratio" = 5
`
	n, gpus := beginSettings(t, config)
	nodes := []*Node{n}
	for len(nodes) < 2 {
		more, _ := beginSettings(t, config)
		nodes = append(nodes, more)
	}
	j := Job{ID: 69, GPUs: "2", Options: one("node-profile", "kill"), Env: exclusive}
	before, err := n.take()
	if err != nil {
		t.Fatal(err)
	}
	n.prolog(t, j)
	during, err := n.take()
	if err != nil {
		t.Fatal(err)
	}
	if maps.Equal(before.kernel, during.kernel) {
		t.Fatal("nothing is set")
	}
	back := func(n *Node, _ trace) error { return n.wantsBackOf(t.Context(), j, gpus, "epilog") }
	command := func(program string) func(n *Node) *exec.Cmd {
		return func(n *Node) *exec.Cmd { return n.Program(t.Context(), program, j) }
	}
	child := func(process int) bool { return process > 0 }
	each := 12
	if *everyCall {
		each = 1
	}
	tried := 0
	for _, k := range []killing{
		{name: "Prolog and its child", from: before, command: command("gputune-prolog"), only: child, with: []int{0}, each: each, after: back},
		{name: "Prolog's child alone", from: before, command: command("gputune-prolog"), only: child, each: 5 * each, after: back},
		{name: "Epilog and its child", from: during, command: command("gputune-epilog"), only: child, with: []int{0}, each: each, after: back},
	} {
		t.Run(k.name, func(t *testing.T) { tried += k.everywhere(t, nodes) })
	}
	t.Logf("%d kill points", tried)
}

// Two options of a job that want one setting to have two values: the second one is
// refused.
func TestContradiction(t *testing.T) {
	n, gpus := beginSettings(t, "[node]\nsysctls = [\"vm.min_free_kbytes\"]\n[profile.training]\n[profile.inference]\n[profile.benchmark]\n"+
		"[profile.x.sysctl]\n\"vm.min_free_kbytes\" = 90000\n")
	if err := n.SetSetting("proc/sys/vm/min_free_kbytes", "100"); err != nil {
		t.Fatal(err)
	}
	j := Job{ID: 70, Options: map[string]string{"thp": "always", "node-profile": "x"}, Env: exclusive}
	n.prolog(t, j)
	_, notice := n.report(t, "70")
	if !strings.HasPrefix(notice, "fail\n--node-profile=x: sysctl/vm.min_free_kbytes cannot be 90000: --thp wants it to be ") {
		t.Errorf("%q", notice)
	}
	if line, err := n.Setting("proc/sys/vm/min_free_kbytes"); err != nil || line != "100" {
		t.Errorf("%s, %v", line, err)
	}
	n.epilog(t, j)
	n.wantBack(t, gpus)
}
