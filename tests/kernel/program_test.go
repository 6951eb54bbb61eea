package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gputune/tests/node"
)

// onKernel is a made-up node, with a GPU on NUMA node 0, whose settings are this
// machine's: gputune-prolog and gputune-epilog change the kernel that they run on.
func onKernel(t *testing.T, config string) *node.Node {
	t.Helper()
	needRoot(t)
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("the programs are those of the source tree, which is not here")
	}
	n, err := node.Make(t.Context(), t.TempDir(), "demo-dual", config)
	must(t, err)
	machine := filepath.Join(n.Dir, "machine")
	// The topology is read from the described machine, where no link leads out.
	link := func(paths ...string) {
		for _, path := range paths {
			if _, err := os.Stat("/" + path); err != nil {
				continue
			}
			to := filepath.Join(machine, path)
			must(t, os.RemoveAll(to), os.MkdirAll(filepath.Dir(to), 0o755), os.Symlink("/"+path, to))
		}
	}
	link("proc/sys", "proc/irq", "proc/zoneinfo", "sys/kernel", "sys/devices/system/cpu/cpufreq", "sys/devices/system/node/has_memory",
		"sys/devices/system/node/node0/hugepages", "sys/devices/system/node/node0/compact")
	for cpu := range n.Machine.CPUs.All() {
		link(fmt.Sprintf("sys/devices/system/cpu/cpu%d/power", cpu))
	}
	must(t, os.WriteFile(filepath.Join(machine, "sys/devices/system/node/node0/meminfo"), []byte(text(t, "/sys/devices/system/node/node0/meminfo")), 0o600))
	if pci, irq := movable(t); irq != 0 {
		irqs, err := filepath.EvalSymlinks("/sys/bus/pci/devices/" + pci + "/msi_irqs")
		must(t, err)
		must(t, os.Symlink(irqs, filepath.Join(machine, "sys/bus/pci/devices", n.Machine.GPUs[0].PCI, "msi_irqs")))
	}
	return n
}

// everything has each kind of setting that a machine like this one has.
const everything = `[drop_caches]
sync_deadline = "2s"
[profile.everything]
hugepages = "2M:5"
thp = "always"
thp_defrag = "defer"
khugepaged_defrag = "off"
idle_latency = 3
irqs = "local"
governor = "performance"
compact_memory = "on"
[profile.everything.sysctl]
"vm.swappiness" = 7
"vm.dirty_bytes" = 123456789
"vm.dirty_background_ratio" = 3
"vm.zone_reclaim_mode" = 1
"kernel.numa_balancing" = 0
"net.ipv4.ip_local_port_range" = "10240 64999"
`

var exclusive = []string{"SLURM_JOB_OVERSUBSCRIBE=NO"}

// watchAll is watch for all files that the profile everything changes.
func watchAll(t *testing.T) before {
	t.Helper()
	more := part{reads: map[string]string{}}
	for _, pattern := range []string{"/sys/devices/system/cpu/cpu*/power/pm_qos_resume_latency_us", "/sys/devices/system/cpu/cpufreq/policy*/scaling_governor", "/proc/irq/*/smp_affinity_list"} {
		found, err := filepath.Glob(pattern)
		must(t, err)
		for _, file := range found {
			more.reads[file] = ""
		}
	}
	return watch(t, append(parts(t), more))
}

// TestPrograms: Prolog and Epilog set and put back a profile with everything, and
// the Prolog drops caches, on the kernel that they run on.
func TestPrograms(t *testing.T) {
	n := onKernel(t, everything)
	if len(parts(t)) < 8 {
		t.Skip("this machine lets hardly a setting be changed")
	}
	was := watchAll(t)
	j := node.Job{ID: 4711, GPUs: "0", Env: exclusive, Options: map[string]string{"node-profile": "everything", "drop-caches": "page"}}
	result, err := n.Prolog(t.Context(), j)
	must(t, err)
	t.Log(result.Output)
	report, notice, err := n.Reported(j.ID)
	must(t, err)
	if notice != "" || report.Fault != "" {
		t.Errorf("%q, %+v", notice, report)
	}
	for _, want := range []string{"job 4711: --drop-caches=page: dropped ", "sysctl/vm.swappiness 7, was ", "sysctl/vm.dirty bytes=123456789, was "} {
		if !strings.Contains(result.Output, want) {
			t.Errorf("no %q", want)
		}
	}
	for file, want := range map[string]string{
		"/proc/sys/vm/swappiness": "7\n", "/proc/sys/vm/dirty_bytes": "123456789\n", "/proc/sys/vm/dirty_ratio": "0\n",
	} {
		if is := text(t, file); is != want {
			t.Errorf("%s reads %q, want %q", file, is, want)
		}
	}
	if changed := len(was.other(t)); changed < 6 {
		t.Errorf("%d files are changed", changed)
	}
	if result, err = n.Epilog(t.Context(), j); err != nil || result.Code != 0 {
		t.Errorf("%+v, %v", result, err)
	}
	was.back(t, "after the Epilog")
}

// TestProgramsKilled kills Prolog and Epilog at some of their system calls, whole or
// one of their processes alone, and wants the Epilog to put everything back.
func TestProgramsKilled(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil || testing.Short() {
		t.Skip("needs strace and time")
	}
	n := onKernel(t, everything)
	if len(parts(t)) < 8 {
		t.Skip("this machine lets hardly a setting be changed")
	}
	was := watchAll(t)
	j := node.Job{ID: 4712, GPUs: "0", Env: exclusive, Options: map[string]string{"node-profile": "everything"}}
	tried, changed := 0, 0
	for _, program := range []string{"gputune-prolog", "gputune-epilog"} {
		for _, call := range []string{"openat", "write", "renameat"} {
			step := map[string]int{"openat": 23, "write": 4, "renameat": 1}[call]
			for number := step; ; number += step {
				if program == "gputune-epilog" {
					if result, err := n.Prolog(t.Context(), j); err != nil || result.Code != 0 {
						t.Fatalf("%+v, %v", result, err)
					}
				}
				command := n.Program(t.Context(), program, j)
				inject := fmt.Sprintf("inject=%s:signal=KILL:when=%d", call, number)
				command.Args = append([]string{strace, "-f", "-qq", "-o", os.DevNull, "-e", "trace=" + call, "-e", inject, command.Path}, command.Args[1:]...)
				command.Path = strace
				var output bytes.Buffer
				command.Stdout, command.Stderr = &output, &output
				err := command.Run()
				if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
					t.Fatal(err)
				}
				// Of a child alone the parent says that it was killed.
				hit := err != nil || strings.Contains(output.String(), "killed")
				if hit {
					tried++
				}
				if len(was.other(t)) > 0 {
					changed++
				}
				result, err := n.Epilog(t.Context(), j)
				if err != nil || result.Code != 0 {
					t.Fatalf("%s killed at %s %d, then the Epilog: %+v, %v\n%s", program, call, number, result, err, &output)
				}
				was.back(t, fmt.Sprintf("%s killed at %s %d", program, call, number))
				if left, err := n.Left(); err != nil || len(left) > 0 {
					t.Errorf("%s killed at %s %d: left %v, %v", program, call, number, left, err)
				}
				if t.Failed() {
					t.FailNow()
				}
				if !hit {
					break
				}
			}
		}
	}
	t.Logf("%d runs killed, %d of them left something to the Epilog", tried, changed)
	if tried < 20 || changed < 5 {
		t.Errorf("%d runs killed, %d left something", tried, changed)
	}
}

// TestProgramsRefused: more hugepages than there is memory for are refused, and
// what was set with them is put back.
func TestProgramsRefused(t *testing.T) {
	n := onKernel(t, everything)
	const pool = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
	if _, ok := first(t, pool); !ok {
		t.Skip("no hugepages of 2 MiB here")
	}
	was := watchAll(t)
	j := node.Job{ID: 4713, GPUs: "0", Env: exclusive, Options: map[string]string{"node-profile": "everything", "hugepages": "2M:1000000"}}
	result, err := n.Prolog(t.Context(), j)
	must(t, err)
	_, notice, err := n.Reported(j.ID)
	must(t, err)
	t.Log(result.Output)
	if !strings.HasPrefix(notice, "fail\n--hugepages=2M:1000000: node 0: ") || !strings.Contains(notice, "; nearest: 2M:") || strings.Count(notice, "\n") != 2 {
		t.Errorf("%q", notice)
	}
	was.back(t, "after a refusal")
	if result, err := n.Epilog(t.Context(), j); err != nil || result.Code != 0 {
		t.Errorf("%+v, %v", result, err)
	}
	was.back(t, "after the Epilog")
}
