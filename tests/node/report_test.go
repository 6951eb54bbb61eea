package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gputune/internal/report"
	"gputune/internal/sample"
	"gputune/tests/fakenvml"
)

// owner is the user of the jobs of these tests.
const owner = 65534

// reported makes a node with an agent that samples each second.
func reported(t *testing.T) *Node {
	t.Helper()
	return withAgent(t, "[report]\ninterval = \"1s\"\nmin_time = \"off\"\n")
}

// change gives the node's GPUs other figures, and keeps what is set.
func (n *Node) change(t *testing.T, lines ...string) {
	t.Helper()
	d := Driver(n.Machine)
	for i := range d.GPUs {
		d.GPUs[i].Lines = lines
	}
	if err := n.NVML.Change(t.Context(), d); err != nil {
		t.Fatal(err)
	}
}

// shown makes a job show on the node, until end.
func shown(t *testing.T, id int) (end func()) {
	t.Helper()
	return titled(t, fmt.Sprintf("slurmstepd: [%d.extern]", id))
}

func sampledJob(id int, gpus string) Job {
	return Job{ID: id, GPUs: gpus, Env: []string{fmt.Sprintf("SLURM_JOB_UID=%d", owner), fmt.Sprintf("SLURM_JOB_GID=%d", owner), "SLURM_JOB_USER=nobody"}}
}

// usage returns what gputune report says on a job, nil nothing.
func (n *Node) usage(t *testing.T, id int) []*report.Report {
	t.Helper()
	result, err := Finish(n.Program(t.Context(), "gputune", Job{}, "report", strconv.Itoa(id), "--format=json"))
	if err != nil {
		t.Fatal(err)
	}
	var said struct{ Reports []*report.Report }
	if result.Code == 0 {
		if err := json.Unmarshal([]byte(result.Output), &said); err != nil {
			t.Fatalf("%v\n%s", err, result.Output)
		}
	} else if !strings.Contains(result.Output, "no report on a job") {
		t.Fatalf("status %d\n%s", result.Code, result.Output)
	}
	return said.Reports
}

// waitForSamples waits until each GPU of a job was looked at so often.
func (n *Node) waitForSamples(t *testing.T, id, count int, says func() string) {
	t.Helper()
	waitFor(t, fmt.Sprintf("%d samples of job %d", count, id), func() bool {
		reports := n.usage(t, id)
		if len(reports) == 0 {
			return false
		}
		r := reports[len(reports)-1]
		for _, gpu := range r.GPUs {
			if gpu.Samples < count {
				return false
			}
		}
		return len(r.GPUs) > 0
	}, says)
}

func (n *Node) agentUp(t *testing.T) (kill func(), output func() string) {
	t.Helper()
	if err := os.Remove(filepath.Join(n.Run, sample.SocketName)); err != nil && !os.IsNotExist(err) { // of one that was killed
		t.Fatal(err)
	}
	agent, output := n.startAgent(t)
	waitFor(t, "the start", func() bool {
		_, err := os.Stat(filepath.Join(n.Run, sample.SocketName))
		return err == nil && strings.Contains(output(), "msg=started")
	}, output)
	return func() {
		if err := agent.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = agent.Wait()
	}, output
}

// What the driver says is what the report says.
func TestReport(t *testing.T) {
	n := reported(t)
	n.change(t, "utilization_samples 40 60", "utilization 1 30", "power 400000", "memory_used 8589934592", "temperature 61",
		"event_reasons 0x4", "energy 5000000", "ecc_errors 7 1", "pcie_replays 3", "field 197 1048576", "field 198 4194304", "field 270 2000000000")
	_, output := n.agentUp(t)
	j := sampledJob(agentJob+100, "1,2")
	shown(t, j.ID)
	n.prolog(t, j)
	n.waitForSamples(t, j.ID, 3, output)
	n.change(t, "utilization_samples 40 60", "utilization 1 30", "power 500000", "memory_used 17179869184", "temperature 63",
		"event_reasons 0x4", "energy 8600000", "ecc_errors 9 1", "pcie_replays 4", "field 197 3145728", "field 198 4194304", "field 270 5500000000")
	n.epilog(t, j)
	reports := n.usage(t, j.ID)
	if len(reports) != 1 {
		t.Fatalf("%d reports", len(reports))
	}
	r := reports[0]
	if r.State != report.Ended || r.UID != owner || r.User != "nobody" || r.Node != Name || len(r.GPUs) != 2 || r.Interval != 1 || !r.End.After(r.Begin) {
		t.Errorf("%+v", r)
	}
	for i, gpu := range r.GPUs {
		is := n.Machine.GPUs[1+i]
		if gpu.UUID != is.UUID || gpu.PCI != is.PCI || gpu.Model != "NVIDIA H200" || gpu.Samples < 4 || gpu.MemoryMiB != 143771 || gpu.Device != "" || gpu.Last != nil {
			t.Errorf("%+v", gpu)
		}
		if ran := r.Length().Seconds(); gpu.Sampled <= 1 || gpu.Sampled > ran+0.01 || ran-gpu.Sampled > 2 {
			t.Errorf("sampled for %v of %v s", gpu.Sampled, ran)
		}
		for level, want := range map[sample.Level]report.Stat{
			sample.MemoryPercent: {Mean: 30, Min: 30, Max: 30}, sample.SMClock: {Mean: 345, Min: 345, Max: 345}, sample.MemoryClock: {Mean: 3201, Min: 3201, Max: 3201},
		} {
			got := gpu.Levels[level]
			if got.Seconds = 0; got != want {
				t.Errorf("%s: %+v, want %+v", level, got, want)
			}
		}
		for level, want := range map[sample.Level][2]float64{sample.PowerWatts: {400, 500}, sample.MemoryMiB: {8192, 16384}, sample.Temperature: {61, 63}} {
			if got := gpu.Levels[level]; got.Min != want[0] || got.Max != want[1] || got.Mean < want[0] || got.Mean > want[1] {
				t.Errorf("%s: %+v, want from %v", level, got, want)
			}
		}
		// Ten of the driver's samples each second, 40 and 60 in turn.
		if got := gpu.Levels[sample.SMPercent]; math.Abs(got.Mean-50) > 3 || got.Max != 60 {
			t.Errorf("SM: %+v", got)
		}
		want := map[sample.Counter]float64{
			sample.Energy: 3600, sample.ECCCorrected: 2, sample.ECCUncorrected: 0, sample.PCIeReplays: 1, sample.PCIeSent: 2097152, sample.PCIeReceived: 0,
		}
		if !maps.Equal(gpu.Totals, want) {
			t.Errorf("totals %v, want %v", gpu.Totals, want)
		}
		if gpu.Counted["hw_thermal_slowdown"] != 3.5 || gpu.Throttled["sw_power_cap"] != gpu.Sampled || len(gpu.Throttled) != 1 {
			t.Errorf("throttled %v, counted %v, sampled %v", gpu.Throttled, gpu.Counted, gpu.Sampled)
		}
		if gpu.Series == nil || len(gpu.Series.SM) == 0 || gpu.Series.Step != 1 {
			t.Errorf("series %+v", gpu.Series)
		}
	}
	text := n.gputune(t, 0, "report", strconv.Itoa(j.ID))
	for _, want := range []string{"job " + strconv.Itoa(j.ID) + " on n1, user nobody: from ", "16.0 of 140.4 GiB", "3600 J", "hw_thermal_slowdown 4s", "2 ECC corrected, 1 PCIe", "SM, 100 %"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	t.Log("\n" + text)
	if list := n.gputune(t, 0, "report"); !strings.Contains(list, strconv.Itoa(j.ID)+"  nobody") {
		t.Errorf("the list:\n%s", list)
	}
	n.wantNoSampling(t, output)
}

// wantNoSampling is that no job is sampled and the driver is closed.
func (n *Node) wantNoSampling(t *testing.T, output func() string) {
	t.Helper()
	waitFor(t, "the process that samples to end", func() bool { return n.samplers(t) == 0 }, output)
	for _, folder := range []string{"sampled", "reports/" + strconv.Itoa(owner)} {
		entries, err := os.ReadDir(filepath.Join(n.Run, folder))
		if err != nil && !os.IsNotExist(err) || len(entries) > 0 {
			t.Errorf("%s has %v, %v", folder, entries, err)
		}
	}
}

// samplers counts the node's processes that have the driver open and belong to the
// agent.
func (n *Node) samplers(t *testing.T) int {
	t.Helper()
	pids, err := n.Processes()
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, pid := range pids {
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have ended
		mapped, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		if strings.Contains(string(command), "--worker") && strings.Contains(string(mapped), "libnvidia-ml.so.1") {
			count++
		}
	}
	return count
}

// An agent that is killed loses some samples and no more; the next one goes on, and
// an Epilog closes the report also without any.
func TestReportAgentKilled(t *testing.T) {
	n := reported(t)
	n.change(t, "energy 1000000")
	kill, output := n.agentUp(t)
	j := sampledJob(agentJob+101, "0")
	shown(t, j.ID)
	n.prolog(t, j)
	n.waitForSamples(t, j.ID, 1, output)
	kill()
	waitFor(t, "the process that samples to die with it", func() bool { return n.samplers(t) == 0 }, output)
	n.change(t, "energy 3000000")
	kill, output = n.agentUp(t)
	n.waitForSamples(t, j.ID, 2, output)
	kill()
	n.change(t, "energy 9000000")
	n.epilog(t, j)
	reports := n.usage(t, j.ID)
	if len(reports) != 1 || len(reports[0].GPUs) != 1 {
		t.Fatalf("%+v", reports)
	}
	if got := reports[0].GPUs[0].Totals[sample.Energy]; got != 2000 { // what came after the last look is not known
		t.Errorf("energy %v J", got)
	}
	if left, err := n.Marked(); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	// A job of which no agent saw anything.
	blind := sampledJob(agentJob+102, "0")
	n.prolog(t, blind)
	n.epilog(t, blind)
	text := n.gputune(t, 0, "report", strconv.Itoa(blind.ID))
	if !strings.Contains(text, "nobody looked at its GPUs") {
		t.Errorf("%s", text)
	}
	// A run that follows is another report.
	n.prolog(t, j)
	n.epilog(t, j)
	if reports := n.usage(t, j.ID); len(reports) < 1 || len(reports) > 2 {
		t.Errorf("%d reports", len(reports))
	}
}

// Where there is no agent, where the site wants none, where a
// job has no GPUs or was too short, there is no report and no file.
func TestNoReport(t *testing.T) {
	for name, c := range map[string]struct {
		config string
		agent  bool
		job    Job
	}{
		"no agent":  {"[report]\nmin_time = \"off\"\n", false, sampledJob(agentJob+103, "0")},
		"off":       {"[report]\nmin_time = \"off\"\nenabled = false\n", true, sampledJob(agentJob+103, "0")},
		"no GPUs":   {"[report]\nmin_time = \"off\"\n", true, sampledJob(agentJob+103, "")},
		"too short": {"[report]\nmin_time = \"1h\"\n", true, sampledJob(agentJob+103, "0")},
	} {
		t.Run(name, func(t *testing.T) {
			n := begin(t, c.config)
			if c.agent {
				if err := os.Mkdir(n.Run, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(n.Run, sample.SocketName), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			n.prolog(t, c.job)
			if marked, err := os.ReadDir(filepath.Join(n.Run, "sampled")); (name == "too short") != (err == nil && len(marked) == 1) {
				t.Errorf("the Prolog noted %v, %v", marked, err)
			}
			n.epilog(t, c.job)
			if reports := n.usage(t, c.job.ID); len(reports) > 0 {
				t.Errorf("%+v", reports[0])
			}
			if _, err := os.Stat(filepath.Join(n.State, "reports")); !os.IsNotExist(err) {
				t.Error(err)
			}
			if left, err := n.Marked(); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

// While a Prolog or an Epilog works on GPUs, nobody has the driver open for samples.
func TestReportOutOfTheWay(t *testing.T) {
	n := reported(t)
	_, output := n.agentUp(t)
	long := sampledJob(agentJob+104, "0")
	shown(t, long.ID)
	n.prolog(t, long)
	n.waitForSamples(t, long.ID, 1, output)
	if n.samplers(t) != 1 {
		t.Fatalf("%d processes sample", n.samplers(t))
	}
	j := Job{ID: agentJob + 105, GPUs: "1", Options: one("gpu-power", "500")}
	shown(t, j.ID)
	for _, program := range []string{"prolog", "epilog"} {
		// It is in the driver while this looks.
		if err := n.NVML.SetFaults(t.Context(), fakenvml.Fault{Call: "SetPowerManagementLimit", Nth: "1", Slow: 5 * time.Second}); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(n.NVML.Folder, "fakenvml.state.uses")); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		command := n.Program(t.Context(), "gputune-"+program, j)
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		n.waitForUse(t)
		if count := n.samplers(t); count != 0 {
			t.Errorf("%s: %d processes sample", program, count)
		}
		if err := command.Wait(); err != nil {
			t.Errorf("%s: %v", program, err)
		}
		waitFor(t, "sampling to go on", func() bool { return n.samplers(t) == 1 }, output)
	}
	n.epilog(t, long)
	n.wantNoSampling(t, output)
}

// A driver that hangs costs samples: neither the agent nor an Epilog waits for it.
func TestReportDriverHangs(t *testing.T) {
	n := reported(t)
	agent, output := n.startAgent(t)
	waitFor(t, "the start", func() bool { return strings.Contains(output(), "msg=started") }, output)
	j := sampledJob(agentJob+106, "0")
	if err := n.NVML.SetFaults(t.Context(), fakenvml.Fault{Call: "GetPowerUsage", Slow: forever}); err != nil {
		t.Fatal(err)
	}
	n.prolog(t, j)
	n.epilog(t, j)
	if reports := n.usage(t, j.ID); len(reports) != 1 || reports[0].State != report.Ended {
		t.Errorf("%+v", reports)
	}
	if err := n.NVML.SetFaults(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "its end", func() bool { return strings.Contains(output(), "the driver did not answer") }, output)
	again := sampledJob(agentJob+107, "0")
	shown(t, again.ID)
	n.prolog(t, again)
	n.waitForSamples(t, again.ID, 1, output)
	n.epilog(t, again)
	if err := agent.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := agent.Wait(); err != nil {
		t.Errorf("%v\n%s", err, output())
	}
}

// A job whose Epilog does not come has its report closed by the agent, and a GPU
// that is gone ends no other's figures.
func TestReportWithoutEpilog(t *testing.T) {
	n := reported(t)
	_, output := n.agentUp(t)
	j := sampledJob(agentJob+108, "0,1")
	if err := n.NVML.SetFaults(t.Context(), fakenvml.Fault{Call: "GetTemperature", GPU: "1", Nth: "3-", Error: "GPU_IS_LOST"}); err != nil {
		t.Fatal(err)
	}
	end := shown(t, j.ID)
	n.prolog(t, j)
	waitFor(t, "three looks", func() bool {
		reports := n.usage(t, j.ID)
		return len(reports) == 1 && len(reports[0].GPUs) == 2 && reports[0].GPUs[0].Samples >= 3 && reports[0].GPUs[1].Error != ""
	}, output)
	end()
	waitFor(t, "the report to be closed", func() bool {
		reports := n.usage(t, j.ID)
		return len(reports) == 1 && reports[0].State == report.Lost
	}, output)
	r := n.usage(t, j.ID)[0]
	if r.GPUs[0].Samples < 3 || r.GPUs[0].Error != "" || r.GPUs[1].Samples == 0 || r.GPUs[1].Samples >= r.GPUs[0].Samples || !strings.Contains(r.GPUs[1].Error, "lost") {
		t.Errorf("%+v", r.GPUs)
	}
	n.wantNoSampling(t, output)
}

// A report that cannot be written is said, and is no reason for an Epilog to fail.
func TestReportCannotBeWritten(t *testing.T) {
	for name, place := range map[string]func(reports string) error{
		"a file":      func(reports string) error { return os.WriteFile(reports, nil, 0o644) },
		"a link":      func(reports string) error { return os.Symlink(t.TempDir(), reports) },
		"somebody's":  func(reports string) error { return errors.Join(os.Mkdir(reports, 0o755), os.Chown(reports, owner, 0)) },
		"open to all": func(reports string) error { return errors.Join(os.Mkdir(reports, 0o755), os.Chmod(reports, 0o777)) },
		"user's is so": func(reports string) error {
			return errors.Join(os.Mkdir(reports, 0o755), os.WriteFile(filepath.Join(reports, strconv.Itoa(owner)), nil, 0o644))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := begin(t, "[report]\nmin_time = \"off\"\n")
			for _, folder := range []string{n.Run, n.State} {
				if err := os.Mkdir(folder, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(n.Run, sample.SocketName), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := place(filepath.Join(n.State, "reports")); err != nil {
				t.Fatal(err)
			}
			j := sampledJob(agentJob+109, "0")
			n.prolog(t, j)
			if output := n.epilog(t, j); !strings.Contains(output, fmt.Sprintf("job %d: report on its GPUs: ", j.ID)) {
				t.Errorf("not said: %q", output)
			}
			if left, err := n.Marked(); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}
