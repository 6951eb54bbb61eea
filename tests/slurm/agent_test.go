//go:build slurm

package slurm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gputune/internal/affinity"
	"gputune/internal/idset"
	"gputune/internal/job"
	"gputune/internal/verify"
	"gputune/tests/slurm/bed"
	"gputune/tests/slurm/site"
)

// startAgentSite starts a site on which jobs leave traces, and writes the agent's
// configuration.
func startAgentSite(t *testing.T, more string) *settings {
	t.Helper()
	s := startSettings(t, "", "PrologFlags=Alloc,Contain",
		"SchedulerParameters=nohold_on_prolog_fail,batch_sched_delay=0,bf_interval=1,sched_interval=1,sched_min_interval=1")
	s.configureAgent(t, more)
	return s
}

func (s *settings) configureAgent(t *testing.T, more string) {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(s.Folder, "gputune.toml"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := fmt.Fprintf(file, "\n[agent]\ninterval = \"1s\"\ngrace = \"1s\"\nlisten = \"\"\nslurm_conf = %q\n%s", s.Conf, more); err != nil {
		t.Fatal(err)
	}
}

// agent starts the site's gputuned. Its output is complete when it has ended.
func (s *settings) agent(t *testing.T) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	tree, err := site.Tree()
	if err != nil {
		t.Fatal(err)
	}
	var output bytes.Buffer
	command := exec.Command(filepath.Join(tree, "build/bin/gputuned"), "--config="+filepath.Join(s.Folder, "gputune.toml"))
	command.Env = append(s.NVML.Environ(), "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
	command.Stderr = &output
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	return command, &output
}

// The agent is killed a hundred times at random while jobs begin, run and end and
// some of their Prologs and Epilogs are killed, too, or do not come. Nothing that a
// job had stays, and nothing is put back under a job that runs.
func TestAgentKilledHundredTimes(t *testing.T) {
	t.Parallel()
	s := startAgentSite(t, "")
	c := &crowd{settings: s, random: rand.New(rand.NewPCG(5, 6)), killed: map[string]int{}}
	seen := filepath.Join(s.Folder, "seen")
	if err := os.Mkdir(seen, 0o777); err != nil {
		t.Fatal(err)
	}
	// The Epilog of every third job does not come.
	epilog := filepath.Join(s.Folder, "gputune-epilog")
	text, err := os.ReadFile(epilog)
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte("#!/bin/sh\n"), []byte("#!/bin/sh\n[ $((SLURM_JOB_ID % 3)) = 0 ] && exit 0\n"), 1)
	if err := os.WriteFile(epilog, text, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var helpers sync.WaitGroup
	helpers.Go(func() { c.killPrograms(ctx) })
	helpers.Go(func() { // Slurm drains the node for a killed Epilog; nobody but the agent puts back
		for ctx.Err() == nil {
			if state, _, err := c.NodeState(t.Context()); err == nil && strings.Contains(state, "drain") {
				if result, err := c.Run(t.Context(), "scontrol", "update", "nodename="+c.Node, "state=resume"); err == nil && result.OK() {
					c.mended++
				}
			}
			time.Sleep(300 * time.Millisecond)
		}
	})
	kills, restores := 0, 0
	var said sync.Map // what each agent wrote, by number
	t.Cleanup(func() {
		if t.Failed() {
			said.Range(func(number, text any) bool { t.Logf("agent %v: %v", number, text); return true })
		}
	})
	helpers.Go(func() {
		random := rand.New(rand.NewPCG(7, 8))
		for kills < 100 || ctx.Err() == nil {
			command, output := s.agent(t)
			// Most runs are shorter than the grace; some put back, and die in it.
			time.Sleep(time.Duration(random.IntN(900)+random.IntN(2)*random.IntN(5000)) * time.Millisecond)
			if err := command.Process.Kill(); err != nil {
				t.Error(err)
			}
			if err := command.Wait(); err == nil || command.ProcessState.Exited() {
				t.Errorf("the agent ended by itself: %v\n%s", err, output)
			}
			kills++
			said.Store(kills, output.String())
			restores += strings.Count(output.String(), "action=restored")
		}
	})
	jobs := 0
	script := fmt.Sprintf("R=%s/jobs/$SLURM_JOB_ID.json; sleep $0; cat %s/fakenvml.state $R >%s/$SLURM_JOB_ID", s.RunFolder, s.NVML.Folder, seen)
	for ; jobs < 100; jobs++ {
		if jobs%10 == 0 { // nobody comes after the last jobs who would put back what they have left
			s.wait(t, "the jobs to end and what they have left to be put back", 4*time.Minute, func() bool {
				queue, err := s.Jobs(t.Context())
				return err == nil && len(queue) == 0 && len(s.files(t)) == 0
			})
		}
		arguments := []string{"--no-requeue", "-o", "/dev/null", "--gpus=" + strconv.Itoa(1+c.random.IntN(2)), "--gpu-power=500"}
		if c.random.IntN(2) > 0 {
			arguments = append(arguments, "--gpu-clocks=1200")
		}
		length := fmt.Sprintf("%d.%d", c.random.IntN(2)*c.random.IntN(6), c.random.IntN(10))
		id := s.submit(t, strings.Replace(script, "$0", length, 1), arguments...)
		if c.random.IntN(8) == 0 {
			after := time.Duration(c.random.IntN(3000)) * time.Millisecond
			helpers.Go(func() {
				time.Sleep(after)
				if result, err := s.Run(t.Context(), "scancel", id); err == nil && result.OK() {
					c.count("job")
				}
			})
		}
	}
	s.wait(t, "all jobs to end", 8*time.Minute, func() bool {
		queue, err := s.Jobs(t.Context())
		return err == nil && len(queue) == 0
	})
	stop()
	helpers.Wait()
	leftByKills := len(s.files(t))
	command, output := s.agent(t)
	s.wait(t, "what is left to be put back", time.Minute, func() bool {
		holder, err := os.ReadFile(filepath.Join(s.RunFolder, "agent.lock"))
		return err == nil && string(holder) == fmt.Sprintln(command.Process.Pid) && len(s.files(t)) == 0
	})
	if err := command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := command.Wait(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
	// Slurm may have drained the node for a killed program after the last look.
	if state, _, err := s.NodeState(t.Context()); err == nil && strings.Contains(state, "drain") {
		must(t, s.Site, "scontrol", "update", "nodename="+s.Node, "state=resume")
	}
	s.wantClean(t)
	ran := 0
	entries, err := os.ReadDir(seen)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(seen, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		state, reported, found := strings.Cut(string(text), "{")
		var report job.Report
		if !found || json.Unmarshal([]byte("{"+reported), &report) != nil {
			t.Errorf("job %s: its report was gone while it ran:\n%s", entry.Name(), text)
			continue
		}
		if report.Fault != "" {
			continue // its Prolog was killed
		}
		ran++
		for _, option := range report.Options {
			for _, gpu := range option.GPUs {
				if option.Name == "gpu-power" && !strings.Contains(state, "gpu/"+gpu.UUID+"/power_limit 500000\n") {
					t.Errorf("job %s: gpu %s was put back under it:\n%s", entry.Name(), gpu.UUID, state)
				}
			}
		}
	}
	t.Logf("the agent was killed %d times; %d jobs, %d ran tuned to their end; killed: %v; the agent put back %d settings in between, %d files were left for the last one; the node was resumed %d times",
		kills, jobs, ran, c.killed, restores, leftByKills, c.mended)
	if ran < jobs/4 || c.killed["epilog"]+c.killed["prolog"] == 0 || restores < 10 {
		t.Error("that tested too little")
	}
}

// A task that leaves its CPUs is found by "gputune verify" and by the agent, which
// puts it back where the site says so.
func TestVerify(t *testing.T) {
	t.Parallel()
	s := &settings{Site: start(t, site.Options{Jobs: true})}
	tree, err := site.Tree()
	if err != nil {
		t.Fatal(err)
	}
	run := func(id string) (bed.Result, error) {
		return s.Command(filepath.Join(tree, "build/bin/gputune"), "verify", id, "--format=json").Run(t.Context())
	}
	id := s.submit(t, "srun --gpu-numa-bind sh -c 'sleep 300; true'", "--gpus=1")
	var report verify.Report
	look := func(code int) verify.TaskReport {
		t.Helper()
		result, err := run(id)
		if err != nil || result.Code != code || json.Unmarshal([]byte(result.Stdout), &report) != nil || len(report.Tasks) != 1 {
			t.Fatalf("%v, %v, want status %d", result, err, code)
		}
		return report.Tasks[0]
	}
	var last bed.Result
	defer func() {
		if t.Failed() {
			t.Logf("gputune verify said last: %+v", last)
		}
	}()
	s.wait(t, "the task", time.Minute, func() bool {
		result, err := run(id)
		last = result
		return err == nil && result.Code == 0 && strings.Contains(result.Stdout, `"processes": 2`)
	})
	task := look(0)
	if task.Job != id || task.Step != "0" || task.GPUs == "" || len(task.Findings) > 0 {
		t.Errorf("%+v", task)
	}
	planned, err := idset.Parse(task.CPUs)
	if err != nil || planned.Len() != 1 {
		t.Skipf("planned on cpus %s of this machine: nowhere else to go", task.CPUs)
	}
	if err := affinity.Set(task.PID, idset.Range(0, 1)); err != nil {
		t.Fatal(err)
	}
	task = look(1)
	if len(task.Findings) != 1 || task.Findings[0].Kind != verify.CPUs || task.Findings[0].PID != task.PID || task.Findings[0].Found != "0-1" {
		t.Errorf("%+v", task)
	}
	textfile := filepath.Join(s.Folder, "gputune.prom")
	s.configureAgent(t, fmt.Sprintf("verify_interval = \"1s\"\nrepair = [\"cpus\"]\ntextfile = %q\n", textfile))
	command, output := s.agent(t)
	s.wait(t, "the repair", time.Minute, func() bool {
		cpus, err := affinity.Get(task.PID)
		return err == nil && cpus.Equal(planned)
	})
	s.wait(t, "the metrics", time.Minute, func() bool {
		text, err := os.ReadFile(textfile)
		return err == nil && strings.Contains(string(text), "gputune_verify_tasks 1\n") &&
			strings.Contains(string(text), `gputune_verify_drifts_total{kind="cpus"} 1`) &&
			strings.Contains(string(text), `gputune_verify_repairs_total{kind="cpus",outcome="done"} 1`)
	})
	if err := command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := command.Wait(); err != nil || !strings.Contains(output.String(), fmt.Sprintf("job=%s step=0 pid=%d program=sh", id, task.PID)) {
		t.Errorf("%v\n%s", err, output)
	}
	look(0)
	must(t, s.Site, "scancel", id)
}
