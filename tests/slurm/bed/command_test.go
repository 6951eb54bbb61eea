//go:build slurm

package bed

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestUnprivilegedUser(t *testing.T) {
	b := startBed(t, Options{NCPU: 2, ConstrainDevices: true, GPUs: 2})
	cmd := b.Command("srun", "-n2", "sh", "-c", "echo $(id -un; id -G) $HOME $USER")
	cmd.User = "nobody"
	result, err := cmd.Run(t.Context())
	if err != nil || !result.OK() {
		t.Fatal(result, err)
	}
	if got := strings.Count(result.Stdout, "nobody 65534 /nonexistent nobody\n"); got != 2 {
		t.Errorf("want two tasks of nobody in its group alone, got:\n%s", result.Stdout)
	}
	checkNothingLeft(t, b)
}

func TestBatchJobWithSteps(t *testing.T) {
	for _, user := range []string{"root", "nobody"} {
		t.Run(user, func(t *testing.T) {
			b := startBed(t, Options{NCPU: 2, ProctrackType: "proctrack/cgroup"})
			cmd := b.Command("sbatch", "--wait", "--ntasks=2", "--output=out")
			cmd.User = user
			cmd.Stdin = strings.NewReader("#!/bin/sh\necho batch $(id -un)\nfor i in 1 2 3; do srun -n2 sh -c 'echo step $SLURM_STEP_ID task $SLURM_PROCID'; done\n")
			result, err := cmd.Run(t.Context())
			if err != nil || !result.OK() {
				t.Fatal(result, err)
			}
			text, err := os.ReadFile(filepath.Join(b.Dir, "work", "out"))
			if err != nil {
				t.Fatal(err)
			}
			for _, wanted := range []string{"batch " + user, "step 0 task 0", "step 0 task 1", "step 2 task 0", "step 2 task 1"} {
				if !strings.Contains(string(text), wanted+"\n") {
					t.Errorf("want %q in the job's output, got:\n%s", wanted, text)
				}
			}
			checkNothingLeft(t, b)
		})
	}
}

func TestSalloc(t *testing.T) {
	b := startBed(t, Options{NCPU: 2, GPUs: 2})
	out := run(t, b, "salloc", "--ntasks=2", "--gpus=2", "sh", "-c", "echo $SLURM_JOB_ID; srun -l printenv SLURM_STEP_GPUS")
	for _, wanted := range []string{"1\n", "0: 0,1\n", "1: 0,1\n"} {
		if !strings.Contains(out, wanted) {
			t.Errorf("want %q, got:\n%s", wanted, out)
		}
	}
	checkNothingLeft(t, b)
}

func TestInteractiveShell(t *testing.T) {
	b := startBed(t, Options{ConstrainDevices: true})
	for _, user := range []string{"", "nobody"} {
		cmd := b.Command("srun", "--pty", "bash", "--norc")
		cmd.User = user
		cmd.Terminal = true
		cmd.Env = []string{"PS1=ready> "}
		if err := cmd.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		type exchange struct{ typed, wanted string }
		steps := []exchange{
			{"", "ready> "},
			{"tty && stty size\r", "24 80"},
			{"echo $((6*7))\r", "42\r\n"},
			{"sleep 1000; echo status $?\r", ""},
			{"\x03", "^C"},
			{"echo after $((50+50))\r", "after 100"},
		}
		for _, step := range steps {
			if err := cmd.Type(step.typed); err != nil {
				t.Fatal(err)
			}
			if step.wanted == "" {
				// The shell must have started its child before the key is hit.
				for start := time.Now(); time.Since(start) < 300*time.Millisecond; {
					if err := sleep(t.Context(), 50*time.Millisecond); err != nil {
						t.Fatal(err)
					}
				}
			} else if err := cmd.WaitOutput(t.Context(), step.wanted); err != nil {
				t.Fatal(err)
			}
		}
		if err := cmd.Resize(50, 132); err != nil {
			t.Fatal(err)
		}
		for !strings.Contains(first(cmd.Output()), "50 132") {
			if err := errors.Join(cmd.Type("stty size\r"), sleep(t.Context(), 100*time.Millisecond)); err != nil {
				t.Fatal(err)
			}
		}
		if err := cmd.Type("exit 5\r"); err != nil {
			t.Fatal(err)
		}
		result, err := cmd.Wait()
		if err != nil || result.Code != 5 {
			t.Errorf("user %q: want exit status 5, got %v, %v", user, result, err)
		}
		checkNothingLeft(t, b)
	}
}

func first(stdout, _ string) string { return stdout }

func TestInterruptAtTheTerminal(t *testing.T) {
	b := startBed(t, Options{})
	cmd := b.Command("srun", "sh", "-c", "echo started; exec sleep 1000")
	cmd.Terminal = true
	if err := cmd.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, step := range [][2]string{{"", "started"}, {"\x03", "one more within 1 sec to abort"}, {"\x03", "sending Ctrl-C"}} {
		if err := cmd.Type(step[0]); err != nil {
			t.Fatal(err)
		}
		if err := cmd.WaitOutput(t.Context(), step[1]); err != nil {
			t.Fatal(err)
		}
	}
	if result, err := cmd.Wait(); err != nil || result.OK() || result.Duration > 20*time.Second {
		t.Errorf("want a failed srun soon, got %v, %v", result, err)
	}
	checkNothingLeft(t, b)
}

func TestSignalToSrun(t *testing.T) {
	b := startBed(t, Options{})
	cmd := b.Command("srun", "sh", "-c", "trap 'echo caught; exit 7' USR1; echo started; while :; do sleep 0.1; done")
	if err := cmd.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := cmd.WaitOutput(t.Context(), "started"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Signal(unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	result, err := cmd.Wait()
	if err != nil || result.Code != 7 || !strings.Contains(result.Stdout, "caught") {
		t.Errorf("want a caught signal and status 7, got %v, %v", result, err)
	}
	if err := cmd.Signal(unix.SIGUSR1); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal to a command that has ended: %v", err)
	}
	if err := cmd.WaitOutput(t.Context(), "never"); !errors.Is(err, errEnded) {
		t.Errorf("waiting for what was not printed: %v", err)
	}
	checkNothingLeft(t, b)
}

func TestTimeoutEndsTheProcessGroup(t *testing.T) {
	b := startBed(t, Options{Timeout: 500 * time.Millisecond})
	cmd := b.Command("sh", "-c", "trap '' TERM; sleep 1000 & echo $!; wait; wait; sleep 1000")
	result, err := cmd.Run(t.Context())
	if !errors.Is(err, context.DeadlineExceeded) || result.Signal != unix.SIGKILL || result.Code != -1 {
		t.Fatalf("want a killed command, got %v, %v", result, err)
	}
	if !strings.Contains(err.Error(), "500ms") {
		t.Errorf("the error does not say how long the command ran: %v", err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(result.Stdout))
	if err != nil {
		t.Fatal(err)
	}
	waitEnded(t, b.proc, cmd.Pid())
	waitEnded(t, b.proc, child)
	// srun takes SIGTERM for an order to cancel its step.
	result, err = b.Run(t.Context(), "srun", "sleep", "1000")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("want an srun that was ended, got %v, %v", result, err)
	}
	b.options.Timeout = DefaultTimeout
	checkNothingLeft(t, b)
}

func TestStopEndsCommands(t *testing.T) {
	b := startBed(t, Options{})
	cmd := b.Command("sleep", "1000")
	if err := cmd.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.Stop(); err != nil {
		t.Fatal(err)
	}
	if result, err := cmd.Wait(); !errors.Is(err, context.Canceled) || result.Signal != unix.SIGTERM {
		t.Errorf("want a command that was ended, got %v, %v", result, err)
	}
	if _, err := b.Run(t.Context(), "true"); !errors.Is(err, errStopped) {
		t.Errorf("a command after Stop: %v", err)
	}
}

func TestEnvironmentOfCommands(t *testing.T) {
	t.Setenv("SLURM_JOB_ID", "4711")
	t.Setenv("SBATCH_PARTITION", "elsewhere")
	t.Setenv("ELSEWHERE", "elsewhere")
	t.Setenv("SHELL", "")
	b := startBed(t, Options{DaemonEnv: []string{"DAEMON_ONLY=${DIR}/x"}})
	cmd := b.Command("env")
	cmd.Env = []string{"TERM=changed", "SLURM_DEBUG=1"}
	result, err := cmd.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, wanted := range []string{"TERM=changed", "SHELL=/bin/bash", "SLURM_DEBUG=1", "SLURM_CONF=" + b.Conf} {
		if !strings.Contains("\n"+result.Stdout, "\n"+wanted+"\n") {
			t.Errorf("want %s, got:\n%s", wanted, result.Stdout)
		}
	}
	for _, unwanted := range []string{"4711", "elsewhere", "DAEMON_ONLY", markVariable} {
		if strings.Contains(result.Stdout, unwanted) {
			t.Errorf("%s got through:\n%s", unwanted, result.Stdout)
		}
	}
	if out := run(t, b, "srun", "env"); strings.Contains(out, "DAEMON_ONLY") || strings.Contains(out, markVariable) {
		t.Errorf("a task has a variable of the daemons:\n%s", out)
	}
	found, err := os.ReadFile(b.proc.path(b.Pid(Slurmd), "environ"))
	if err != nil || !strings.Contains(string(found), "DAEMON_ONLY="+b.Dir+"/x\x00") {
		t.Errorf("slurmd lacks its variable: %v, %q", err, found)
	}
	sub := b.Command("pwd")
	sub.Dir = "/"
	if result, err := sub.Run(t.Context()); err != nil || result.Stdout != "/\n" {
		t.Errorf("want /, got %v, %v", result, err)
	}
	if _, err := b.Run(t.Context(), "no-such-program"); err == nil || !strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("a program that is not there: %v", err)
	}
}
