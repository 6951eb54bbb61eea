package follow

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// process lays out /proc/PID for a process.
func process(t *testing.T, root string, pid, parent int, cgroups string) {
	t.Helper()
	dir := filepath.Join(root, "proc", fmt.Sprint(pid))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"stat":   fmt.Sprintf("%d (a) S %d 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0\n", pid, parent, 1000+pid),
		"cgroup": cgroups,
		"comm":   "gputuned\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func runFolder(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "gputune")
}

func step(job string, pid int) Step {
	return Step{Job: job, Step: "0", PID: pid, Began: fmt.Sprint(1000 + pid), Cgroups: []string{"/x"}, MovePages: true, Shares: []Share{share(gpuA, "0-3", "0")}}
}

// What is written is read, once, and is gone with its slurmstepd.
func TestSteps(t *testing.T) {
	run := runFolder(t)
	alive := map[int]string{40: "1040", 41: "1041", 42: "1042", 43: "1"}
	steps := Steps{Run: run, Runs: func(pid int) (string, bool) { began, there := alive[pid]; return began, there }}
	update := func(wantChanged bool, want ...string) {
		t.Helper()
		changed, err := steps.Update()
		var jobs []string
		for _, s := range steps.List() {
			jobs = append(jobs, s.Job)
		}
		if err != nil || changed != wantChanged || !reflect.DeepEqual(jobs, want) {
			t.Errorf("%v, %v, jobs %v, want %v", changed, err, jobs, want)
		}
	}
	update(false)
	var files []string
	for i, pid := range []int{40, 41, 43} { // the last is another process now
		file, err := Record(run, step(fmt.Sprint(i), pid))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	update(true, "0", "1")
	if got := steps.List()[1]; !reflect.DeepEqual(got, step("1", 41)) {
		t.Errorf("%+v", got)
	}
	update(false, "0", "1")
	if _, err := os.Stat(files[2]); !os.IsNotExist(err) {
		t.Errorf("the file of one that has ended: %v", err)
	}
	if err := os.Remove(files[0]); err != nil { // as the plugin does
		t.Fatal(err)
	}
	update(true, "1")
	delete(alive, 41)
	update(true)
	if left, err := os.ReadDir(Folder(run)); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
	if _, err := Record(run, step("9", 42)); err != nil {
		t.Fatal(err)
	}
	if _, err := Record(run, step("9", 42)); err != nil {
		t.Errorf("over one from before: %v", err)
	}
	update(true, "9")
}

// Files that the plugin has not written are not believed, said, and kept as long as
// the process in their name.
func TestStepsRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		file, text string
		mode       os.FileMode
		want       string
	}{
		"garbage":         {"1.0.40", "{", 0o600, "unexpected end"},
		"another's":       {"1.0.40", `{"job":"2","step":"0","pid":40,"began":"1040"}`, 0o600, "is of 2.0.40"},
		"no slurmstepd":   {"1.0.-1", `{"job":"1","step":"0","pid":-1,"began":"1"}`, 0o600, "is of 1.0.-1"},
		"others may read": {"1.0.40", `{"job":"1","step":"0","pid":40,"began":"1040"}`, 0o644, "not a file of gputune's"},
		"a strange name":  {"x", "{}", 0o600, "is of"},
	} {
		run := runFolder(t)
		steps := Steps{Run: run, Runs: func(int) (string, bool) { return "1040", true }}
		if _, err := steps.Update(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(Folder(run), c.file), []byte(c.text), c.mode); err != nil {
			t.Fatal(err)
		}
		if changed, err := steps.Update(); changed || err == nil || !strings.Contains(err.Error(), c.want) || len(steps.List()) > 0 {
			t.Errorf("%s: %v, %v, want %q", name, changed, err, c.want)
		}
		steps.Runs = func(int) (string, bool) { return "", false }
		if _, err := steps.Update(); (err == nil) != (c.file == "1.0.40") {
			t.Errorf("%s, when its process has ended: %v", name, err)
		}
	}
	// A folder in which others can put files.
	run := runFolder(t)
	if _, err := Record(run, step("1", 40)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(Folder(run), 0o777); err != nil {
		t.Fatal(err)
	}
	steps := Steps{Run: run, Runs: func(int) (string, bool) { return "1040", true }}
	if _, err := steps.Update(); err == nil || len(steps.List()) > 0 {
		t.Errorf("a folder that others may write to: %v, %v", steps.List(), err)
	}
}

func TestAgent(t *testing.T) {
	root, run := t.TempDir(), runFolder(t)
	if err := Agent(root, run); err == nil {
		t.Error("no file")
	}
	if err := os.MkdirAll(run, 0o755); err != nil {
		t.Fatal(err)
	}
	process(t, root, 7, 1, "")
	for text, want := range map[string]bool{"7\n": true, "8\n": false, "": false, "x": false, "-7\n": false} {
		if err := os.WriteFile(filepath.Join(run, AgentLock), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Agent(root, run); (err == nil) != want {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "proc/7/comm"), []byte("sleep\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(run, AgentLock), []byte("7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Agent(root, run); err == nil {
		t.Error("its pid is another program's")
	}
}
