//go:build gpu

package hw

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gputune/internal/report"
	"gputune/internal/sample"
)

// loadTime is how long the load of TestReport runs.
const loadTime = 60 * time.Second

// matrixProducts is what training does most, for as many seconds as its argument
// says.
const matrixProducts = `
import sys, time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
b = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
end = time.time() + float(sys.argv[1])
while time.time() < end:
    for _ in range(50):
        c = a @ b
    torch.cuda.synchronize()
`

// program returns the path of a program of gputune's: an installed one, or the one
// that make has built.
func program(t testing.TB, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	path, err := filepath.Abs(filepath.Join("../../build/bin", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// smiFields are what nvidia-smi samples beside, in the report's order of levels.
var smiFields = []struct {
	field string
	level sample.Level
}{
	{"utilization.gpu", sample.SMPercent},
	{"utilization.memory", sample.MemoryPercent},
	{"memory.used", sample.MemoryMiB},
	{"power.draw", sample.PowerWatts},
	{"clocks.sm", sample.SMClock},
	{"clocks.mem", sample.MemoryClock},
	{"temperature.gpu", sample.Temperature},
}

// Means of the report and of nvidia-smi's samples, each 500 ms, may differ by so
// much: by a share of nvidia-smi's, or by so many of the unit. The two look at other
// moments, and the load begins and ends between two looks.
var tolerance = map[sample.Level]struct{ share, units float64 }{
	sample.SMPercent:     {0.05, 5},
	sample.MemoryPercent: {0.10, 5},
	sample.MemoryMiB:     {0.10, 256},
	sample.PowerWatts:    {0.05, 15},
	sample.SMClock:       {0.05, 30},
	sample.MemoryClock:   {0.02, 5},
	sample.Temperature:   {0.10, 3},
}

// A load runs as a job would, between gputune-prolog and gputune-epilog, with
// gputuned and without Slurm. The report has what nvidia-smi saw meanwhile.
func TestReport(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("gputuned is root's")
	}
	dir := t.TempDir()
	count := len(smi(t, "uuid"))
	uuid := smi(t, "uuid")[0][0]
	textfile := filepath.Join(dir, "gputune.prom")
	for name, text := range map[string]string{
		"slurm.conf": fmt.Sprintf("ClusterName=x\nGresTypes=gpu\nNodeName=n1 Gres=gpu:%d\n", count),
		"gres.conf":  fmt.Sprintf("Name=gpu File=/dev/nvidia[0-%d]\n", count-1),
		"gputune.toml": fmt.Sprintf("[paths]\nstate = %q\nrun = %q\nsnapshot = %q\n[agent]\nlisten = \"\"\ninterval = \"1s\"\ntextfile = %q\nslurm_conf = %q\n",
			filepath.Join(dir, "state"), filepath.Join(dir, "run"), filepath.Join(dir, "topology.json"), textfile, filepath.Join(dir, "slurm.conf")),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	config := "--config=" + filepath.Join(dir, "gputune.toml")
	agent := exec.Command(program(t, "gputuned"), config)
	var log bytes.Buffer
	agent.Stderr = &log
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = agent.Process.Signal(syscall.SIGTERM)
		if err := agent.Wait(); err != nil || t.Failed() {
			t.Errorf("gputuned: %v\n%s", err, &log)
		}
	}()
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, "run", sample.SocketName)); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("gputuned does not listen")
		}
	}
	slurmd := func(name string) {
		t.Helper()
		command := exec.Command(program(t, name), config)
		command.Env = append(os.Environ(), "SLURM_JOB_ID=4711", "SLURM_JOB_UID=0", "SLURM_JOB_GID=0", "SLURM_JOB_USER=root", "SLURM_JOB_GPUS=0",
			"CUDA_VISIBLE_DEVICES=0", "SLURMD_NODENAME=n1", "SLURM_CONF="+filepath.Join(dir, "slurm.conf"))
		if output, err := command.CombinedOutput(); err != nil || len(output) > 0 {
			t.Errorf("%s: %v\n%s", name, err, output)
		}
	}
	slurmd("gputune-prolog")
	var fields []string
	for _, f := range smiFields {
		fields = append(fields, f.field)
	}
	var beside bytes.Buffer
	watch := exec.Command("nvidia-smi", "-i", uuid, "--query-gpu="+strings.Join(fields, ","), "--format=csv,noheader,nounits", "-lms", "500")
	watch.Stdout = &beside
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	load(t, uuid)
	_ = watch.Process.Kill()
	_ = watch.Wait()
	slurmd("gputune-epilog")

	output := run(t, program(t, "gputune"), "report", "4711", "--format=json", config)
	var said struct{ Reports []report.Report }
	if err := json.Unmarshal([]byte(output), &said); err != nil || len(said.Reports) != 1 || len(said.Reports[0].GPUs) != 1 {
		t.Fatalf("%v\n%s", err, output)
	}
	r := said.Reports[0]
	gpu := r.GPUs[0]
	t.Log("\n" + run(t, program(t, "gputune"), "report", "4711", config))
	if gpu.UUID != uuid || gpu.Error != "" || math.Abs(gpu.Sampled-r.Length().Seconds()) > 2*r.Interval {
		t.Errorf("%s: sampled %v s of %v: %s", gpu.UUID, gpu.Sampled, r.Length(), gpu.Error)
	}
	seen := watched(t, beside.String())
	for i, f := range smiFields {
		values := seen[i]
		stat, known := gpu.Levels[f.level]
		if len(values) == 0 || !known {
			t.Errorf("%s: nvidia-smi has %d values, the report has it: %v", f.field, len(values), known)
			continue
		}
		mean, most := 0.0, slices.Max(values)
		for _, value := range values {
			mean += value / float64(len(values))
		}
		t.Logf("%-20s report %8.1f mean %8.1f max   nvidia-smi %8.1f mean %8.1f max of %d", f.level, stat.Mean, stat.Max, mean, most, len(values))
		allowed := tolerance[f.level]
		if within := max(mean*allowed.share, allowed.units); math.Abs(stat.Mean-mean) > within {
			t.Errorf("%s: mean %.1f, nvidia-smi's %.1f: want them within %.1f", f.level, stat.Mean, mean, within)
		}
	}
	energy, known := gpu.Totals[sample.Energy]
	if power := gpu.Levels[sample.PowerWatts]; !known || math.Abs(energy/r.Length().Seconds()-power.Mean) > 0.05*power.Mean {
		t.Errorf("energy %v J in %v, mean power %v W", energy, r.Length(), power.Mean)
	}
	t.Logf("counted: %v", slices.Sorted(maps.Keys(gpu.Totals)))
	t.Logf("throttled: looks %v, counted %v", gpu.Throttled, gpu.Counted)
	// The agent writes its metrics each second.
	time.Sleep(2 * time.Second)
	text, err := os.ReadFile(textfile)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "gputune_report_") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

// load runs PyTorch where it is, or else the program of cuda.c, on one GPU.
func load(t *testing.T, uuid string) {
	t.Helper()
	seconds := strconv.Itoa(int(loadTime.Seconds()))
	command := exec.Command("python3", "-c", matrixProducts, seconds)
	if err := exec.Command("python3", "-c", "import torch").Run(); err != nil {
		command = exec.Command(cuda(t), "--seconds", seconds)
		command.Stdin = strings.NewReader("go\n")
	}
	command.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES="+uuid)
	t.Logf("load: %s for %v", command.Args[0], loadTime)
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
}

// watched reads what nvidia-smi has sampled, by field. Its last line may be torn.
func watched(t *testing.T, text string) [][]float64 {
	t.Helper()
	columns := make([][]float64, len(smiFields))
	reader := csv.NewReader(strings.NewReader(text[:strings.LastIndexByte(text, '\n')+1]))
	reader.TrimLeadingSpace = true
	rows, err := reader.ReadAll()
	if err != nil && !errors.Is(err, csv.ErrFieldCount) {
		t.Fatal(err)
	}
	for _, row := range rows {
		for i, field := range row {
			if value, err := strconv.ParseFloat(field, 64); err == nil && i < len(columns) {
				columns[i] = append(columns[i], value)
			}
		}
	}
	return columns
}
