package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func (n *Node) gputune(t testing.TB, want int, arguments ...string) string {
	t.Helper()
	result, err := Finish(n.Program(t.Context(), "gputune", Job{}, arguments...))
	if err != nil || result.Code != want {
		t.Fatalf("gputune %v: status %d, want %d, %v\n%s", arguments, result.Code, want, err, result.Output)
	}
	return result.Output
}

type held struct{ Job, Key, Before, Set, Now, State, Finding string }

func (n *Node) status(t testing.TB) map[string]held {
	t.Helper()
	var status struct{ Held []held }
	if err := json.Unmarshal([]byte(n.gputune(t, 0, "status", "--format=json")), &status); err != nil {
		t.Fatal(err)
	}
	byKey := map[string]held{}
	for _, h := range status.Held {
		byKey[h.Job+" "+h.Key] = h
	}
	return byKey
}

// Status tells who holds what, what was there, and what somebody else has made
// of it since.
func TestStatus(t *testing.T) {
	n := begin(t, "")
	if got := n.gputune(t, 0, "status"); got != "no job holds anything on this node\n" {
		t.Errorf("nothing held: %q", got)
	}
	n.prolog(t, Job{ID: 1, GPUs: "0", Options: one("gpu-clocks", "1200")})
	n.prolog(t, Job{ID: 2, GPUs: "1", Options: one("gpu-power", "500")})
	clocks, power := "gpu/"+n.Machine.GPUs[0].UUID+"/clocks.sm", "gpu/"+n.Machine.GPUs[1].UUID+"/power.limit"
	got := n.status(t)
	if want := (held{Job: "1", Key: clocks, Before: "unlocked", Set: "1200-1200", State: "applied"}); got["1 "+clocks] != want {
		t.Errorf("%+v, want %+v", got["1 "+clocks], want)
	}
	if want := (held{Job: "2", Key: power, Before: "700", Set: "500", Now: "500", State: "applied"}); got["2 "+power] != want {
		t.Errorf("%+v, want %+v", got["2 "+power], want)
	}
	if len(got) != 4 { // and persistence of both GPUs
		t.Errorf("held: %+v", got)
	}
	n.setState(t, "power_limit 500000", "power_limit 450000")
	if got := n.status(t)["2 "+power]; got.Now != "450" || got.Finding != "drift: somebody else set it" {
		t.Errorf("%+v", got)
	}
	text := n.gputune(t, 0, "status")
	for _, want := range []string{"JOB  SETTING", "unlocked  1200-1200  unreadable", "700       500        450", "drift: somebody else set it"} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in\n%s", want, text)
		}
	}
}

// setState changes what the driver remembers, as somebody with nvidia-smi does.
func (n *Node) setState(t testing.TB, from, to string) {
	t.Helper()
	path := filepath.Join(n.NVML.Folder, "fakenvml.state")
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), from) {
		t.Fatalf("%v: no %q in\n%s", err, from, text)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), from, to, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestRestore(t *testing.T) {
	n := begin(t, "")
	before := n.state(t)
	n.prolog(t, Job{ID: 1, GPUs: "0", Options: one("gpu-clocks", "1200")})
	after1 := n.state(t)
	n.prolog(t, Job{ID: 2, GPUs: "1", Options: all()})
	n.prolog(t, Job{ID: 3, GPUs: "2", Options: one("gpu-power", "1")})

	// What has another form or another number of a job than there can be is 3, as
	// for each command.
	for _, wrong := range [][]string{{"restore"}, {"restore", "--job=1", "--all"}} {
		n.gputune(t, 1, wrong...)
	}
	for _, wrong := range [][]string{{"restore", "--job=x"}, {"restore", "--job=-1"}} {
		n.gputune(t, 3, wrong...)
	}
	n.gputune(t, 3, "restore", "--job=0")
	output := n.gputune(t, 0, "restore", "--job=2")
	if want := "job 2: gpu/" + n.Machine.GPUs[1].UUID + "/power.limit: 700 again"; !strings.Contains(output, want) {
		t.Errorf("%q, want %q", output, want)
	}
	if now := n.state(t); now != after1 {
		t.Errorf("the GPUs are\n%s, want\n%s", now, after1)
	}
	if output := n.gputune(t, 0, "restore", "--job=2"); output != "" {
		t.Errorf("a second time: %q", output)
	}
	n.gputune(t, 0, "restore", "--all")
	if _, notice := n.report(t, "3"); !strings.HasPrefix(notice, "fail\n") {
		t.Errorf("what a job that may run was refused is forgotten: %q", notice)
	}
	n.epilog(t, Job{ID: 3})
	n.wantClean(t, before)
	n.gputune(t, 0, "restore", "--all")
	n.wantClean(t, before)
}

// What somebody else has set meanwhile is left alone, and said to be.
func TestRestoreLeavesDrift(t *testing.T) {
	n := begin(t, "")
	n.prolog(t, Job{ID: 2, GPUs: "1", Options: one("gpu-power", "500")})
	n.setState(t, "power_limit 500000", "power_limit 450000")
	output := n.epilog(t, Job{ID: 2})
	if want := "somebody set 450 instead of 500: left alone"; !strings.Contains(output, want) {
		t.Errorf("%q, want %q", output, want)
	}
	if now := n.state(t); !strings.Contains(now, "power_limit 450000") {
		t.Errorf("the GPUs are\n%s", now)
	}
	if left, err := n.Left(); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}
