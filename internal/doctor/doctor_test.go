package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gputune/conf"
	"gputune/internal/ledger"
	"gputune/tests/machines"
)

// site is a node on which nothing is wrong: two GPUs and two NICs, Slurm 24.11.
type site struct {
	t    *testing.T
	root string
}

const pluginPath = "/usr/lib/gputune/spank_gputune.so"

var healthy = map[string]string{
	"/etc/slurm/slurm.conf": `ClusterName=tux
TaskPlugin=task/affinity,task/cgroup
GresTypes=gpu
PrologFlags=Alloc,Contain
Prolog=/usr/sbin/gputune-prolog
Epilog=/etc/slurm/epilog.sh
PropagateResourceLimitsExcept=MEMLOCK
NodeName=tux1 Gres=gpu:2
`,
	"/etc/slurm/epilog.sh":                     "#!/bin/sh\nexec /usr/sbin/gputune-epilog\n",
	"/etc/slurm/gres.conf":                     "Name=gpu File=/dev/nvidia[0-1]\n",
	"/etc/slurm/cgroup.conf":                   "ConstrainDevices=yes\nConstrainCores=yes\n",
	"/etc/slurm/plugstack.conf":                "# ours\ninclude plugstack.conf.d/*\n",
	"/etc/slurm/plugstack.conf.d/gputune.conf": "optional " + pluginPath + " default=on\n",

	"/sys/fs/cgroup/cgroup.controllers":                     "cpuset cpu io memory pids\n",
	"/proc/811/comm":                                        "slurmd\n",
	"/proc/811/limits":                                      "Limit                     Soft Limit           Hard Limit           Units\nMax locked memory         unlimited            unlimited            bytes\n",
	"/proc/900/comm":                                        "nvidia-persiste\n",
	"/sys/module/nvidia_peermem/refcnt":                     "0\n",
	"/sys/kernel/mm/transparent_hugepage/enabled":           "always [madvise] never\n",
	"/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
	"/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
}

func newSite(t *testing.T) site {
	t.Helper()
	root, remove, err := machines.Scratch()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := remove(); err != nil {
			t.Error(err)
		}
	})
	description, err := machines.Get("epyc-nps1")
	if err != nil {
		t.Fatal(err)
	}
	if err := description.Render(root); err != nil {
		t.Fatal(err)
	}
	s := site{t, root}
	for path, text := range healthy {
		s.write(path, text)
	}
	for i, gpu := range description.GPUs {
		s.write("/sys/bus/pci/devices/"+gpu.PCI+"/current_link_width", "16\n")
		s.write("/sys/bus/pci/devices/"+gpu.PCI+"/max_link_width", "16\n")
		s.write("/sys/bus/pci/devices/"+gpu.PCI+"/current_link_speed", "32.0 GT/s PCIe\n")
		s.write("/sys/bus/pci/devices/"+gpu.PCI+"/max_link_speed", "32.0 GT/s PCIe\n")
		s.write(fmt.Sprintf("/sys/bus/pci/devices/%s/msi_irqs/%d", gpu.PCI, 40+i), "msix\n")
		cpus, _, _ := strings.Cut(description.Nodes[i].CPUs, "-")
		s.write(fmt.Sprintf("/proc/irq/%d/effective_affinity_list", 40+i), cpus+"\n")
	}
	s.plugin("0x180b05") // 24.11.5
	return s
}

func (s site) write(path, text string) {
	s.t.Helper()
	path = filepath.Join(s.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

func (s site) change(path, old, replacement string) {
	s.t.Helper()
	content, err := os.ReadFile(filepath.Join(s.root, path))
	if err != nil || !strings.Contains(string(content), old) {
		s.t.Fatalf("%s: %v, %q has no %q", path, err, content, old)
	}
	s.write(path, strings.ReplaceAll(string(content), old, replacement))
}

func (s site) remove(path string) {
	s.t.Helper()
	if err := os.RemoveAll(filepath.Join(s.root, path)); err != nil {
		s.t.Fatal(err)
	}
}

// plugin builds a library with the one variable that is looked at.
func (s site) plugin(version string) {
	s.t.Helper()
	source := filepath.Join(s.t.TempDir(), "plugin.c")
	if err := os.WriteFile(source, []byte("const unsigned int before = 7, plugin_version = "+version+";\n"), 0o644); err != nil {
		s.t.Fatal(err)
	}
	target := filepath.Join(s.root, pluginPath)
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if output, err := exec.CommandContext(s.t.Context(), "cc", "-shared", "-o", target, source).CombinedOutput(); err != nil {
		s.t.Fatalf("%v\n%s", err, output)
	}
}

// look returns the findings that are not ok.
func (s site) look(edit func(*Host)) (wrong []Finding) {
	s.t.Helper()
	h, err := Open(s.root, conf.Default(), nil, func(name string) (string, bool) { return "tux1", name == "SLURMD_NODENAME" })
	if err != nil {
		s.t.Fatal(err)
	}
	h.Release = func(context.Context) (string, error) { return "24.11", nil }
	if edit != nil {
		edit(h)
	}
	for _, finding := range Run(s.t.Context(), h) {
		if finding.Level != OK {
			wrong = append(wrong, finding)
		} else if finding.Text == "" || finding.Do != "" {
			s.t.Errorf("%+v", finding)
		}
	}
	return wrong
}

func TestNothingIsWrong(t *testing.T) {
	if wrong := newSite(t).look(nil); len(wrong) > 0 {
		t.Errorf("got %+v", wrong)
	}
}

// Each thing that can be wrong is found, alone, and with what to do.
func TestWhatIsWrong(t *testing.T) {
	s := newSite(t)
	const conf = "/etc/slurm/slurm.conf"
	found, err := filepath.Glob(filepath.Join(s.root, "/sys/bus/pci/devices/*/msi_irqs/40"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%v, %v", found, err)
	}
	device := strings.TrimPrefix(filepath.Dir(filepath.Dir(found[0])), s.root) + "/"
	for name, c := range map[string]struct {
		damage func()
		edit   func(*Host)
		want   []string // "check level: part of the text"
	}{
		"a broken gputune.toml": {nil, func(h *Host) { h.Config = errors.New("line 3") }, []string{"configuration bad: line 3"}},
		"no slurm.conf":         {func() { s.remove(conf) }, nil, []string{"slurm.conf bad: /etc/slurm/slurm.conf is not there"}},
		"no plugin line":        {func() { s.remove("/etc/slurm/plugstack.conf.d") }, nil, []string{"plugstack bad: does not name"}},
		"no plugstack.conf":     {func() { s.remove("/etc/slurm/plugstack.conf") }, nil, []string{"plugstack bad: no such file"}},
		"required":              {func() { s.change("/etc/slurm/plugstack.conf.d/gputune.conf", "optional", "required") }, nil, []string{"plugstack bad: is required"}},
		"no plugin":             {func() { s.remove(pluginPath) }, nil, []string{"plugstack bad: no such file"}},
		"no library":            {func() { s.write(pluginPath, "text") }, nil, []string{"plugstack bad: spank_gputune.so: is no library"}},
		"another release":       {func() { s.plugin("0x160500") }, nil, []string{"plugstack bad: is for Slurm 22.05, Slurm is 24.11"}},
		"an unknown release": {nil, func(h *Host) {
			h.Release = func(context.Context) (string, error) { return "", errors.New("no slurmd") }
		}, []string{"plugstack warn: no slurmd"}},
		"a relative path":    {func() { s.change("/etc/slurm/plugstack.conf.d/gputune.conf", "/usr/lib/gputune/", "") }, nil, []string{"plugstack warn: is searched for"}},
		"no Prolog":          {func() { s.change(conf, "Prolog=/usr/sbin/gputune-prolog\n", "") }, nil, []string{"prolog bad: Prolog is not set"}},
		"another Epilog":     {func() { s.write("/etc/slurm/epilog.sh", "#!/bin/sh\n") }, nil, []string{"prolog warn: does not name gputune-epilog"}},
		"no PrologFlags":     {func() { s.change(conf, "Alloc,Contain", "X11") }, nil, []string{"prolog bad: lacks Alloc"}},
		"no task/cgroup":     {func() { s.change(conf, ",task/cgroup", "") }, nil, []string{"task plugins bad: without task/cgroup"}},
		"no task/affinity":   {func() { s.change(conf, "task/affinity,", "") }, nil, []string{"task plugins warn: without task/affinity"}},
		"their order":        {func() { s.change(conf, "task/affinity,task/cgroup", "task/cgroup,task/affinity") }, nil, []string{"task plugins warn: before task/cgroup"}},
		"devices free":       {func() { s.change("/etc/slurm/cgroup.conf", "ConstrainDevices=yes", "") }, nil, []string{"constraints warn: ConstrainDevices"}},
		"cores free":         {func() { s.change("/etc/slurm/cgroup.conf", "ConstrainCores=yes", "") }, nil, []string{"constraints warn: ConstrainCores"}},
		"cgroup v1":          {func() { s.remove("/sys/fs/cgroup") }, nil, []string{"cgroup warn: no cgroup v2"}},
		"no cpuset":          {func() { s.write("/sys/fs/cgroup/cgroup.controllers", "cpu io\n") }, nil, []string{"cgroup warn: lacks the cpuset"}},
		"memlock":            {func() { s.change("/proc/811/limits", "unlimited  ", "65536      ") }, nil, []string{"memlock bad: may lock 65536 bytes"}},
		"no slurmd":          {func() { s.remove("/proc/811") }, nil, []string{"memlock warn: slurmd does not run"}},
		"propagated":         {func() { s.change(conf, "Except=MEMLOCK", "Except=CORE") }, nil, []string{"memlock warn: tasks get the limit"}},
		"propagated by name": {func() { s.change(conf, "Except=MEMLOCK", "=MEMLOCK,CORE") }, nil, []string{"memlock warn: tasks get the limit"}},
		"a strange gres":     {func() { s.change("/etc/slurm/gres.conf", "[0-1]", "[0,5]") }, nil, []string{"gres bad: gres index 1"}},
		"tuned":              {func() { s.process("70", "tuned") }, nil, []string{"services warn: tuned runs (pid 70) and changes sysctls"}},
		"power profiles":     {func() { s.process("70", "power-profiles-") }, nil, []string{"services warn: power-profiles runs"}},
		"irqbalance and DCGM": {
			func() { s.process("70", "irqbalance"); s.process("71", "nv-hostengine") }, nil,
			[]string{"services warn: irqbalance runs", "services warn: DCGM runs"},
		},
		"a drifted value": {nil, func(h *Host) {
			h.Held = func(context.Context) ([]ledger.Holding, error) {
				return []ledger.Holding{{Key: "sysctl/vm.swappiness", Job: "7", Set: "1", Current: "33", Drift: true}, {Key: "thp/enabled", Job: "7"}}, nil
			}
		}, []string{"settings warn: sysctl/vm.swappiness: job 7 has set 1, and somebody else 33 since"}},
		"nobody's ledger": {nil, func(h *Host) {
			h.Held = func(context.Context) ([]ledger.Holding, error) { return nil, fs.ErrPermission }
		}, []string{"settings warn: cannot be read"}},
		"no persistenced": {func() { s.remove("/proc/900") }, nil, []string{"services warn: nvidia-persistenced does not run"}},
		"no peermem":      {func() { s.remove("/sys/module/nvidia_peermem") }, nil, []string{"peermem warn: is not loaded"}},
		"a narrow link":   {func() { s.write(device+"current_link_width", "8\n") }, nil, []string{"pcie bad: link of 8 lanes, it can have 16"}},
		"a slow link":     {func() { s.write(device+"current_link_speed", "2.5 GT/s PCIe\n") }, nil, []string{"pcie warn: at 2.5 GT/s, it can have 32"}},
		"a far interrupt": {func() { s.write("/proc/irq/40/effective_affinity_list", "127\n") }, nil, []string{"interrupts warn: far away, by cpus 127"}},
		"no hugepages":    {func() { s.change("/sys/kernel/mm/transparent_hugepage/enabled", "[madvise] never", "madvise [never]") }, nil, []string{"hugepages warn: are off"}},
		"powersave":       {func() { s.write("/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave\n") }, nil, []string{"governor warn: performance, powersave"}},
	} {
		s.t = t
		if c.damage != nil {
			c.damage()
		}
		wrong := s.look(c.edit)
		var got []string
		for _, finding := range wrong {
			got = append(got, fmt.Sprintf("%s %s: %s", finding.Check, finding.Level, finding.Text))
			if finding.Do == "" && name != "an unknown release" {
				t.Errorf("%s: %+v says nothing to do", name, finding)
			}
		}
		matches := len(got) == len(c.want)
		for i := range min(len(got), len(c.want)) {
			start, part, _ := strings.Cut(c.want[i], ": ")
			matches = matches && strings.HasPrefix(got[i], start+": ") && strings.Contains(got[i], part)
		}
		if !matches {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		s.mend()
	}
}

// process is one of root's.
func (s site) process(pid, comm string) {
	s.t.Helper()
	s.write("/proc/"+pid+"/comm", comm+"\n")
	s.write("/proc/"+pid+"/status", "Name:\t"+comm+"\nUid:\t0\t0\t0\t0\n")
}

// mend makes the site healthy again.
func (s site) mend() {
	s.t.Helper()
	for _, pid := range []string{"70", "71"} {
		s.remove("/proc/" + pid)
	}
	for path, text := range healthy {
		s.write(path, text)
	}
	for _, device := range []string{"current_link_width", "current_link_speed"} {
		paths, err := filepath.Glob(filepath.Join(s.root, "sys/bus/pci/devices/*/"+device))
		if err != nil {
			s.t.Fatal(err)
		}
		for _, path := range paths {
			s.write(strings.TrimPrefix(path, s.root), map[string]string{"current_link_width": "16\n", "current_link_speed": "32.0 GT/s PCIe\n"}[device])
		}
	}
	s.write("/proc/irq/40/effective_affinity_list", "0\n")
	s.plugin("0x180b05")
}

func TestChecksHaveNames(t *testing.T) {
	var names []string
	for _, check := range Checks() {
		if slices.Contains(names, check.Name) || check.Name == "" {
			t.Errorf("%q: twice, or none", check.Name)
		}
		names = append(names, check.Name)
	}
}

func TestParseRelease(t *testing.T) {
	for text, want := range map[string]string{
		"slurm 24.11.5\n": "24.11", "slurm-wlm 22.05.8\n": "22.05", "slurm 26.05.0-rc1\n": "26.05", "": "", "slurm\n": "", "slurm new\n": "", "sinfo 1.2.3": "",
	} {
		if got, _ := parseRelease(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
