package nodeplan

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gputune/conf"
	"gputune/internal/idset"
	"gputune/internal/setting"
	"gputune/internal/topology"
)

// node is a made-up node with two NUMA nodes of four CPUs, a GPU and a network
// device on each, and no cpufreq unless it is asked for.
func node(t *testing.T, cpufreq bool) (*setting.Environment, Job) {
	t.Helper()
	root := t.TempDir()
	files := map[string]string{
		"proc/sys/vm/swappiness": "60", "proc/sys/vm/dirty_ratio": "20", "proc/sys/vm/dirty_bytes": "0", "proc/sys/vm/dirty_background_ratio": "10",
		"proc/sys/vm/dirty_background_bytes": "0", "proc/sys/vm/zone_reclaim_mode": "0", "proc/sys/kernel/numa_balancing": "1",
		"proc/sys/vm/min_free_kbytes": "67584", "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
		"sys/kernel/mm/transparent_hugepage/hpage_pmd_size": "2097152", "proc/zoneinfo": "Node 0, zone   Normal\n        managed  1000000\n",
		"sys/devices/system/cpu/online": "0-7", "proc/sys/vm/drop_caches": "0",
	}
	for i, pci := range []string{"0000:21:00.0", "0000:41:00.0", "0000:22:00.0", "0000:42:00.0"} {
		files[fmt.Sprintf("sys/bus/pci/devices/%s/msi_irqs/%d", pci, 30+i)] = "msix"
		files[fmt.Sprintf("proc/irq/%d/smp_affinity_list", 30+i)] = "0-7"
	}
	for cpu := range 8 {
		files[fmt.Sprintf("sys/devices/system/cpu/cpu%d/power/pm_qos_resume_latency_us", cpu)] = "0"
	}
	for n := range 2 {
		folder := fmt.Sprintf("sys/devices/system/node/node%d/", n)
		files[folder+"meminfo"] = fmt.Sprintf("Node %d MemTotal: 4194304 kB\nNode %[1]d MemFree: 4000000 kB\nNode %[1]d Active(file): 0 kB\nNode %[1]d Inactive(file): 0 kB\nNode %[1]d SReclaimable: 0 kB", n)
		files[folder+"compact"] = ""
		files[folder+"hugepages/hugepages-2048kB/nr_hugepages"] = "4"
		files[folder+"hugepages/hugepages-2048kB/free_hugepages"] = "1"
	}
	if cpufreq {
		for _, policy := range []string{"0", "4"} {
			folder := "sys/devices/system/cpu/cpufreq/policy" + policy + "/"
			files[folder+"affected_cpus"] = map[string]string{"0": "0 1 2 3", "4": "4 5 6 7"}[policy]
			files[folder+"scaling_governor"] = "powersave"
			files[folder+"scaling_available_governors"] = "performance powersave"
			files[folder+"energy_performance_preference"] = "balance_performance"
			files[folder+"energy_performance_available_preferences"] = "performance balance_performance"
			files[folder+"scaling_min_freq"] = "800000"
			files[folder+"scaling_max_freq"] = "3800000"
			files[folder+"cpuinfo_min_freq"] = "800000"
		}
	}
	for file, text := range files {
		file = filepath.Join(root, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	m := &topology.Machine{CPUs: idset.Range(0, 7)}
	for n := range 2 {
		m.Nodes = append(m.Nodes, topology.Node{ID: n, CPUs: idset.Range(4*n, 4*n+3), MemoryMiB: 4096})
		m.GPUs = append(m.GPUs, topology.GPU{PCI: fmt.Sprintf("0000:%d1:00.0", 2+2*n), Nodes: idset.Of(n)})
		m.NICs = append(m.NICs, topology.NIC{PCI: fmt.Sprintf("0000:%d2:00.0", 2+2*n), Nodes: idset.Of(n)})
		m.Cores = append(m.Cores, topology.Core{CPUs: idset.Range(4*n, 4*n+1)}, topology.Core{CPUs: idset.Range(4*n+2, 4*n+3)})
	}
	return setting.NewEnvironment(root, nil), Job{Machine: m, GPUs: m.GPUs[1:], CPUs: idset.Of(4, 5), Alone: true, HugepagesPercent: 50}
}

// profile returns the profile x of a configuration.
func profile(t *testing.T, text string) conf.Profile {
	t.Helper()
	file := filepath.Join(t.TempDir(), "gputune.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := conf.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	p, err := config.Profile("x")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func wishes(p Plan) string {
	var list []string
	for _, w := range p.Wishes {
		list = append(list, w.Key+"="+w.Value)
	}
	return strings.Join(list, " ")
}

func TestShippedProfiles(t *testing.T) {
	const (
		sysctls = " sysctl/kernel.numa_balancing=0"
		dirty   = " sysctl/vm.dirty_background=ratio=10 sysctl/vm.dirty=ratio=40"
		rest    = " sysctl/vm.swappiness=1 sysctl/vm.zone_reclaim_mode=0"
		speed   = " cpufreq/policy4/energy=performance cpufreq/policy4/governor=performance"
		// Node 1's other core is free.
		irqs = " irq/0000:41:00.0/31/affinity=6-7 irq/0000:42:00.0/33/affinity=6-7"
	)
	ctx := context.Background()
	for _, c := range []struct {
		name    string
		cpufreq bool
		want    string
		skipped string
	}{
		{"training", true, "thp/enabled=always" + speed + sysctls + dirty + rest, ""},
		{"training", false, "thp/enabled=always" + sysctls + dirty + rest, "energy governor"},
		{"inference", true, "thp/enabled=madvise" + speed + " cpuidle/cpu4/latency=20 cpuidle/cpu5/latency=20" + irqs + sysctls + rest, ""},
		{"benchmark", true, "thp/enabled=always" + speed + " cpufreq/policy4/min=3800000 cpuidle/cpu4/latency=5 cpuidle/cpu5/latency=5" + irqs + sysctls + dirty + rest, ""},
	} {
		env, job := node(t, c.cpufreq)
		p, err := conf.Default().Profile(c.name)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := New(ctx, env, p, job)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var skipped []string
		for _, s := range plan.Skipped {
			skipped = append(skipped, s.Key)
			if !errors.As(s.Reason, new(*setting.MissingError)) {
				t.Errorf("%s: %v", s.Key, s.Reason)
			}
		}
		if got := wishes(plan); got != c.want || strings.Join(skipped, " ") != c.skipped {
			t.Errorf("%s:\ngot  %s\nwant %s\nskipped %v", c.name, got, c.want, skipped)
		}
		if bench := c.name == "benchmark"; bench != (plan.DropCaches == "all") || bench != (plan.GPUClocks.SM.Word == "high") || bench != (plan.Compact.String() == "0-1") || !plan.NoSwap {
			t.Errorf("%s: %+v", c.name, plan)
		}
	}
}

func TestRefused(t *testing.T) {
	ctx := context.Background()
	for text, want := range map[string]string{
		"thp = \"always\"": "",
		"governor = { value = \"performance\", missing = \"refuse\" }":                         "governor: CPU frequency of CPUs 4-5: this machine has none",
		"khugepaged_defrag = \"off\"\nmissing = \"refuse\"":                                    "khugepaged_defrag: khugepaged defrag: this machine has none",
		"hugepages = \"2M:100\"":                                                               "",
		"hugepages = \"2M:1024\"":                                                              "hugepages: node 1: 2M:1024: pools of 2054 MiB: the site allows 50 % of the node's memory, 2048 MiB",
		"hugepages = { value = \"1G:1\", missing = \"refuse\" }":                               "hugepages: node 1: hugepages of 1048576 kB: this machine has none",
		"[profile.x.sysctl]\n\"vm.swappiness\" = 300":                                          "sysctl.vm.swappiness: sysctl vm.swappiness: 300: want 0 to 200",
		"[profile.x.sysctl]\n\"net.ipv4.ip_local_port_range\" = \"1 2\"":                       "",
		"missing = \"refuse\"\n[profile.x.sysctl]\n\"net.ipv4.ip_local_port_range\" = \"1 2\"": "sysctl.net.ipv4.ip_local_port_range: sysctl net.ipv4.ip_local_port_range: this machine has none",
	} {
		env, job := node(t, false)
		_, err := New(ctx, env, profile(t, "[profile.x]\n"+text+"\n"), job)
		if got := fmt.Sprint(err); want == "" && err != nil || !strings.HasPrefix(got, want) {
			t.Errorf("%s:\ngot  %s\nwant %s", text, got, want)
		}
		if want != "" && !errors.As(err, new(*RefusedError)) {
			t.Errorf("%s: %T", text, err)
		}
	}
}

func TestSharedNode(t *testing.T) {
	ctx := context.Background()
	for text, want := range map[string]string{
		"thp = \"always\"": "thp: it is the whole node's, and the reason",
		"thp = { value = \"always\", shared = \"allow\" }":           "",
		"drop_caches = \"page\"":                                     "drop_caches: it is the whole node's",
		"drop_caches = { value = \"page\", shared = \"allow\" }":     "",
		"compact_memory = \"on\"":                                    "compact_memory: it is the whole node's",
		"compact_memory = \"off\"":                                   "",
		"gpu_clocks = \"high\"\nswap = \"off\"\ngovernor = \"keep\"": "",
	} {
		env, job := node(t, false)
		job.Alone, job.WhyShared = false, errors.New("the reason")
		_, err := New(ctx, env, profile(t, "[profile.x]\n"+text+"\n"), job)
		if got := fmt.Sprint(err); want == "" && err != nil || want != "" && !strings.HasPrefix(got, want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Hugepages go where the GPUs are, beside those that are in use there.
func TestHugepages(t *testing.T) {
	ctx := context.Background()
	env, job := node(t, false)
	plan, err := New(ctx, env, profile(t, "[profile.x]\nhugepages = \"2M:100\"\n"), job)
	if got := wishes(plan); err != nil || got != "hugepages/node1/2048kB=103" || plan.Compact.String() != "1" {
		t.Errorf("%s, %v, compact %s", got, err, plan.Compact)
	}
	// Where the free memory is in pieces of that size already, nothing is compacted.
	blocks := []byte("Node 1, zone   Normal" + strings.Repeat(" 0", 9) + " 50 25\n")
	if err := os.WriteFile(env.Path("/proc/buddyinfo"), blocks, 0o600); err != nil {
		t.Fatal(err)
	}
	if page := os.Getpagesize(); page == 4096 {
		for value, want := range map[string]string{"2M:101": "", "2M:102": "1", "2M:1": ""} {
			if plan, err := New(ctx, env, profile(t, "[profile.x]\nhugepages = \""+value+"\"\n"), job); err != nil || plan.Compact.String() != want {
				t.Errorf("%s: %v, compact %q, want %q", value, err, plan.Compact, want)
			}
		}
	}
	// A pool that the site has made larger than it lets jobs make it.
	job.HugepagesPercent = 0
	if _, err := New(ctx, env, profile(t, "[profile.x]\nhugepages = \"2M:2\"\n"), job); !errors.As(err, new(*RefusedError)) {
		t.Errorf("2 where 1 is free: %v", err)
	}
	plan, err = New(ctx, env, profile(t, "[profile.x]\nhugepages = \"2M:1\"\n"), job)
	if got := wishes(plan); err != nil || got != "hugepages/node1/2048kB=4" {
		t.Errorf("%s, %v", got, err)
	}
	job.GPUs = []topology.GPU{{PCI: "0000:61:00.0"}}
	if _, err := New(ctx, env, profile(t, "[profile.x]\nhugepages = \"2M:100\"\n"), job); !errors.Is(err, errNowhere) {
		t.Errorf("a GPU of no known node: %v", err)
	}
	// Its interrupts stay where they are.
	plan, err = New(ctx, env, profile(t, "[profile.x]\nirqs = \"local\"\n"), job)
	if err != nil || len(plan.Wishes) > 0 {
		t.Errorf("%v, %v", plan.Wishes, err)
	}
}

// What is not known of the job's CPUs counts as all.
func TestUnknownCPUs(t *testing.T) {
	env, job := node(t, true)
	job.CPUs = idset.Set{}
	plan, err := New(context.Background(), env, profile(t, "[profile.x]\ngovernor = \"performance\"\nirqs = \"local\"\nmin_frequency = 2000\nidle_latency = \"none\"\n"), job)
	const want = "cpufreq/policy0/governor=performance cpufreq/policy4/governor=performance cpufreq/policy0/min=2000000 cpufreq/policy4/min=2000000 " +
		"cpuidle/cpu0/latency=n/a cpuidle/cpu1/latency=n/a cpuidle/cpu2/latency=n/a cpuidle/cpu3/latency=n/a cpuidle/cpu4/latency=n/a " +
		"cpuidle/cpu5/latency=n/a cpuidle/cpu6/latency=n/a cpuidle/cpu7/latency=n/a irq/0000:41:00.0/31/affinity=4-7 irq/0000:42:00.0/33/affinity=4-7"
	if got := wishes(plan); err != nil || got != want {
		t.Errorf("%v\ngot  %s\nwant %s", err, got, want)
	}
}

// What is about GPUs is left out of the plan for a job that has none, or refused.
func TestNoGPU(t *testing.T) {
	ctx := context.Background()
	env, job := node(t, false)
	job.GPUs = nil
	const keys = "hugepages = \"2M:1\"\nirqs = \"local\"\ngpu_clocks = \"high\"\n[profile.x.sysctl]\n\"vm.swappiness\" = 1\n"
	plan, err := New(ctx, env, profile(t, "[profile.x]\n"+keys), job)
	var skipped []string
	for _, s := range plan.Skipped {
		skipped = append(skipped, s.Key)
		if !errors.Is(s.Reason, errNoGPU) {
			t.Errorf("%s: %v", s.Key, s.Reason)
		}
	}
	if err != nil || wishes(plan) != "sysctl/vm.swappiness=1" || strings.Join(skipped, " ") != "hugepages irqs gpu_clocks" || !plan.Compact.Empty() || plan.GPUClocks.String() != "" {
		t.Errorf("%+v, %v", plan, err)
	}
	for _, key := range []string{"hugepages = \"2M:1\"", "irqs = \"local\"", "gpu_clocks = \"high\""} {
		refused := (*RefusedError)(nil)
		if _, err := New(ctx, env, profile(t, "[profile.x]\nmissing = \"refuse\"\n"+key+"\n"), job); !errors.As(err, &refused) || !errors.Is(err, errNoGPU) || !strings.HasPrefix(key, refused.Key) {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// A kernel that cannot drop caches or compact memory.
func TestNoActions(t *testing.T) {
	ctx := context.Background()
	env, job := node(t, false)
	for _, file := range []string{"/proc/sys/vm/drop_caches", "/sys/devices/system/node/node1/compact"} {
		if err := os.Remove(env.Path(file)); err != nil {
			t.Fatal(err)
		}
	}
	plan, err := New(ctx, env, profile(t, "[profile.x]\ndrop_caches = \"all\"\ncompact_memory = \"on\"\nhugepages = \"2M:7\"\n"), job)
	if err != nil || plan.DropCaches != "" || plan.Compact.String() != "0" || len(plan.Skipped) != 2 || len(plan.Wishes) != 1 {
		t.Errorf("%+v, %v", plan, err)
	}
	for _, key := range []string{"drop_caches = \"all\"", "compact_memory = \"on\""} {
		if _, err := New(ctx, env, profile(t, "[profile.x]\nmissing = \"refuse\"\n"+key+"\n"), job); !errors.As(err, new(*RefusedError)) || !errors.Is(err, setting.ErrUnsupported) {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// Two keys for one setting of the kernel's: the larger reserve, before what raises it.
func TestReserveTwice(t *testing.T) {
	ctx := context.Background()
	for reserve, want := range map[string]string{
		"50000": "sysctl/vm.min_free_kbytes=67584 thp/enabled=always", "90000": "sysctl/vm.min_free_kbytes=90000 thp/enabled=always",
	} {
		env, job := node(t, false)
		if err := os.WriteFile(env.Path("/proc/sys/vm/min_free_kbytes"), []byte("3000\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(env.Path("/proc/zoneinfo"), []byte(strings.Repeat("Node 0, zone   Normal\n        managed  100000000\n", 3)), 0o600); err != nil {
			t.Fatal(err)
		}
		plan, err := New(ctx, env, profile(t, "[node]\nsysctls = [\"vm.min_free_kbytes\"]\n[profile.training.sysctl]\n[profile.inference.sysctl]\n[profile.benchmark]\n[profile.x]\nthp = \"always\"\n[profile.x.sysctl]\n\"vm.min_free_kbytes\" = "+reserve+"\n"), job)
		if got := wishes(plan); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", reserve, got, err, want)
		}
	}
}
