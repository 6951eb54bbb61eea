package node

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gputune/internal/follow"
	"gputune/internal/idset"
	"gputune/internal/verify"
	"gputune/tests/fakenvml"
)

// Job ids of these tests: other Slurms on the machine, whose processes the agent
// sees as well, do not get as far.
const agentJob = 40_000_000

// agentConfig is the [agent] table of these tests.
func agentConfig(n *Node, more string) string {
	return fmt.Sprintf("[agent]\ninterval = \"1s\"\ngrace = \"1s\"\nlisten = \"\"\nslurm_conf = %q\n%s", filepath.Join(n.Dir, "etc", "slurm.conf"), more)
}

// withAgent makes a node whose slurm.conf has Contain and on which a slurmd is seen.
func withAgent(t *testing.T, more string) *Node {
	t.Helper()
	n := begin(t, "")
	path := filepath.Join(n.Dir, "etc", "slurm.conf")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text = fmt.Appendf(text, "PrologFlags=Alloc,Contain\nSlurmdSpoolDir=%s/spool\n", n.Dir)
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := n.Configure(agentConfig(n, more)); err != nil {
		t.Fatal(err)
	}
	titled(t, "slurmd")
	return n
}

// titled starts a process that calls itself so, and returns what ends it.
func titled(t *testing.T, title string, environment ...string) (end func()) {
	t.Helper()
	command := exec.Command("bash", "-c", "exec -a '"+title+"' sleep 600")
	command.Env = append(os.Environ(), environment...)
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end = func() {
		if !ended {
			ended = true
			_ = command.Process.Kill()
			_ = command.Wait()
		}
	}
	t.Cleanup(end)
	waitForTitle(t, command.Process.Pid, title)
	return end
}

// agentOnce runs gputuned --once.
func (n *Node) agentOnce(t *testing.T, want int) string {
	t.Helper()
	result, err := Finish(n.Program(t.Context(), "gputuned", Job{}, "--once"))
	if err != nil || result.Code != want {
		t.Fatalf("gputuned --once: status %d, want %d, %v\n%s", result.Code, want, err, result.Output)
	}
	return result.Output
}

// startAgent starts gputuned; its output goes to a file.
func (n *Node) startAgent(t *testing.T) (agent *exec.Cmd, output func() string) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	file, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	command := n.Program(context.Background(), "gputuned", Job{})
	command.Stderr = file
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	return command, func() string {
		text, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}

func waitFor(t *testing.T, what string, so func() bool, says func() string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !so(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s\n%s", what, says())
		}
	}
}

// What a job has left that shows nowhere any more is put back, and what one has
// that shows in any way is not touched.
func TestAgentRestores(t *testing.T) {
	n := withAgent(t, "")
	before := n.state(t)
	ended := Job{ID: agentJob + 1, GPUs: "0", Options: one("gpu-power", "500")}
	n.prolog(t, ended)
	refused := Job{ID: agentJob + 2, GPUs: "1", Options: one("gpu-power", "1")}
	n.prolog(t, refused)
	output := n.agentOnce(t, 0)
	if want := fmt.Sprintf("job %d: gpu/%s/power.limit: 700 again", ended.ID, n.Machine.GPUs[0].UUID); !strings.Contains(output, want) {
		t.Errorf("no %q in\n%s", want, output)
	}
	n.wantClean(t, before)

	for name, shown := range map[string]func(id int) (end func()){
		"step":   func(id int) func() { return titled(t, fmt.Sprintf("slurmstepd: [%d.extern]", id)) },
		"prolog": func(id int) func() { return script(t, "prolog_slurmd", id) },
		"epilog": func(id int) func() { return script(t, "epilog_slurmd", id) },
	} {
		t.Run(name, func(t *testing.T) {
			end := shown(agentJob + 3)
			j := Job{ID: agentJob + 3, GPUs: "0", Options: one("gpu-power", "500")}
			n.prolog(t, j)
			during := n.state(t)
			if output := n.agentOnce(t, 0); strings.Contains(output, "again") {
				t.Errorf("put back under a job that shows:\n%s", output)
			}
			if now := n.state(t); now != during {
				t.Errorf("the GPUs are\n%s, want\n%s", now, during)
			}
			end()
			n.agentOnce(t, 0)
			n.wantClean(t, before)
		})
	}
}

// script starts a process of a job's Prolog or Epilog.
func script(t *testing.T, context string, id int) (end func()) {
	t.Helper()
	return titled(t, "site script", "SLURM_SCRIPT_CONTEXT="+context, fmt.Sprintf("SLURM_JOB_ID=%d", id))
}

// Where it cannot be told who is there nothing is touched, and it is said.
func TestAgentCannotTell(t *testing.T) {
	n := withAgent(t, "")
	j := Job{ID: agentJob + 4, GPUs: "0", Options: one("gpu-power", "500")}
	n.prolog(t, j)
	during := n.state(t)
	path := filepath.Join(n.Dir, "etc", "slurm.conf")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for want, conf := range map[string]string{
		"PrologFlags of slurm.conf has no Contain": strings.Replace(string(text), ",Contain", "", 1),
		"no such file": "",
	} {
		if err := os.WriteFile(path, []byte(conf), 0o644); err != nil {
			t.Fatal(err)
		}
		if conf == "" {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		if output := n.agentOnce(t, 0); !strings.Contains(output, "nothing is put back") || !strings.Contains(output, want) {
			t.Errorf("no %q in\n%s", want, output)
		}
		if now := n.state(t); now != during {
			t.Errorf("the GPUs are\n%s, want\n%s", now, during)
		}
	}
	n.epilog(t, j)
}

// The service heals while it runs, reads its configuration again, is the only one,
// and ends when it is told to.
func TestAgentService(t *testing.T) {
	n := withAgent(t, "")
	before := n.state(t)
	agent, output := n.startAgent(t)
	waitFor(t, "the start", func() bool { return strings.Contains(output(), "msg=started") }, output)
	result, err := Finish(n.Program(t.Context(), "gputuned", Job{}))
	if err != nil || result.Code != 1 || !strings.Contains(result.Output, fmt.Sprintf("another gputuned runs (pid %d)", agent.Process.Pid)) {
		t.Errorf("a second one: %v, %+v", err, result)
	}
	n.prolog(t, Job{ID: agentJob + 5, GPUs: "0", Options: all()})
	waitFor(t, "the state of before", func() bool { return n.state(t) == before }, output)
	waitFor(t, "the reports to go", func() bool { left, err := n.Left(); return err == nil && len(left) == 0 }, output)
	if _, err := os.Stat(filepath.Join(n.Dir, "topology.json")); err != nil {
		t.Error(err)
	}

	textfile := filepath.Join(n.Dir, "gputune.prom")
	if err := n.Configure(agentConfig(n, fmt.Sprintf("textfile = %q\n", textfile))); err != nil {
		t.Fatal(err)
	}
	if err := agent.Process.Signal(unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the file", func() bool { _, err := os.Stat(textfile); return err == nil }, output)
	text, err := os.ReadFile(textfile)
	if err != nil || !strings.Contains(string(text), `gputune_restores_total{outcome="restored"} `) {
		t.Errorf("%v\n%s", err, text)
	}
	if err := n.Configure("[agent]\ninterval = 3\n"); err != nil {
		t.Fatal(err)
	}
	if err := agent.Process.Signal(unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "a word about the broken file", func() bool { return strings.Contains(output(), "the configuration has an error") }, output)
	waitFor(t, "its metric", func() bool {
		text, err := os.ReadFile(textfile)
		return err == nil && strings.Contains(string(text), "gputune_config_valid 0")
	}, output)
	if err := agent.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := agent.Wait(); err != nil || !strings.Contains(output(), "msg=stopped") {
		t.Errorf("%v\n%s", err, output())
	}
}

// What cannot be put back stays in the ledger, is said, and is tried again.
func TestAgentCannotRestore(t *testing.T) {
	n := withAgent(t, "")
	before := n.state(t)
	n.prolog(t, Job{ID: agentJob + 10, GPUs: "0", Options: one("gpu-power", "500")})
	if err := n.NVML.SetFaults(t.Context(), fakenvml.Fault{Call: "SetPowerManagementLimit", Error: "NO_PERMISSION"}); err != nil {
		t.Fatal(err)
	}
	if output := n.agentOnce(t, 1); !strings.Contains(output, "action=failed") || strings.Count(output, "power.limit") < 2 {
		t.Errorf("not said:\n%s", output)
	}
	if left, err := n.Left(); err != nil || len(left) != 2 { // record and report
		t.Errorf("left %v, %v", left, err)
	}
	if err := n.NVML.SetFaults(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.agentOnce(t, 0)
	n.wantClean(t, before)
}

// The service manager hears that the agent is ready, alive, reading its
// configuration again, and stopping.
func TestAgentSystemd(t *testing.T) {
	n := withAgent(t, "")
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	command := n.Program(context.Background(), "gputuned", Job{})
	command.Env = append(command.Env, "NOTIFY_SOCKET="+path, "WATCHDOG_USEC=300000")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	}()
	hears := func(wants ...string) {
		t.Helper()
		text := make([]byte, 4096)
		for len(wants) > 0 {
			if err := socket.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			size, err := socket.Read(text)
			if err != nil {
				t.Fatalf("waiting for %q: %v", wants, err)
			}
			if strings.HasPrefix(string(text[:size]), wants[0]) {
				wants = wants[1:]
			}
		}
	}
	hears("READY=1", "WATCHDOG=1", "WATCHDOG=1")
	if err := command.Process.Signal(unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	hears("RELOADING=1\nMONOTONIC_USEC=", "READY=1", "WATCHDOG=1")
	if err := command.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	hears("STOPPING=1")
	if err := command.Wait(); err != nil {
		t.Error(err)
	}
}

// What Prologs and Epilogs did, who holds what, and what somebody else has set
// meanwhile is in the metrics.
func TestAgentMetrics(t *testing.T) {
	n := withAgent(t, "")
	textfile := filepath.Join(n.Dir, "gputune.prom")
	if err := n.Configure(agentConfig(n, fmt.Sprintf("textfile = %q\n", textfile))); err != nil {
		t.Fatal(err)
	}
	titled(t, fmt.Sprintf("slurmstepd: [%d.extern]", agentJob+6))
	titled(t, fmt.Sprintf("slurmstepd: [%d.extern]", agentJob+7))
	running := Job{ID: agentJob + 6, GPUs: "0", Options: one("gpu-power", "500")}
	refused := Job{ID: agentJob + 7, GPUs: "1", Options: one("gpu-power", "1")}
	ended := Job{ID: agentJob + 8, GPUs: "2", Options: one("gpu-power", "500")}
	n.prolog(t, running)
	n.prolog(t, refused)
	n.prolog(t, ended)
	n.epilog(t, ended)
	n.agentOnce(t, 0) // takes the runs away
	n.setState(t, "power_limit 500000", "power_limit 450000")
	output := n.agentOnce(t, 0)
	gpu := n.Machine.GPUs[0]
	if want := fmt.Sprintf(`msg="somebody has changed what a job has set" job=%d gpu=%s setting=power.limit set=500 now=450`, running.ID, gpu.UUID); !strings.Contains(output, want) {
		t.Errorf("no %q in\n%s", want, output)
	}
	text, err := os.ReadFile(textfile)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`gputune_program_runs_total{outcome="done",program="prolog"} 2`,
		`gputune_program_runs_total{outcome="refused",program="prolog"} 1`,
		`gputune_program_runs_total{outcome="done",program="epilog"} 1`,
		`gputune_program_duration_seconds_count{program="prolog"} 3`,
		`gputune_jobs_holding 1`,
		`gputune_settings_held{setting="power.limit"} 1`,
		`gputune_settings_drifted{setting="power.limit"} 1`,
		`gputune_settings_drifted{setting="persistence"} 0`,
		fmt.Sprintf(`gputune_gpu_job_info{gpu="%s",job="%d",uuid="%s"} 1`, gpu.PCI, running.ID, gpu.UUID),
		`gputune_job_options{option="gpu-power",state="refused"} 1`,
		`gputune_job_options{option="gpu-power",state="applied"} 1`,
		`gputune_recovery_undecided 0`,
		`gputune_agent_work_total{outcome="done",work="held"} 1`,
		`gputune_build_info{goversion="`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	n.setState(t, "power_limit 450000", "power_limit 500000")
	n.epilog(t, running)
	n.epilog(t, refused)
}

// A driver that hangs does not take the agent with it, and nothing is lost.
func TestAgentDriverHangs(t *testing.T) {
	n := withAgent(t, "deadline = \"1s\"\n")
	before := n.state(t)
	n.prolog(t, Job{ID: agentJob + 9, GPUs: "0", Options: one("gpu-power", "500")})
	if err := n.NVML.SetFaults(t.Context(), fakenvml.Fault{Call: "SetPowerManagementLimit", Slow: forever}); err != nil {
		t.Fatal(err)
	}
	agent, output := n.startAgent(t)
	waitFor(t, "the deadline", func() bool { return strings.Contains(output(), "not done within agent.deadline") }, output)
	if err := n.NVML.SetFaults(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the state of before", func() bool { return n.state(t) == before }, output)
	if err := agent.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := agent.Wait(); err != nil {
		t.Errorf("%v\n%s", err, output())
	}
}

// systemd understands every line of the unit file.
func TestUnitFile(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip(err)
	}
	top, err := tree()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(top, "conf/gputuned.service"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "gputuned.service")
	text = []byte(strings.ReplaceAll(string(text), "@sbindir@", filepath.Join(top, "build/bin")))
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	output, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", path).CombinedOutput()
	if err != nil || strings.Contains(string(output), "gputuned.service") {
		t.Errorf("%v\n%s", err, output)
	}
}

// beginAgent starts a node's agent, for as long as the benchmark runs.
func beginAgent(b *testing.B, n *Node) *exec.Cmd {
	b.Helper()
	command := n.Program(context.Background(), "gputuned", Job{})
	if err := command.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	return command
}

// BenchmarkAgentIdle is what the agent takes of a node for a minute in which
// nothing happens.
func BenchmarkAgentIdle(b *testing.B) {
	n := onMachine(b, "dgx-h100")
	if err := n.Configure("[agent]\nlisten = \"127.0.0.1:39946\"\n"); err != nil {
		b.Fatal(err)
	}
	command := beginAgent(b, n)
	// Nothing is asked of a child in that minute.
	used := func() int64 { return onProcessor(b, command.Process.Pid) }
	time.Sleep(5 * time.Second)
	atStart := used()
	for range b.N {
		time.Sleep(time.Minute)
	}
	share := float64(used()-atStart) / float64(time.Minute) / float64(b.N)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", command.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	var kib int
	if _, err := fmt.Sscan(peak, &kib); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(share*100, "%-of-a-core")
	b.ReportMetric(float64(kib)/1024, "peak-MiB")
}

// BenchmarkAgentFollows is what the agent and its child take to follow a step with
// eight workers on eight GPUs in half a minute, the fake driver's own time included.
func BenchmarkAgentFollows(b *testing.B) {
	n := onMachine(b, "dgx-a100")
	if err := n.Configure("[agent]\nlisten = \"\"\n"); err != nil {
		b.Fatal(err)
	}
	step := follow.Step{Job: "1", Step: "0"}
	self, _ := verify.This().Find(os.Getpid())
	step.PID, step.Began = self.PID, self.Began()
	pids := map[string][]int{}
	for _, gpu := range n.Machine.GPUs {
		worker := exec.Command("sleep", "600")
		if err := worker.Start(); err != nil {
			b.Fatal(err)
		}
		defer func() {
			_ = worker.Process.Kill()
			_ = worker.Wait()
		}()
		pids[gpu.UUID] = []int{worker.Process.Pid}
		step.Shares = append(step.Shares, follow.Share{PCI: gpu.PCI, CPUs: idset.Of(0), Locality: "local"})
	}
	if err := n.NVML.SetProcesses(pids); err != nil {
		b.Fatal(err)
	}
	command := beginAgent(b, n)
	if _, err := follow.Record(n.Run, step); err != nil {
		b.Fatal(err)
	}
	time.Sleep(5 * time.Second)
	tree, err := verify.This().Processes()
	if err != nil {
		b.Fatal(err)
	}
	family := tree.Below(command.Process.Pid, func(int) bool { return false })
	if len(family) != 2 {
		b.Fatalf("the agent and its child are %v", family)
	}
	used := func() (sum int64) {
		for _, p := range family {
			sum += onProcessor(b, p.PID)
		}
		return sum
	}
	atStart := used()
	for range b.N {
		time.Sleep(30 * time.Second)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(used()-atStart)/float64(30*time.Second)/float64(b.N)*100, "%-of-a-core")
}

// onProcessor is a process's time on a processor in ns, from schedstat of its threads:
// stat counts in 10 ms.
func onProcessor(b *testing.B, pid int) (sum int64) {
	b.Helper()
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(names) == 0 {
		b.Fatal(names, err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if os.IsNotExist(err) {
			continue // a thread that has ended
		}
		var one int64
		if _, scanned := fmt.Sscan(string(text), &one); err != nil || scanned != nil {
			b.Fatal(name, err, scanned)
		}
		sum += one
	}
	return sum
}

// BenchmarkAgentSampling is what sampling the eight GPUs of a job takes of a node for
// a minute: the agent, and the process that asks the driver, here a made-up one that
// reads a file at each call.
func BenchmarkAgentSampling(b *testing.B) {
	n := onMachine(b, "dgx-h100")
	if err := n.Configure("[agent]\nlisten = \"\"\n"); err != nil {
		b.Fatal(err)
	}
	command := beginAgent(b, n)
	time.Sleep(5 * time.Second)
	j := Job{ID: agentJob + 200, GPUs: "0,1,2,3,4,5,6,7"}
	if result, err := n.Prolog(b.Context(), j); err != nil || result.Code != 0 {
		b.Fatal(err, result)
	}
	time.Sleep(5 * time.Second)
	child := 0
	for _, thread := range threadsOf(b, command.Process.Pid) { // a child is that of the thread that made it
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", command.Process.Pid, thread))
		if err != nil && !os.IsNotExist(err) {
			b.Fatal(err)
		}
		if len(text) > 0 {
			if _, err := fmt.Sscan(string(text), &child); err != nil {
				b.Fatal(err)
			}
		}
	}
	if child == 0 {
		b.Fatal("nobody samples")
	}
	agentBefore, childBefore := onProcessor(b, command.Process.Pid), onProcessor(b, child)
	for range b.N {
		time.Sleep(time.Minute)
	}
	minute := float64(time.Minute) * float64(b.N)
	agent, asking := onProcessor(b, command.Process.Pid)-agentBefore, onProcessor(b, child)-childBefore
	if result, err := n.Epilog(b.Context(), j); err != nil || result.Code != 0 {
		b.Fatal(err, result)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(100*float64(agent)/minute, "agent-%-of-a-core")
	b.ReportMetric(100*float64(asking)/minute, "asking-%-of-a-core")
}

func threadsOf(b *testing.B, pid int) (ids []int) {
	b.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		b.Fatal(err)
	}
	for _, entry := range entries {
		var id int
		if _, err := fmt.Sscan(entry.Name(), &id); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}
