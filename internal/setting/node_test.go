package setting_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gputune/internal/idset"
	"gputune/internal/ledger"
	"gputune/internal/setting"
)

// madeUp is a made-up kernel in a folder, with a ledger in it.
type madeUp struct {
	t      *testing.T
	root   string
	env    *setting.Environment
	ledger *ledger.Ledger
}

const (
	policy = "/sys/devices/system/cpu/cpufreq/policy"
	pool   = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/"
	swap   = "/sys/fs/cgroup/system.slice/node1_slurmstepd.scope/job_7/memory.swap.max"
)

func makeUp(t *testing.T) *madeUp {
	t.Helper()
	m := &madeUp{t: t, root: t.TempDir()}
	files := map[string]string{
		"/proc/sys/vm/swappiness": "60", "/proc/sys/vm/dirty_ratio": "20", "/proc/sys/vm/dirty_bytes": "0", "/proc/sys/vm/min_free_kbytes": "67584",
		"/proc/sys/vm/dirty_background_ratio": "10", "/proc/sys/vm/dirty_background_bytes": "0", "/proc/sys/vm/overcommit_ratio": "50", "/proc/sys/vm/overcommit_kbytes": "0",
		"/proc/sys/net/ipv4/ip_local_port_range":                      "32768\t60999",
		"/proc/self/mountinfo":                                        "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
		"/sys/devices/system/cpu/online":                              "0-7",
		"/sys/kernel/mm/transparent_hugepage/enabled":                 "always [madvise] never",
		"/sys/bus/pci/devices/0000:21:00.0/msi_irqs/41":               "msix",
		"/sys/bus/pci/devices/0000:21:00.0/msi_irqs/42":               "msix",
		"/sys/bus/pci/devices/0000:22:00.0/irq":                       "11",
		"/sys/bus/pci/devices/0000:23:00.0/irq":                       "0",
		"/proc/irq/42/smp_affinity_list":                              "0-7",
		"/proc/irq/41/smp_affinity_list":                              "0-7",
		"/proc/irq/11/smp_affinity_list":                              "0-7",
		"/sys/devices/system/node/node1/meminfo":                      "Node 1 MemTotal: 1048576 kB\nNode 1 MemFree: 409600 kB\nNode 1 Active(file): 4096 kB\nNode 1 Inactive(file): 4096 kB\nNode 1 SReclaimable: 2048 kB",
		pool + "nr_hugepages":                                         "10",
		pool + "free_hugepages":                                       "7",
		swap:                                                          "max",
		"/sys/devices/system/cpu/cpu1/power/pm_qos_resume_latency_us": "0",
	}
	for _, n := range []string{"0", "4", "12"} {
		files[policy+n+"/affected_cpus"] = map[string]string{"0": "0 1 2 3", "4": "4 5", "12": "6 7"}[n]
		files[policy+n+"/scaling_governor"] = "powersave"
		files[policy+n+"/scaling_available_governors"] = "performance powersave"
		files[policy+n+"/scaling_min_freq"] = "800000"
		files[policy+n+"/scaling_max_freq"] = "3800000"
		files[policy+n+"/cpuinfo_min_freq"] = "800000"
		files[policy+n+"/energy_performance_preference"] = "balance_performance"
		files[policy+n+"/energy_performance_available_preferences"] = "default performance balance_performance power"
	}
	for file, text := range files {
		m.write(file, text+"\n")
	}
	m.env = setting.NewEnvironment(m.root, nil)
	var err error
	m.ledger, err = ledger.Open(ledger.Dir, ledger.Options{
		Root: m.root, BootID: "boot", Resolve: func(key string) (setting.Setting, error) { return setting.Parse(m.env, key) },
	})
	m.must(err)
	return m
}

func (m *madeUp) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *madeUp) write(file, text string) {
	m.t.Helper()
	file = filepath.Join(m.root, file)
	m.must(os.MkdirAll(filepath.Dir(file), 0o700))
	m.must(os.WriteFile(file, []byte(text), 0o600))
}

func (m *madeUp) read(file string) string {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(m.root, file))
	m.must(err)
	line, _, _ := strings.Cut(string(text), "\n")
	return line
}

func (m *madeUp) check(key, value string) (string, error) {
	m.t.Helper()
	s, err := setting.Parse(m.env, key)
	m.must(err)
	return s.Check(context.Background(), value)
}

func (m *madeUp) change(key, value string) ledger.Change {
	m.t.Helper()
	s, err := setting.Parse(m.env, key)
	m.must(err)
	return ledger.Change{Setting: s, Value: value}
}

func (m *madeUp) swapKey() string {
	m.t.Helper()
	key, err := setting.SwapKey("/system.slice/node1_slurmstepd.scope/job_7")
	m.must(err)
	return key
}

func TestNodeSettingsCheck(t *testing.T) {
	m := makeUp(t)
	for _, c := range []struct{ key, value, want string }{
		{"sysctl/vm.swappiness", "010", "10"},
		{"sysctl/vm.swappiness", "201", "! sysctl vm.swappiness: 201: want 0 to 200"},
		{"sysctl/vm.swappiness", "1 2", "! sysctl vm.swappiness: 1 2: want 0 to 200"},
		{"sysctl/vm.swappiness", "1\n2", "! sysctl vm.swappiness: 1?2: want numbers or one word"},
		{"sysctl/net.ipv4.ip_local_port_range", " 1024\t  65000 ", "1024 65000"},
		{"sysctl/net.ipv4.ip_local_port_range", "2000 1000", "! sysctl net.ipv4.ip_local_port_range: 2000 1000: want two numbers from 1 to 65535, the lower one first"},
		{"sysctl/vm.dirty", "ratio=30", "ratio=30"},
		{"sysctl/vm.dirty", "bytes=100", "! sysctl vm.dirty: bytes=100: want ratio=0 to ratio=100, or bytes= and two pages or more"},
		{"sysctl/vm.dirty", "ratio=101", "! sysctl vm.dirty: ratio=101: want ratio=0"},
		{"sysctl/vm.dirty", "kbytes=8192", "! sysctl vm.dirty: kbytes=8192: want ratio=0"},
		{"sysctl/vm.dirty_background", "bytes=4096", "bytes=4096"},
		{"sysctl/vm.dirty_background", "bytes=0", "! sysctl vm.dirty_background: bytes=0: want ratio=0 to ratio=100, or bytes= and 1 or more"},
		{"sysctl/vm.overcommit", "ratio=150", "ratio=150"},
		{"sysctl/vm.overcommit", "kbytes=1000000", "kbytes=1000000"},
		{"sysctl/vm.overcommit", "bytes=1000000", "! sysctl vm.overcommit: bytes=1000000: want ratio=0 to ratio=2147483647, or kbytes= and 1 or more"},
		{"thp/enabled", "always", "always"},
		{"thp/enabled", "on", "! transparent hugepages: enabled: on: supported always, madvise, never"},
		{"thp/defrag", "always", "! transparent hugepages: defrag: this machine has none (/sys/kernel/mm/transparent_hugepage/defrag)"},
		{"hugepages/node1/2048kB", "12", "12"},
		{"hugepages/node1/2048kB", "600", "! node 1: hugepages of 2048 kB: 600: the node has 1024 MiB"},
		{"hugepages/node1/2048kB", "300", "! node 1: hugepages of 2048 kB: 300: 410 MiB of the node are free or cached files"},
		{"hugepages/node1/2048kB", "-1", "! node 1: hugepages of 2048 kB: -1: want a number"},
		{"hugepages/node1/1048576kB", "1", "! node 1: hugepages of 1048576 kB: this machine has none (/sys/devices/system/node/node1/hugepages/hugepages-1048576kB/nr_hugepages); the node has sizes 2048kB"},
		{"cpufreq/policy4/governor", "performance", "performance"},
		{"cpufreq/policy4/governor", "ondemand", "! CPU frequency policy4: governor: ondemand: supported performance, powersave"},
		{"cpufreq/policy5/governor", "performance", "! CPU frequency policy5: governor: this machine has none"},
		{"cpufreq/policy0/energy", "200", "200"},
		{"cpufreq/policy0/energy", "256", "! CPU frequency policy0: energy preference: 256: supported default, performance, balance_performance, power, or 0 to 255"},
		{"cpufreq/policy0/min", "max", "3800000"},
		{"cpufreq/policy0/min", "3900000", "! CPU frequency policy0: lowest frequency: 3900000: supported 800000–3800000 kHz, or max"},
		{"cpuidle/cpu1/latency", "n/a", "n/a"},
		{"cpuidle/cpu1/latency", "2147483647", "! CPU 1: idle latency: 2147483647: want µs, 0 for any, n/a for none"},
		{"irq/0000:21:00.0/42/affinity", "1,0,4", "0-1,4"},
		{"irq/0000:21:00.0/42/affinity", "64", "! interrupt 42 of 0000:21:00.0: CPUs 64: online are 0-7"},
		{"irq/0000:21:00.0/42/affinity", "", "! interrupt 42 of 0000:21:00.0: CPUs : want a list of CPUs that are online, as 0-3,8"},
		{"irq/0000:21:00.0/11/affinity", "1", "! interrupt 11 of 0000:21:00.0: not there"},
		{"irq/0000:22:00.0/11/affinity", "1", "1"},
		{m.swapKey(), "0", "0"},
		{m.swapKey(), "5000", "4096"},
		{m.swapKey(), "1G", "! cgroup /system.slice/node1_slurmstepd.scope/job_7: swap: 1G: want bytes, or max"},
	} {
		got, err := m.check(c.key, c.value)
		want, refused := strings.CutPrefix(c.want, "! ")
		switch {
		case refused && (err == nil || !strings.HasPrefix(err.Error(), want)):
			t.Errorf("%s: %q is %q, %v, want an error with %q", c.key, c.value, got, err, want)
		case !refused && (err != nil || got != want):
			t.Errorf("%s: %q is %q, %v, want %q", c.key, c.value, got, err, want)
		}
	}
	for _, key := range []string{
		"sysctl/vm", "sysctl/vm..x", "sysctl/vm.dirty_ratio", "sysctl/vm.dirty_background_bytes", "sysctl/vm.overcommit_ratio", "sysctl/vm.overcommit_kbytes",
		"sysctl/vm.nr_hugepages", "sysctl/vm.nr_hugepages_mempolicy", "sysctl/vm.x.", "hugepages/1/2048kB", "hugepages/node01/2048kB",
		"hugepages/node1/2M", "cpufreq/cpu0/governor", "cpuidle/cpu-1/latency", "irq/0000:21:00.0/x/affinity", "irq/x/42/affinity/y",
		"cgroup/system.slice/swap.max", "cgroup/:2F..:2Fx/swap.max", "cgroup/:2Fx:00/swap.max", "cgroup/:2/swap.max", "cgroup/:ZZ/swap.max",
	} {
		if _, err := setting.Parse(m.env, key); !errors.Is(err, setting.ErrUnknownKey) {
			t.Errorf("%s: %v", key, err)
		}
	}
}

func TestNodeSettingsThroughTheLedger(t *testing.T) {
	m := makeUp(t)
	ctx := context.Background()
	was := map[string]string{}
	set := map[string]string{
		"/proc/sys/net/ipv4/ip_local_port_range": "1024 65000", policy + "0/scaling_governor": "performance", policy + "0/energy_performance_preference": "performance",
		policy + "0/scaling_min_freq": "3800000", "/sys/devices/system/cpu/cpu1/power/pm_qos_resume_latency_us": "20", "/proc/irq/42/smp_affinity_list": "2-3",
		pool + "nr_hugepages": "20", swap: "0", "/proc/irq/11/smp_affinity_list": "4",
	}
	for file := range set {
		was[file] = m.read(file)
	}
	was["/proc/sys/net/ipv4/ip_local_port_range"] = "32768 60999" // the kernel itself writes the tab
	_, err := m.ledger.Apply(ctx, "7", []ledger.Change{
		m.change("sysctl/net.ipv4.ip_local_port_range", "1024 65000"), m.change("cpufreq/policy0/energy", "performance"), m.change("cpufreq/policy0/governor", "performance"),
		m.change("cpufreq/policy0/min", "max"), m.change("cpuidle/cpu1/latency", "20"), m.change("irq/0000:21:00.0/42/affinity", "2-3"),
		m.change("irq/0000:22:00.0/11/affinity", "4"), m.change("hugepages/node1/2048kB", "20"), m.change(m.swapKey(), "0"),
	})
	m.must(err)
	for file, want := range set {
		if got := m.read(file); got != want {
			t.Errorf("%s has %q, want %q", file, got, want)
		}
	}
	_, err = m.ledger.Release(ctx, "7")
	m.must(err)
	for file, want := range was {
		if got := m.read(file); got != want {
			t.Errorf("%s has %q, want %q", file, got, want)
		}
	}
}

// TestGone: an interrupt that its driver gave back and a cgroup that ended with its
// job have nothing to put back, also when the number is another device's now.
func TestGone(t *testing.T) {
	m := makeUp(t)
	ctx := context.Background()
	_, err := m.ledger.Apply(ctx, "7", []ledger.Change{
		m.change("irq/0000:21:00.0/42/affinity", "2-3"), m.change("irq/0000:21:00.0/41/affinity", "2-3"), m.change(m.swapKey(), "0"), m.change("sysctl/vm.swappiness", "1"),
	})
	m.must(err)
	m.must(os.Remove(filepath.Join(m.root, "/sys/bus/pci/devices/0000:21:00.0/msi_irqs/42")))
	m.must(os.RemoveAll(filepath.Join(m.root, "/proc/irq/41")))
	m.must(os.RemoveAll(filepath.Join(m.root, filepath.Dir(swap))))
	held, err := m.ledger.Held(ctx)
	m.must(err)
	for _, h := range held {
		if isGone := h.Key != "sysctl/vm.swappiness"; h.Forgotten != isGone || h.Drift || h.Err != nil {
			t.Errorf("%+v", h)
		}
	}
	report, err := m.ledger.Release(ctx, "7")
	m.must(err)
	for _, o := range report.Outcomes {
		want := ledger.Forgotten
		if o.Key == "sysctl/vm.swappiness" {
			want = ledger.Restored
		}
		if o.Action != want {
			t.Errorf("%s: %s, want %s", o.Key, o.Action, want)
		}
	}
	if is := m.read("/proc/irq/42/smp_affinity_list"); is != "2-3" {
		t.Errorf("another device's interrupt was changed to %s", is)
	}
	if held, err := m.ledger.Held(ctx); err != nil || len(held) > 0 {
		t.Errorf("left: %v, %v", held, err)
	}
}

// TestLost: CPUs that a machine has lost, and the policies of their frequency, have
// nothing to put back.
func TestLost(t *testing.T) {
	m := makeUp(t)
	ctx := context.Background()
	_, err := m.ledger.Apply(ctx, "7", []ledger.Change{
		m.change("cpufreq/policy0/energy", "performance"), m.change("cpufreq/policy0/governor", "performance"), m.change("cpufreq/policy0/min", "max"),
		m.change("cpuidle/cpu1/latency", "20"),
	})
	m.must(err)
	m.must(os.RemoveAll(filepath.Join(m.root, policy+"0")))
	m.must(os.RemoveAll(filepath.Join(m.root, "/sys/devices/system/cpu/cpu1")))
	report, err := m.ledger.Release(ctx, "7")
	m.must(err)
	for _, o := range report.Outcomes {
		if o.Action != ledger.Forgotten {
			t.Errorf("%s: %s", o.Key, o.Action)
		}
	}
	// A file that the kernel has no more, of a thing that is there, is a fault.
	m = makeUp(t)
	_, err = m.ledger.Apply(ctx, "7", []ledger.Change{m.change("cpuidle/cpu1/latency", "20")})
	m.must(err)
	m.must(os.Remove(filepath.Join(m.root, "/sys/devices/system/cpu/cpu1/power/pm_qos_resume_latency_us")))
	if _, err := m.ledger.Release(ctx, "7"); !errors.Is(err, setting.ErrUnsupported) {
		t.Error(err)
	}
}

// TestEnergyNumber: the kernel shows some numbers as the words that they stand for.
func TestEnergyNumber(t *testing.T) {
	m := makeUp(t)
	s, err := setting.Parse(m.env, "cpufreq/policy0/energy")
	m.must(err)
	if !s.Traits().Loose {
		t.Error("what the kernel makes of 128 is not taken for what was set")
	}
	m.must(s.Write(context.Background(), "128"))
}

func TestFrequencyPolicies(t *testing.T) {
	m := makeUp(t)
	for cpus, want := range map[string]string{"0": "policy0", "3,7": "policy0 policy12", "0-7": "policy0 policy4 policy12"} {
		got, err := setting.FrequencyPolicies(m.env, idset.MustParse(cpus))
		if strings.Join(got, " ") != want || err != nil {
			t.Errorf("%s: %v, %v, want %s", cpus, got, err, want)
		}
	}
	missing := (*setting.MissingError)(nil)
	if _, err := setting.FrequencyPolicies(m.env, idset.Of(9)); !errors.As(err, &missing) {
		t.Error(err)
	}
	m.must(os.RemoveAll(filepath.Join(m.root, filepath.Dir(policy))))
	if _, err := setting.FrequencyPolicies(m.env, idset.Of(0)); !errors.As(err, &missing) || !errors.Is(err, setting.ErrUnsupported) {
		t.Error(err)
	}
}

// TestOfflinePolicies: a policy whose CPUs are all offline, which is there and
// answers EBUSY, is no policy of any CPU.
func TestOfflinePolicies(t *testing.T) {
	const rootVariable = "SETTING_TEST_ROOT"
	if root := os.Getenv(rootVariable); root != "" {
		policies, err := setting.FrequencyPolicies(setting.NewEnvironment(root, nil), idset.Range(0, 7))
		fmt.Println(policies, err)
		return
	}
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("no strace, by which a file answers as the kernel's do")
	}
	m := makeUp(t)
	c := exec.CommandContext(t.Context(), strace, "-f", "-o", "/dev/null", "-P", filepath.Join(m.root, policy+"4/affected_cpus"),
		"-e", "inject=read:error=EBUSY", os.Args[0], "-test.run=^TestOfflinePolicies$")
	c.Env = append(os.Environ(), rootVariable+"="+m.root)
	output, err := c.CombinedOutput()
	if strings.Contains(string(output), "ptrace") {
		t.Skipf("no program can be traced here: %s", output)
	}
	if err != nil || !strings.Contains(string(output), "[policy0 policy12] <nil>") {
		t.Errorf("%v, %s", err, output)
	}
}

func TestInterruptsOf(t *testing.T) {
	m := makeUp(t)
	for pci, want := range map[string]int{"0000:21:00.0": 2, "0000:22:00.0": 1, "0000:23:00.0": 0} {
		list, err := setting.Interrupts(m.env, pci)
		movable, managed, err2 := setting.MovableInterrupts(m.env, pci)
		if len(list) != want || len(movable) != want || len(managed) > 0 || err != nil || err2 != nil {
			t.Errorf("%s: %v, %v, %v, %v", pci, list, movable, err, err2)
		}
	}
	if _, err := setting.Interrupts(m.env, "0000:24:00.0"); !errors.Is(err, setting.ErrGone) {
		t.Error(err)
	}
	if _, err := setting.Interrupts(m.env, "../x"); !errors.Is(err, setting.ErrUnknownKey) {
		t.Error(err)
	}
}

func TestHugepagesWish(t *testing.T) {
	m := makeUp(t)
	// 3 of the 10 pages are in use.
	for count, want := range map[uint64]string{1: "10", 7: "10", 8: "11", 100: "103"} {
		wish, err := setting.Hugepages(m.env, 1, 2048, count)
		if wish != (setting.Wish{Key: "hugepages/node1/2048kB", Value: want}) || err != nil {
			t.Errorf("%d: %v, %v", count, wish, err)
		}
	}
	// Of the 7 free ones, 5 are promised to programs that have not touched them.
	m.write("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "5\n")
	for count, want := range map[uint64]string{2: "10", 3: "11"} {
		if wish, err := setting.Hugepages(m.env, 1, 2048, count); wish.Value != want || err != nil {
			t.Errorf("%d: %v, %v", count, wish, err)
		}
	}
	// More than are free are another node's.
	m.write("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "500\n")
	if wish, err := setting.Hugepages(m.env, 1, 2048, 1); wish.Value != "11" || err != nil {
		t.Errorf("%v, %v", wish, err)
	}
	if _, err := setting.Hugepages(m.env, 1, 64, 1); err == nil || !strings.HasSuffix(err.Error(), "the node has sizes 2048kB") {
		t.Error(err)
	}
}

// TestTHPReserve: vm.min_free_kbytes is raised first where the kernel would change
// it for good.
func TestTHPReserve(t *testing.T) {
	for _, c := range []struct{ enabled, word, present, want string }{
		{"always [madvise] never", "always", "10000", "22528"}, // 11 blocks of 2 MiB in one zone
		{"always [madvise] never", "always", "22528", ""},
		{"always [madvise] never", "madvise", "10000", ""},      // nothing is written
		{"always madvise [never]", "always", "22528", "129526"}, // √(1000 GiB · 16), in KiB
		{"[always] madvise never", "never", "129525", "129526"},
		{"[always] madvise never", "never", "129526", ""},
	} {
		m := makeUp(t)
		m.write("/sys/kernel/mm/transparent_hugepage/enabled", c.enabled+"\n")
		m.write("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "2097152\n")
		m.write("/proc/zoneinfo", "Node 0, zone   Normal\n        managed  262144000\nNode 0, zone  Movable\n        managed  1000\n")
		m.write("/proc/sys/vm/min_free_kbytes", c.present+"\n")
		wishes, err := setting.THP(m.env, c.word)
		m.must(err)
		want := []setting.Wish{{Key: "thp/enabled", Value: c.word}}
		if c.want != "" {
			want = append([]setting.Wish{{Key: "sysctl/vm.min_free_kbytes", Value: c.want}}, want...)
		}
		if !slices.Equal(wishes, want) {
			t.Errorf("%+v: %v, want %v", c, wishes, want)
		}
	}
}

func TestSwapKey(t *testing.T) {
	for _, path := range []string{"/a", `/system.slice/system-foo\x2dbar.slice/x@1:2`, "/.hidden", "/"} {
		key, err := setting.SwapKey(path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if s, err := setting.Parse(setting.NewEnvironment(t.TempDir(), nil), key); err != nil || s.Key() != key {
			t.Errorf("%s: %s: %v", path, key, err)
		}
	}
	for _, path := range []string{"", "a", "/a/../b", "/a/", "/" + strings.Repeat("x", 250)} {
		if key, err := setting.SwapKey(path); err == nil {
			t.Errorf("%s: %s", path, key)
		}
	}
}

func TestFreeBlocks(t *testing.T) {
	root := t.TempDir()
	env := setting.NewEnvironment(root, nil)
	if got := setting.FreeBlocks(env, 0, 2048); got != 0 {
		t.Errorf("%d where nothing tells", got)
	}
	const text = "Node 0, zone      DMA      1      1      1      1      1      1      1      1      0      1      2 \n" +
		"Node 0, zone   Normal    900    800    700    600    500    400    300    200    100      5      7 \n" +
		"Node 1, zone   Normal      9      0      0      0      0      0      0      0      0      0      0 \n"
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "proc"), 0o700), os.WriteFile(filepath.Join(root, "proc/buddyinfo"), []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	page := uint64(os.Getpagesize()) >> 10
	for _, c := range []struct {
		node       int
		size, want uint64
	}{{0, page << 9, 1 + 2*2 + 5 + 2*7}, {0, page << 10, 2 + 7}, {0, page << 11, 0}, {1, page << 9, 0}, {1, page, 9}, {2, page, 0}, {0, 0, 0}} {
		if got := setting.FreeBlocks(env, c.node, c.size); got != c.want {
			t.Errorf("node %d, %d KiB: %d, want %d", c.node, c.size, got, c.want)
		}
	}
}
