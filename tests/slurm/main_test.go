//go:build slurm

// Package slurm tests the plugin in a real Slurm on loopback.
package slurm

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"gputune/internal/topology"
	"gputune/tests/slurm/bed"
	"gputune/tests/slurm/site"
)

// The sites that most tests share.
var (
	plain       *site.Site // the same Slurm without the plugin
	open        *site.Site // with the plugin, devices not constrained
	constrained *site.Site // with the plugin, devices constrained
)

func TestMain(m *testing.M) {
	if file := os.Getenv(asWorker); file != "" {
		os.Exit(worker(file))
	}
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for _, start := range []struct {
		site    **site.Site
		options site.Options
	}{
		{&plain, site.Options{Without: true}},
		{&open, site.Options{}},
		{&constrained, site.Options{Bed: bed.Options{ConstrainDevices: true}}},
	} {
		s, err := site.Start(ctx, start.options)
		if errors.Is(err, bed.ErrUnavailable) {
			fmt.Println("not on this machine:", err)
			continue
		}
		if err != nil {
			fmt.Println(err)
			return 1
		}
		*start.site = s
	}
	status := m.Run()
	for _, s := range []*site.Site{plain, open, constrained} {
		if s == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if err := s.WaitIdle(ctx); err != nil {
			fmt.Println("not idle at the end:", err)
			status = 1
		}
		cancel()
		for _, left := range s.LeftBehind() {
			fmt.Println("left behind:", left)
			status = 1
		}
		if err := s.Close(); err != nil {
			fmt.Println(err)
			status = 1
		}
	}
	return status
}

// start starts a site for one test.
func start(t *testing.T, options site.Options) *site.Site {
	t.Helper()
	s, err := site.Start(t.Context(), options)
	if errors.Is(err, bed.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func need(t *testing.T, s *site.Site) *site.Site {
	t.Helper()
	if s == nil {
		t.Skip("this machine cannot run that Slurm")
	}
	return s
}

// srun runs a step that has to succeed.
func srun(t *testing.T, s *site.Site, arguments ...string) bed.Result {
	t.Helper()
	return must(t, s, "srun", arguments...)
}

func must(t *testing.T, s *site.Site, name string, arguments ...string) bed.Result {
	t.Helper()
	result, err := s.Run(t.Context(), name, arguments...)
	if err != nil || result.Code != 0 {
		t.Fatalf("%s %s: code %d, %v\nstdout: %s\nstderr: %s", name, strings.Join(arguments, " "), result.Code, err, result.Stdout, result.Stderr)
	}
	return result
}

// show prints one line of facts about the task, as the kernel has them.
const show = `printf 'task=%s cpus=%s policy=%s cvd=%s gpus=%s gcpus=%s gmems=%s gpolicy=%s glocality=%s open=' ` +
	`"$SLURM_PROCID" "$(sed -n 's/^Cpus_allowed_list:\t//p' /proc/self/status)" ` +
	`"$(sed -n '1s/^[^ ]* \([^ ]*\).*/\1/p' /proc/self/numa_maps)" "$CUDA_VISIBLE_DEVICES" ` +
	`"$GPUTUNE_GPUS" "$GPUTUNE_CPUS" "$GPUTUNE_MEMS" "$GPUTUNE_MEM_POLICY" "$GPUTUNE_LOCALITY"; ` +
	`for d in "$DEVICES"/nvidia[0-9]; do case "$( { : <"$d"; } 2>&1)" in *ermitted*) ;; *) printf %s "${d##*nvidia}";; esac; done; echo`

// facts is what show printed of one task.
type facts map[string]string

// steps runs show in each of the tasks of a step and returns their facts by
// task, and what else came on standard error.
func steps(t *testing.T, s *site.Site, tasks int, arguments ...string) (map[string]facts, string) {
	t.Helper()
	arguments = append([]string{fmt.Sprintf("-n%d", tasks)}, arguments...)
	// -Q: no word of waiting for resources
	return stepsOf(t, s, tasks, s.Command("srun", append(append([]string{"-Q"}, arguments...), "sh", "-c", show)...))
}

// fourTasks is steps for four tasks on the node's two CPUs.
func fourTasks(t *testing.T, s *site.Site, arguments ...string) (map[string]facts, string) {
	t.Helper()
	job := append([]string{"-Q", "-n2", "--gpus=4", "srun", "-Q", "-n4", "-O"}, arguments...)
	return stepsOf(t, s, 4, s.Command("salloc", append(job, "sh", "-c", show)...))
}

func stepsOf(t *testing.T, s *site.Site, tasks int, command *bed.Cmd) (map[string]facts, string) {
	t.Helper()
	command.Env = []string{"DEVICES=" + s.Dir + "/dev"}
	result, err := command.Run(t.Context())
	if err != nil || result.Code != 0 {
		t.Fatalf("%s %s: code %d, %v\nstdout: %s\nstderr: %s", command.Name, strings.Join(command.Args, " "), result.Code, err, result.Stdout, result.Stderr)
	}
	return parse(t, tasks, result.Stdout), result.Stderr
}

func parse(t *testing.T, n int, output string) map[string]facts {
	t.Helper()
	tasks := map[string]facts{}
	for line := range strings.Lines(output) {
		f := facts{}
		for _, field := range strings.Fields(line) {
			if key, value, found := strings.Cut(field, "="); found {
				f[key] = value
			}
		}
		if f["task"] == "" {
			t.Fatalf("not a task's facts: %q", line)
		}
		tasks[f["task"]] = f
	}
	if len(tasks) != n {
		t.Fatalf("facts of %d tasks, want %d:\n%s", len(tasks), n, output)
	}
	return tasks
}

// gpuOf returns the described machine's GPU with a minor number.
func gpuOf(t *testing.T, s *site.Site, minor string) *topology.GPU {
	t.Helper()
	for i := range s.Machine.GPUs {
		if fmt.Sprint(s.Machine.GPUs[i].Minor) == minor {
			return &s.Machine.GPUs[i]
		}
	}
	t.Fatalf("no GPU with minor %q", minor)
	return nil
}

// near returns the CPUs of a GPU's node, as the description has them.
func near(s *site.Site, gpu *topology.GPU) string {
	for _, node := range s.Machine.Nodes {
		if gpu.Nodes.Has(node.ID) {
			return node.CPUs.String()
		}
	}
	return "none"
}
