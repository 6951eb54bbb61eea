//go:build gpu

// Package hw tests gputune on a machine with NVIDIA GPUs, against what
// NVIDIA's own programs say. Nothing of the cards is changed unless
// GPUTUNE_HW_WRITE=1 says so.
package hw

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gputune/internal/nvml"
	"gputune/internal/setting"
	"gputune/internal/topology"
)

// cudaProgram names the program built from cuda.c, for machines without a
// compiler.
const cudaProgram = "GPUTUNE_HW_CUDA"

func TestMain(m *testing.M) {
	if _, err := exec.LookPath("nvidia-smi"); err != nil {
		fmt.Fprintln(os.Stderr, "these tests need an NVIDIA GPU and its driver:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// smi returns what nvidia-smi --query-gpu answers, a row for each GPU in its
// order, without units.
func smi(t testing.TB, fields ...string) [][]string {
	t.Helper()
	return query(t, "gpu", fields...)
}

func query(t testing.TB, what string, fields ...string) [][]string {
	t.Helper()
	output := run(t, "nvidia-smi", "--query-"+what+"="+strings.Join(fields, ","), "--format=csv,noheader,nounits")
	reader := csv.NewReader(strings.NewReader(output))
	reader.TrimLeadingSpace = true
	rows, err := reader.ReadAll()
	if err != nil {
		t.Fatalf("nvidia-smi: %v in:\n%s", err, output)
	}
	return rows
}

func run(t testing.TB, program string, arguments ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), program, arguments...)
	var errors bytes.Buffer
	command.Stderr = &errors
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%s %s: %v: %s%s", program, strings.Join(arguments, " "), err, output, &errors)
	}
	return string(output)
}

// machine is what gputune knows of this one.
func machine(t *testing.T) *topology.Machine {
	t.Helper()
	m, err := topology.Read("/", topology.Options{NICs: true})
	if err != nil {
		t.Fatal(err)
	}
	m.AddNVML(nvml.New())
	for _, warning := range m.Warnings {
		t.Log("warning:", warning)
	}
	return m
}

func environment(t *testing.T) *setting.Environment {
	t.Helper()
	env := setting.NewEnvironment("/", nvml.New().Open)
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	})
	return env
}

// cuda returns the program of cuda.c, where every user can run it.
func cuda(t testing.TB) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "gputune-hw-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	if err := os.Chmod(folder, 0o755); err != nil { //nolint:gosec // other users run what is in it
		t.Fatal(err)
	}
	program := filepath.Join(folder, "cuda")
	if built := os.Getenv(cudaProgram); built != "" {
		content, err := os.ReadFile(built)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(program, content, 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
		return program
	}
	run(t, "cc", "-O2", "-o", program, "testdata/cuda.c", "-ldl")
	return program
}
