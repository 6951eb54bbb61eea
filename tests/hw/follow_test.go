//go:build gpu

package hw

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gputune/internal/affinity"
	"gputune/internal/follow"
	"gputune/internal/idset"
	"gputune/internal/verify"
)

const runFolder = "/run/gputune"

// needAgent starts gputuned where none runs.
func needAgent(t *testing.T) {
	t.Helper()
	if follow.Agent("/", runFolder) == nil {
		return
	}
	agent := exec.Command("gputuned")
	agent.Stderr = t.Output()
	if err := agent.Start(); err != nil {
		t.Skip("no gputuned: ", err)
	}
	t.Cleanup(func() {
		_ = agent.Process.Signal(syscall.SIGTERM)
		_ = agent.Wait()
	})
	until(t, "the agent", func() bool { return follow.Agent("/", runFolder) == nil })
}

func until(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !so(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// followTask is one task that starts a CUDA program for each GPU, which has a GPU
// until its input ends, as it does with sleep.
const followTask = `for i in $(seq 0 $(($1 - 1))); do "$3" --device $i < <(exec sleep 60) >"$2/out.$i" & done; wait`

// One task starts a CUDA program on each GPU, none of which anybody binds. NVML's
// own list is what the agent goes by: each program ends on its GPU's share of the
// step's CPUs, with all of its threads.
func TestFollow(t *testing.T) {
	needSlurm(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root, to start an agent and to see what it was told")
	}
	needAgent(t)
	program := cuda(t)
	folder := filepath.Dir(program)
	n := len(smi(t, "uuid"))
	task := filepath.Join(folder, "task")
	if err := os.WriteFile(task, []byte("#!/bin/bash\n"+followTask+"\n"), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	step := exec.Command("timeout", "90", "srun", "-n1", "-c", strconv.Itoa(4*n), "--gpus="+strconv.Itoa(n),
		"--gpu-numa-bind=follow,verbose,cpus=exclusive", task, strconv.Itoa(n), folder, program)
	step.Stdout, step.Stderr = t.Output(), t.Output()
	if err := step.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = step.Process.Signal(syscall.SIGTERM)
		_ = step.Wait()
	}()
	for i := range n {
		until(t, "the programs", func() bool {
			text, err := os.ReadFile(fmt.Sprintf("%s/out.%d", folder, i))
			return err == nil && strings.Contains(string(text), "ready")
		})
	}
	ready := time.Now()
	addresses := map[string]string{} // by UUID
	gpus := machine(t).GPUs
	for i, row := range smi(t, "uuid") {
		addresses[row[0]] = gpus[i].PCI
	}
	onGPU := map[int]string{} // PCI address by pid, as nvidia-smi has it
	for _, row := range query(t, "compute-apps", "pid", "gpu_uuid") {
		pid, err := strconv.Atoi(row[0])
		if err != nil {
			t.Fatal(row, err)
		}
		onGPU[pid] = addresses[row[1]]
	}
	if len(onGPU) != n {
		t.Fatalf("nvidia-smi shows %v, want %d processes", onGPU, n)
	}
	shares := sharesOf(t)
	h := verify.This()
	var taken idset.Set
	for pid, pci := range onGPU {
		share := shares[pci]
		if share.CPUs.Empty() || !share.CPUs.And(taken).Empty() {
			t.Fatalf("gpu %s: its share is cpus %s, others have %s", pci, share.CPUs, taken)
		}
		taken = taken.Or(share.CPUs)
		threads := 0
		until(t, "a program to be on its GPU's share", func() bool {
			threads = 0
			for _, id := range h.Threads(pid) {
				cpus, err := affinity.Get(id)
				if err != nil || !cpus.Equal(share.CPUs) {
					return false
				}
				threads++
			}
			return threads > 0
		})
		t.Logf("process %d on gpu %s: %d threads on cpus %s, %.1f s after all were ready", pid, pci, threads, share.CPUs, time.Since(ready).Seconds())
		if threads < 2 {
			t.Errorf("process %d: %d threads: a CUDA program has more", pid, threads)
		}
	}
}

// sharesOf returns what the plugin has written down for the one step that is followed,
// by PCI address.
func sharesOf(t *testing.T) map[string]follow.Share {
	t.Helper()
	files, err := filepath.Glob(follow.Folder(runFolder) + "/*")
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v: want one step", files, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	var step follow.Step
	if err := json.Unmarshal(text, &step); err != nil {
		t.Fatal(err)
	}
	shares := map[string]follow.Share{}
	for _, share := range step.Shares {
		shares[share.PCI] = share
	}
	return shares
}
