package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"gputune/internal/table"
	"gputune/tests/machines"
)

// rootOf returns a folder with the sys and proc of a described machine.
func rootOf(t *testing.T, description machines.Description) string {
	t.Helper()
	dir, remove, err := machines.Scratch()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := remove(); err != nil {
			t.Error(err)
		}
	})
	if err := description.Render(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestEveryMachine shows and plans every described machine in every form: text that
// fits its width and has no colours, JSON of the shape that was promised, SVG that
// can be read.
func TestEveryMachine(t *testing.T) {
	for _, description := range machines.All() {
		t.Run(description.Name, func(t *testing.T) {
			root := rootOf(t, description)
			for _, arguments := range [][]string{
				{"topo"},
				{"plan"},
				{"plan", "--gpus-per-task=1", "--explain", "--compare"},
				{"plan", "--gpus-per-task=1", "--bind=cpus=exclusive,smt=one,mem=bind", "--allowed-cpus=0", "--compare", "--explain"},
				{"plan", "--tasks=1", "--gpus=0", "--bind=cpus=core-complex"},
				{"plan", "--tasks=1", "--bind=follow,cpus=exclusive"},
			} {
				arguments = append(arguments, "--topology", root)
				text := output(t, arguments...)
				for line := range strings.Lines(text) {
					if utf8.RuneCountInString(line) > table.Width+1 || strings.HasSuffix(line, " \n") || strings.Contains(line, "\x1b") {
						t.Errorf("%v: %q", arguments, line)
					}
				}
				svg := xml.NewDecoder(strings.NewReader(output(t, append(arguments, "--format=svg")...)))
				for {
					if _, err := svg.Token(); errors.Is(err, io.EOF) {
						break
					} else if err != nil {
						t.Fatalf("%v: %v", arguments, err)
					}
				}
				checkJSON(t, arguments, output(t, append(arguments, "--format=json")...), text)
			}
		})
	}
}

func output(t *testing.T, arguments ...string) string {
	t.Helper()
	stdout, stderr, err := execute(t, arguments...)
	if err != nil || stderr != "" {
		t.Fatalf("%v: %v, %q", arguments, err, stderr)
	}
	return stdout
}

// shape is what other programs may rely on.
type shape struct {
	Source string
	GPUs   []struct {
		Index                  int
		PCI, UUID, Nodes, CPUs string
	}
	Tasks []struct {
		LocalID   int `json:"local_id"`
		GPUs      []int
		CPUs      string
		Mems      string
		MemPolicy string `json:"mem_policy"`
		Locality  string
		Warnings  []string
	}
	Workers []struct {
		GPU                  int
		CPUs, Mems, Locality string
	}
	Reasons, Compare      json.RawMessage
	Nodes, Packages, NICs json.RawMessage
	Warnings              []string
}

func checkJSON(t *testing.T, arguments []string, content, text string) {
	t.Helper()
	var got shape
	decoder := json.NewDecoder(strings.NewReader(content))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&got); err != nil {
		t.Fatalf("%v: %v", arguments, err)
	}
	if last := len(got.GPUs) - 1; got.Source != "sysfs" || last < 0 || got.GPUs[last].Index != last || got.GPUs[0].PCI == "" {
		t.Errorf("%v: %+v", arguments, got)
	}
	if arguments[0] == "topo" {
		if got.Nodes == nil || got.Packages == nil || got.NICs == nil || got.Warnings == nil || got.Tasks != nil {
			t.Errorf("%v: %s", arguments, content)
		}
		return
	}
	if got.Nodes != nil || got.Packages != nil || got.NICs != nil || got.Warnings != nil || len(got.Tasks) == 0 {
		t.Errorf("%v: %s", arguments, content)
	}
	if asked := strings.Contains(strings.Join(arguments, " "), "--compare"); asked != (got.Compare != nil) || asked != (got.Reasons != nil) {
		t.Errorf("%v: reasons %s, comparison %.40s", arguments, got.Reasons, got.Compare)
	}
	if strings.Contains(strings.Join(arguments, " "), "follow") != (len(got.Workers) == len(got.GPUs)) {
		t.Errorf("%v: workers %+v", arguments, got.Workers)
	}
	for _, worker := range got.Workers {
		if worker.CPUs == "" || worker.Locality == "" || !strings.Contains(text, "\nWhere gputuned puts the worker that uses a GPU") {
			t.Errorf("%v: %+v in\n%s", arguments, worker, text)
		}
	}
	// The text says the same.
	for _, task := range got.Tasks {
		if task.CPUs == "" || task.GPUs == nil || task.Warnings == nil || task.MemPolicy == "" {
			t.Errorf("%v: %+v", arguments, task)
		}
		if !strings.Contains(strings.Join(strings.Fields(text), ""), strings.Join(strings.Fields(task.CPUs), "")) && !strings.Contains(task.CPUs, ",") {
			t.Errorf("%v: cpus %s are not in\n%s", arguments, task.CPUs, text)
		}
	}
}

// What was looked at and found right.
func TestGolden(t *testing.T) {
	for name, c := range map[string]struct {
		machine   string
		arguments []string
	}{
		"topo-dgx-a100":      {"dgx-a100", []string{"topo"}},
		"topo-gb200":         {"gb200", []string{"topo"}},
		"topo-bridge-knows":  {"bridge-knows", []string{"topo"}},
		"plan-dgx-a100":      {"dgx-a100", []string{"plan", "--gpus-per-task=1", "--compare"}},
		"plan-job-cpuset":    {"job-cpuset", []string{"plan", "--tasks=2", "--bind=cpus=exclusive,mem=bind", "--allowed-cpus=0-3", "--allowed-mems=0", "--explain"}},
		"json-grace-hopper":  {"grace-hopper", []string{"plan", "--format=json"}},
		"json-at-minus-one":  {"gpu-at-minus-one", []string{"topo", "--format=json"}},
		"json-demo-compared": {"demo-dual", []string{"plan", "--gpus-per-task=2", "--format=json", "--compare", "--explain"}},
	} {
		description, err := machines.Get(c.machine)
		if err != nil {
			t.Fatal(err)
		}
		root := rootOf(t, description)
		got := strings.ReplaceAll(output(t, append(c.arguments, "--topology", root)...), root, "/copy")
		path := filepath.Join("testdata", name+".golden")
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		// Where the first line breaks depends on the length of the folder's name.
		want, err := os.ReadFile(path)
		if err != nil || strings.Join(strings.Fields(got), "") != strings.Join(strings.Fields(string(want)), "") {
			t.Errorf("%s: %v, got\n%s", path, err, got)
		}
	}
}

func TestPlanLayout(t *testing.T) {
	root := render(t, "demo-dual")
	for arguments, want := range map[string]string{
		"--gpus=3,0 --gpus-per-task=1":        "0:[3]:1 1:[0]:0",
		"--gpus=0000:97:00.0":                 "0:[2]:1",
		"--gpus=3,1,0,2":                      "0:[3]:1 1:[1]:0 2:[0]:0 3:[2]:1",
		"--gpus=3,1,0,2 --tasks=2":            "0:[3 1]:0-1 1:[0 2]:0-1",
		"--gpus-per-task=2":                   "0:[0 1]:0 1:[2 3]:1",
		"--tasks=2":                           "0:[0 1]:0 1:[2 3]:1",
		"--tasks=1 --gpus-per-task=1":         "0:[0]:0",
		"--tasks=3":                           "0:[0 1 2 3]:0-1 1:[0 1 2 3]:0-1 2:[0 1 2 3]:0-1",
		"--tasks=2 --bind=gpus=all":           "0:[0 1 2 3]:0-1 1:[0 1 2 3]:0-1",
		"--tasks=1 --allowed-cpus=1":          "0:[0 1 2 3]:1",
		"--tasks=1 --gpus=0 --allowed-cpus=1": "0:[0]:1",
		"--tasks=8 --gpus-per-task=1":         "with 4 GPUs there are at most 4 tasks",
		"--tasks=0":                           "--tasks 0: want 1 to",
		"--tasks=-1 --gpus-per-task=1":        "--tasks -1: want 1 to 4",
		"--gpus-per-task=5":                   "--gpus-per-task 5: want 1 to 4",
		"--gpus=7":                            "--gpus: GPU list",
		"--allowed-cpus=7":                    "--allowed-cpus 7: the machine has no CPUs 7: want some of 0-1",
		"--allowed-cpus=":                     "want a list such as 0-1",
		"--allowed-mems=x":                    "--allowed-mems: list",
		"--allowed-mems=5":                    "the machine has no nodes 5",
		"--bind=off":                          "nothing is bound",
		"--config=/none/gputune.toml":         "/none/gputune.toml",
	} {
		stdout, _, err := execute(t, append(strings.Fields("plan --format=json "+arguments), "--topology", root)...)
		if err != nil {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", arguments, err, want)
			}
			continue
		}
		var got shape
		if err := json.Unmarshal([]byte(stdout), &got); err != nil {
			t.Fatal(err)
		}
		var tasks []string
		for _, task := range got.Tasks {
			tasks = append(tasks, strings.ReplaceAll(strings.Join([]string{jsonText(task.LocalID), jsonText(task.GPUs), task.CPUs}, ":"), ",", " "))
		}
		if text := strings.Join(tasks, " "); text != want {
			t.Errorf("%s: %s, want %s", arguments, text, want)
		}
	}
}

func jsonText(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func TestMPSServers(t *testing.T) {
	root := t.TempDir()
	for pid, name := range map[string]string{"17": "nvidia-cuda-mps\n", "4": "nvidia-cuda-mps\n", "8": "bash\n"} {
		if err := os.MkdirAll(filepath.Join(root, "proc", pid), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "proc", pid, "comm"), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := mpsServers(root); len(got) != 1 || !strings.HasPrefix(got[0], "MPS is on (pid 17, 4)") {
		t.Errorf("got %q", got)
	}
	if got := mpsServers(t.TempDir()); got != nil {
		t.Errorf("no process at all: %q", got)
	}
}

// What a comparison rests on is said where the source states less.
func TestComparisonSaysWhatItLacks(t *testing.T) {
	const remark = "Packages or cores are not stated"
	if text := output(t, "plan", "--compare", "--topology", render(t, "demo-dual")); strings.Contains(text, remark) {
		t.Errorf("everything is stated:\n%s", text)
	}
	file := filepath.Join(t.TempDir(), "node.txt")
	table := "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-7\t0\nGPU1\tSYS\t X \t8-15\t1\n"
	if err := os.WriteFile(file, []byte(table), 0o644); err != nil {
		t.Fatal(err)
	}
	text := output(t, "plan", "--compare", "--gpus-per-task=1", "--topology", file)
	for _, part := range []string{remark, "1     1     1        8-15  prefer 1  local", file + " (nvidia-smi): 2 tasks"} {
		if !strings.Contains(text, part) {
			t.Errorf("want %q in\n%s", part, text)
		}
	}
}

// What only Slurm decides is said where the plan rests on it.
func TestPlanSaysWhatSlurmDecides(t *testing.T) {
	root := render(t, "demo-dual")
	for arguments, want := range map[string]string{
		"--tasks=2 --bind=cpus=none":                   "the locality is that of all CPUs granted",
		"--tasks=3 --bind=gpus=local":                  "gpus=local takes all CPUs granted for its own",
		"--gpus-per-task=1 --bind=gpus=local":          "",
		"--tasks=1 --bind=gpus=local,cpus=none":        "",
		"--gpus-per-task=2 --bind=cpus=none,mem=none":  "the locality is that of all CPUs granted",
		"--gpus-per-task=1 --bind=cpus=socket,smt=one": "",
	} {
		text := output(t, append(strings.Fields("plan "+arguments), "--topology", root)...)
		const begin = "not stated: where Slurm binds each task"
		if want == "" && strings.Contains(text, begin) || want != "" && !strings.Contains(text, begin+": "+want) {
			t.Errorf("%s: want %q in\n%s", arguments, want, text)
		}
	}
}
