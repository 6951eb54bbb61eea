package conflict

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestFind(t *testing.T) {
	root := t.TempDir()
	process := func(pid int, comm string, uid int) {
		t.Helper()
		dir := filepath.Join(root, "proc", fmt.Sprint(pid))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		status := fmt.Sprintf("Name:\t%s\nUid:\t%d\t%d\t%d\t%d\n", comm, uid, uid, uid, uid)
		for name, text := range map[string]string{"comm": comm + "\n", "status": status} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	process(1, "systemd", 0)
	process(40, "tuned", 1000)
	if got, err := Find(root); err != nil || len(got) > 0 {
		t.Errorf("%v, %v", got, err)
	}
	process(900, "tuned", 0)
	process(800, "irqbalance", 0)
	process(90, "irqbalance", 0)
	process(91, "irqbalance-ui", 0)
	if err := os.MkdirAll(filepath.Join(root, "etc/tuned"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "etc/tuned/active_profile"), []byte("hpc-compute\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Find(root)
	if err != nil || len(got) != 2 || got[0].PID != 90 ||
		!strings.HasPrefix(got[0].String(), "irqbalance runs (pid 90) and changes the CPUs of interrupts, too: it moves them back") ||
		!strings.HasPrefix(got[1].String(), "tuned runs (pid 900, profile hpc-compute) and changes sysctls") {
		t.Errorf("%v, %v", got, err)
	}
	for key, want := range map[string]string{
		"irq/0000:41:00.0/31/affinity": "irqbalance", "cpufreq/policy0/governor": "tuned", "sysctl/vm.swappiness": "tuned", "thp/enabled": "tuned",
		"cpuidle/cpu0/latency": "tuned", "hugepages/node0/2048kB": "", "gpu/GPU-1/clocks.sm": "",
	} {
		touches := ""
		for _, f := range got {
			if f.Touches("gpu/GPU-0/power.limit", key) {
				touches += f.Program
			}
		}
		if touches != want {
			t.Errorf("%s is changed by %q, want %q", key, touches, want)
		}
	}
	if _, err := Find(filepath.Join(root, "none")); err == nil {
		t.Error("no /proc is no error")
	}
}

// TestFindProcess finds a process of this machine.
func TestFindProcess(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	text, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "numad")
	if err := os.WriteFile(program, text, 0o700); err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), program, "60")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
	got, err := Find("/")
	if err != nil || !slices.ContainsFunc(got, func(f Finding) bool { return f.Program == "numad" && f.PID <= c.Process.Pid }) {
		t.Errorf("%v, %v, want the process %d", got, err, c.Process.Pid)
	}
}
