package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What an ended job has left is put back before the next job's GPUs are set, also
// where the two want the same.
func TestLeftAtTheSameValue(t *testing.T) {
	n := begin(t, "")
	before := n.state(t)
	n.prolog(t, Job{ID: 1, GPUs: "0", Options: one("gpu-power", "500")})
	next := Job{ID: 2, GPUs: "0", Options: one("gpu-power", "500")}
	n.prolog(t, next)
	n.epilog(t, next)
	n.wantClean(t, before)
}

// A job that has a step on this node has not ended, whatever gres.conf says of
// its GPU now.
func TestHolderThatRuns(t *testing.T) {
	n := begin(t, "")
	running := Job{ID: 71, GPUs: "0", Options: one("gpu-power", "500")}
	n.prolog(t, running)
	state := n.state(t)
	step := exec.Command("bash", "-c", "exec -a 'slurmstepd: [71.batch]' sleep 60")
	if err := step.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = step.Process.Kill()
		_ = step.Wait()
	}()
	waitForTitle(t, step.Process.Pid, "slurmstepd: [71.batch]")
	next := Job{ID: 7, GPUs: "0", Options: one("gpu-power", "300")}
	n.prolog(t, next)
	if report, _ := n.report(t, "7"); !strings.Contains(report.Fault, "job 71, which runs on this node, has changed a GPU that Slurm has given to this one") {
		t.Errorf("%+v", report)
	}
	if now := n.state(t); now != state {
		t.Errorf("the GPUs are\n%s, want\n%s", now, state)
	}
	n.epilog(t, next)
	n.epilog(t, running)
}

func waitForTitle(t *testing.T, pid int, title string) {
	t.Helper()
	for range 200 {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && strings.HasPrefix(string(text), title) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("process %d is not %s", pid, title)
}

// A configuration that somebody broke under a running job does not keep the
// Epilog from finding what is changed.
func TestConfigurationBrokenMeanwhile(t *testing.T) {
	n := begin(t, "")
	before := n.state(t)
	j := Job{ID: 3, GPUs: "0", Options: one("gpu-power", "500")}
	n.prolog(t, j)
	for _, broken := range []string{"[job]\non_refusal = \"maybe\"\n", "[job\n", "[paths]\nstate = 3\n"} {
		if err := n.Configure(broken); err != nil {
			t.Fatal(err)
		}
		output := n.epilog(t, j)
		if !strings.Contains(output, "gputune.toml: line ") {
			t.Errorf("output %q", output)
		}
		n.wantClean(t, before)
		if err := n.Configure(""); err != nil {
			t.Fatal(err)
		}
		n.prolog(t, j)
	}
	n.epilog(t, j)
}

// Where the number of a GPU is not known for sure nothing is changed.
func TestDoubt(t *testing.T) {
	for name, spoil := range map[string]func(etc string) error{
		"no gres.conf": func(etc string) error {
			text := "ClusterName=test\nGresTypes=gpu\nNodeName=other Gres=gpu:4\n"
			return errors.Join(os.Truncate(etc+"/gres.conf", 0), os.WriteFile(etc+"/slurm.conf", []byte(text), 0o644))
		},
		"no slurm.conf": func(etc string) error { return os.Remove(etc + "/slurm.conf") },
	} {
		t.Run(name, func(t *testing.T) {
			n := begin(t, "")
			before := n.state(t)
			if err := spoil(filepath.Join(n.Dir, "etc")); err != nil {
				t.Fatal(err)
			}
			j := Job{ID: 3, GPUs: "0", Options: one("gpu-power", "500")}
			n.prolog(t, j)
			if report, notice := n.report(t, "3"); report.Fault == "" || !strings.HasPrefix(notice, "warn\n") {
				t.Errorf("%+v, %q", report, notice)
			}
			n.epilog(t, j)
			n.wantClean(t, before)
		})
	}
}

// A user who passes any number of variables costs no time and gets a short
// answer.
func TestManyVariables(t *testing.T) {
	n := begin(t, "")
	before := n.state(t)
	j := Job{ID: 3, GPUs: "0", Options: one("gpu-power", "500")}
	command := n.Program(t.Context(), "gputune-prolog", j)
	for i := range 30_000 {
		command.Env = append(command.Env, fmt.Sprintf("SPANK_GPUTUNE_X%d=", i))
	}
	result, err := Finish(command)
	if err != nil || result.Code != 0 || strings.Count(result.Output, "\n") > 10 {
		t.Errorf("status %d, %v, %d lines", result.Code, err, strings.Count(result.Output, "\n"))
	}
	_, notice := n.report(t, "3")
	if !strings.HasPrefix(notice, "fail\n") || strings.Count(notice, "\n") != 5 || !strings.Contains(notice, "nor are others that were passed") {
		t.Errorf("notice %q", notice)
	}
	n.epilog(t, Job{ID: 3})
	n.wantClean(t, before)
}
