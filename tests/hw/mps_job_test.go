//go:build gpu

package hw

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gputune/internal/mps"
)

// mpsTask is what a task of a job with a daemon does: it says which variables
// it has and measures a kernel at the same time as the others.
const mpsTask = `env | grep ^CUDA_
echo go | PROGRAM --seconds 2 --blocks 16`

// Two tasks of one job share a GPU through the daemon that the Prolog has
// started, and nothing of that is left after the Epilog. The compute mode is
// what it was, as bundle/start has configured it.
func TestMPSJob(t *testing.T) {
	needSlurm(t)
	program := cuda(t)
	script := filepath.Join(filepath.Dir(program), "task")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"+strings.Replace(mpsTask, "PROGRAM", program, 1)+"\n"), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	row := smi(t, "uuid", "compute_mode")[0]
	gpu, mode := row[0], row[1]
	alone := start(t, program, nobody, []string{"CUDA_VISIBLE_DEVICES=" + gpu})
	whole := alone.devices(t)[0].multiprocessors
	alone.end(t)
	for option, percent := range map[string]int{"": 100, "--gpu-mps": 100, "--gpu-mps=auto": 50, "--gpu-mps=25": 25} {
		t.Run(option, func(t *testing.T) {
			arguments := []string{"60", "srun", "--uid=" + strconv.Itoa(nobody), "--gid=" + strconv.Itoa(nobody), "-D/", "--label", "-n2", "--gpus=1", "--gpu-numa-bind=quiet"}
			if option != "" {
				arguments = append(arguments, option)
			}
			output := run(t, "timeout", append(arguments, script)...)
			t.Log(output)
			devices, kernels, pipes := 0, 0, 0
			for line := range strings.Lines(output) {
				_, said, _ := strings.Cut(line, ": ")
				words := strings.Fields(said)
				switch {
				case strings.HasPrefix(said, "device "):
					devices++
					n, err := strconv.Atoi(words[4])
					if err != nil {
						t.Fatal(err)
					}
					if words[2] != gpu || n < whole*percent/100-2 || n > whole*percent/100+2 {
						t.Errorf("%q: want %s with %d %% of %d multiprocessors", said, gpu, percent, whole)
					}
				case strings.HasPrefix(said, "kernel "):
					kernels++
				case strings.HasPrefix(said, "CUDA_MPS_PIPE_DIRECTORY="):
					pipes++
				}
			}
			want := 2
			if option == "" {
				want = 0
			}
			if devices != 2 || kernels != 2 || pipes != want {
				t.Errorf("%d devices, %d kernels, %d pipe folders; want 2, 2, %d", devices, kernels, pipes, want)
			}
			settled(t)
			if now := smi(t, "compute_mode")[0][0]; now != mode {
				t.Errorf("compute mode %s, before %s", now, mode)
			}
			if status, err := (mps.Host{}).Look(t.Context(), gpu); err != nil || status != nil {
				t.Errorf("left: %+v, %v", status, err)
			}
			checkNoProcess(t)
		})
	}
}

// settled waits until every job is over, its Epilog too, and the node is up.
func settled(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		jobs := run(t, "squeue", "-h")
		node := strings.TrimSpace(run(t, "sinfo", "-h", "-o", "%t"))
		if jobs == "" && node == "idle" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("jobs %q, node %s", jobs, node)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
