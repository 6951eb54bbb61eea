package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gputune/internal/sample"
)

// BenchmarkNothingAsked is a job without options on a node with an agent, whose
// GPUs a report is on: median of a whole program.
func BenchmarkNothingAsked(b *testing.B) {
	n := onMachine(b, "dgx-h100")
	if err := os.Mkdir(n.Run, 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.Run, sample.SocketName), nil, 0o600); err != nil {
		b.Fatal(err)
	}
	compare(b, n, Job{ID: 1, GPUs: "0,1,2,3,4,5,6,7"})
}

// BenchmarkEightGPUs sets clocks, power limit and compute mode on eight GPUs and
// puts them back. own is the time outside of the management library.
func BenchmarkEightGPUs(b *testing.B) {
	n := onMachine(b, "dgx-h100")
	compare(b, n, Job{ID: 1, GPUs: "0,1,2,3,4,5,6,7", Options: map[string]string{
		"gpu-clocks": "1200", "gpu-power": "500", "gpu-compute-mode": "exclusive",
	}})
}

// BenchmarkNodeProfile sets sysctls, hugepages on both NUMA nodes and the idle
// states of all CPUs, and puts them back.
func BenchmarkNodeProfile(b *testing.B) {
	n := onMachine(b, "epyc-nps1")
	if err := n.AddSettings(); err != nil {
		b.Fatal(err)
	}
	if err := n.Configure("[profile.bench]\nhugepages = \"2M:64\"\nidle_latency = 20\n[profile.bench.sysctl]\n\"vm.swappiness\" = 1\n\"vm.dirty_ratio\" = 40\n"); err != nil {
		b.Fatal(err)
	}
	compare(b, n, Job{ID: 1, GPUs: "0", Options: one("node-profile", "bench"), Env: exclusive})
}

// onMachine makes a node that is a described machine.
func onMachine(b *testing.B, machine string) *Node {
	b.Helper()
	if os.Getuid() != 0 {
		b.Skip("only root can change a GPU")
	}
	n, err := Make(b.Context(), b.TempDir(), machine, "")
	if err != nil {
		b.Fatal(err)
	}
	d := Driver(n.Machine)
	d.Lines = append(d.Lines, "times times.log")
	if err := n.NVML.Describe(b.Context(), d); err != nil {
		b.Fatal(err)
	}
	return n
}

// compare runs Prolog and Epilog, and beside them a program that does nothing,
// and reports medians in milliseconds.
func compare(b *testing.B, n *Node, j Job) {
	var nothing []time.Duration
	whole, own := map[string][]time.Duration{}, map[string][]time.Duration{}
	for b.Loop() {
		begin := time.Now()
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
		nothing = append(nothing, time.Since(begin))
		for _, name := range []string{"prolog", "epilog"} {
			times := filepath.Join(n.NVML.Folder, "times.log")
			if err := os.RemoveAll(times); err != nil {
				b.Fatal(err)
			}
			begin := time.Now()
			result, err := Finish(n.Program(b.Context(), "gputune-"+name, j))
			took := time.Since(begin)
			if err != nil || result.Code != 0 {
				b.Fatalf("%s: %v %+v", name, err, result)
			}
			library, err := inLibrary(times)
			if err != nil || (library > 0) != j.setsGPUs() {
				b.Fatalf("%s: %v in the library, %v\n%s", name, library, err, result.Output)
			}
			whole[name] = append(whole[name], took)
			own[name] = append(own[name], took-library)
		}
	}
	b.ReportMetric(0, "ns/op") // both programs together say nothing
	b.ReportMetric(median(nothing), "true-ms")
	for name := range whole {
		b.ReportMetric(median(whole[name]), name+"-ms")
		if j.setsGPUs() {
			b.ReportMetric(median(own[name]), name+"-own-ms")
		}
	}
}

// setsGPUs tells whether an option of the job is about GPUs.
func (j Job) setsGPUs() bool {
	for name := range j.Options {
		if strings.HasPrefix(name, "gpu-") {
			return true
		}
	}
	return false
}

func median(times []time.Duration) float64 {
	slices.Sort(times)
	return float64(times[len(times)/2].Microseconds()) / 1000
}

// inLibrary returns how long all calls took that a file of times has.
func inLibrary(path string) (time.Duration, error) {
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return 0, nil
	}
	var sum time.Duration
	for line := range strings.Lines(string(text)) {
		var program string
		var pid, calls int
		var took int64
		if _, err := fmt.Sscanf(line, "%s %d %d CALLS %d NS", &program, &pid, &calls, &took); err != nil {
			return 0, fmt.Errorf("%q: %w", line, err)
		}
		sum += time.Duration(took)
	}
	return sum, err
}
