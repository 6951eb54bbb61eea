//go:build slurm

package slurm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gputune/tests/slurm/bed"
	"gputune/tests/slurm/site"
)

// scenario does something to jobs and tells what came of it, in words that must
// be the same with and without the plugin.
type scenario struct {
	name string
	run  func(t *testing.T, s *site.Site, options []string) string
}

func outcome(result bed.Result, err error) string {
	return fmt.Sprintf("code %d signal %v error %v stdout %q", result.Code, result.Signal, err, lines(result.Stdout))
}

// lines returns the lines of a job's output in an order of their own: those of
// several tasks, and of a task and srun, come as they come. What Slurm says of
// waiting for resources says nothing about the job.
func lines(output string) []string {
	var kept []string
	output = strings.NewReplacer("\r", "", "^C", "").Replace(output) // as a terminal shows them
	for line := range strings.Lines(output) {
		if !strings.Contains(line, "queued and waiting") && !strings.Contains(line, "has been allocated") &&
			!strings.Contains(line, "step creation temporarily disabled") && !strings.Contains(line, "Step created for") {
			kept = append(kept, line)
		}
	}
	slices.Sort(kept)
	return kept
}

func simple(arguments ...string) func(*testing.T, *site.Site, []string) string {
	return func(t *testing.T, s *site.Site, options []string) string {
		name := arguments[0]
		return outcome(s.Run(t.Context(), name, slices.Concat(options, arguments[1:])...))
	}
}

func batch(script string, arguments ...string) func(*testing.T, *site.Site, []string) string {
	return func(t *testing.T, s *site.Site, options []string) string {
		folder, err := os.MkdirTemp(filepath.Join(s.Dir, "work"), "batch-")
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(folder, "script")
		if err := os.WriteFile(path, []byte("#!/bin/bash\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
		all := slices.Concat(options, arguments, []string{"-W", "-o", filepath.Join(folder, "%a.out"), path})
		result, err := s.Run(t.Context(), "sbatch", all...)
		outputs, _ := filepath.Glob(filepath.Join(folder, "*.out"))
		text := fmt.Sprintf("code %d error %v", result.Code, err)
		for _, output := range outputs {
			content, err := os.ReadFile(output)
			text += fmt.Sprintf("; %s %q %v", filepath.Base(output), lines(string(content)), err)
		}
		return text
	}
}

// signalled starts a step whose task says when it is ready, does something to
// it, and waits.
func signalled(script string, act func(ctx context.Context, s *site.Site, c *bed.Cmd) error) func(*testing.T, *site.Site, []string) string {
	return func(t *testing.T, s *site.Site, options []string) string {
		command := s.Command("srun", slices.Concat(options, []string{"-n2", "--job-name=signalled", "bash", "-c", script})...)
		if err := command.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := command.WaitOutput(t.Context(), "ready\nready"); err != nil {
			t.Fatal(err)
		}
		if err := act(t.Context(), s, command); err != nil {
			t.Fatal(err)
		}
		return outcome(command.Wait())
	}
}

func scancel(arguments ...string) func(context.Context, *site.Site, *bed.Cmd) error {
	return func(ctx context.Context, s *site.Site, _ *bed.Cmd) error {
		result, err := s.Run(ctx, "scancel", append([]string{"--name=signalled"}, arguments...)...)
		if err == nil && result.Code != 0 {
			err = fmt.Errorf("scancel: code %d, %s", result.Code, result.Stderr)
		}
		return err
	}
}

func signals(list ...syscall.Signal) func(context.Context, *site.Site, *bed.Cmd) error {
	return func(_ context.Context, _ *site.Site, c *bed.Cmd) error {
		for i, sig := range list {
			if i > 0 {
				time.Sleep(100 * time.Millisecond)
			}
			if err := c.Signal(sig); err != nil {
				return err
			}
		}
		return nil
	}
}

func typed(text string, arguments ...string) func(*testing.T, *site.Site, []string) string {
	return func(t *testing.T, s *site.Site, options []string) string {
		command := s.Command("srun", slices.Concat(options, []string{"-n1", "--pty"}, arguments)...)
		command.Terminal = true
		if err := command.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := command.WaitOutput(t.Context(), "ready"); err != nil {
			t.Fatal(err)
		}
		if err := command.Type(text); err != nil {
			t.Fatal(err)
		}
		return outcome(command.Wait())
	}
}

var scenarios = []scenario{
	{"exit code", simple("srun", "-n2", "sh", "-c", "exit 7")},
	{"killed task", simple("srun", "-n1", "sh", "-c", "kill -9 $$")},
	{"segmentation fault", simple("srun", "-n1", "sh", "-c", "kill -SEGV $$")},
	{"no such program", simple("srun", "-n1", "/no/such/program")},
	{"closed standard error", simple("srun", "-n1", "-e", "none", "true")},
	{"salloc", simple("salloc", "-n1", "srun", "-n1", "echo", "inside")},
	{"batch with steps", batch("for i in 1 2 3; do srun -n1 echo step $i; done; srun -n1 sh -c 'exit 3'; echo $?; exit 4", "-n2")},
	{"overlapping steps", batch("srun -n1 --overlap sh -c 'sleep 1; echo a' & srun -n1 --overlap sh -c 'sleep 2; echo b' & wait", "-n1")},
	{"array", batch("srun -n1 echo element $SLURM_ARRAY_TASK_ID", "-n1", "--array=0-3")},
	{"export none", batch("srun -n1 sh -c 'echo $HOME'", "-n1", "--export=NONE")},
	{"terminal", typed("exit 5\r", "sh", "-c", "echo ready; stty size; read x; $x")},
	{"ctrl-c at a terminal", typed("\x03", "bash", "-c", "trap 'echo interrupted; exit 9' INT; echo ready; sleep 30 & wait")},
	{"scancel", signalled("echo ready; sleep 60", scancel())},
	{"scancel signal", signalled("trap 'echo usr1; exit 6' USR1; echo ready; while :; do sleep 0.1; done", scancel("-s", "USR1"))},
	{"scancel term", signalled("trap 'echo term; exit 8' TERM; echo ready; while :; do sleep 0.1; done", scancel("-s", "TERM"))},
	{"ctrl-c twice", signalled("echo ready; sleep 60", signals(syscall.SIGINT, syscall.SIGINT))},
	{"ctrl-c and term", signalled("echo ready; sleep 60", signals(syscall.SIGINT, syscall.SIGTERM))},
	{"srun ended", signalled("echo ready; sleep 60", signals(syscall.SIGTERM))},
	{"quit", signalled("trap 'exit 4' QUIT; echo ready; while :; do sleep 0.1; done", signals(syscall.SIGQUIT))},
}

// Jobs end as they end without the plugin, with the option on and off.
func TestLifecycleIsTheSame(t *testing.T) {
	without, with := need(t, plain), need(t, constrained)
	gpus := []string{"--gpus=1"}
	for _, c := range scenarios {
		t.Run(c.name, func(t *testing.T) {
			// Names of nodes are the beds' own.
			want := strings.ReplaceAll(c.run(t, without, gpus), without.Node, "NODE")
			for _, option := range []string{"--gpu-numa-bind=quiet", "--gpu-numa-bind=off"} {
				got := strings.ReplaceAll(c.run(t, with, append([]string{option}, gpus...)), with.Node, "NODE")
				if got != want {
					t.Errorf("%s:\n%s\nwithout the plugin:\n%s", option, got, want)
				}
			}
		})
	}
}

func TestTimeLimitIsTheSame(t *testing.T) {
	t.Parallel()
	without, with := start(t, site.Options{Without: true}), start(t, site.Options{Bed: bed.Options{ConstrainDevices: true}})
	results := make(chan string)
	run := func(s *site.Site, options ...string) {
		command := s.Command("srun", append(options, "-n1", "--gpus=1", "-t", "1", "sh", "-c", "trap '' TERM; while :; do sleep 1; done")...)
		command.Timeout = 3 * time.Minute
		results <- outcome(command.Run(t.Context()))
	}
	go run(without)
	go run(with, "--gpu-numa-bind")
	if a, b := <-results, <-results; a != b || strings.Contains(a, "code 0") {
		t.Errorf("%s\n%s", a, b)
	}
}

// Many steps in a row, in the sites that no other parallel test uses: none hangs, none fails, and nothing stays behind.
func TestManySteps(t *testing.T) {
	t.Parallel()
	const times = 300
	for _, c := range []struct {
		site  *site.Site
		tasks int
	}{{constrained, 1}, {open, 4}, {constrained, 4}, {constrained, 64}} {
		if c.site == nil {
			continue
		}
		s := c.site
		t.Run(fmt.Sprintf("%d tasks, devices constrained: %v", c.tasks, s == constrained), func(t *testing.T) {
			files := openFiles(t, s.Pid(bed.Slurmd))
			script := fmt.Sprintf(`n=0; for i in $(seq %d); do
				timeout -k 5 60 srun -Q -n%d -O --gpu-numa-bind=quiet true || { echo "step $i: $?"; exit 1; }; n=$((n+1)); done; echo "$n steps"`, times, c.tasks)
			command := s.Command("salloc", "-Q", "-n2", "--gpus=4", "bash", "-c", script)
			command.Timeout = 10 * time.Minute
			start := time.Now()
			result, err := command.Run(t.Context())
			if err != nil || result.Code != 0 || !strings.Contains(result.Stdout, fmt.Sprintf("%d steps", times)) {
				t.Fatalf("code %d, %v\nstdout: %s\nstderr: %s", result.Code, err, result.Stdout, result.Stderr)
			}
			t.Logf("%d steps in %.1f s", times, time.Since(start).Seconds())
			if result.Stderr != "" {
				t.Errorf("said: %.2000s", result.Stderr)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := s.WaitIdle(ctx); err != nil {
				t.Fatal(err)
			}
			if left := s.LeftBehind(); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
			if now := openFiles(t, s.Pid(bed.Slurmd)); now > files+2 {
				t.Errorf("slurmd had %d open files before and %d after", files, now)
			}
			if log := s.Log(bed.Slurmd); strings.Contains(log, "error: gputune") || strings.Contains(log, "fault in gputune") {
				t.Errorf("slurmd's log has errors of gputune")
			}
		})
	}
}

func openFiles(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
