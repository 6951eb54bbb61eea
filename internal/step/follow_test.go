package step

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gputune/internal/follow"
	"gputune/internal/idset"
	"gputune/internal/placement"
)

// followed is a step with the item follow, of which one task was bound; more is
// added to its gputune.toml.
func followed(t *testing.T, items, more string) (result Result, run string) {
	t.Helper()
	request := laidOut(t, "ConstrainDevices=yes\n")
	request.Option, request.Job, request.Step = items, 4711, 3
	run = filepath.Join(filepath.Dir(request.Config), "run", "gputune")
	text, err := os.ReadFile(request.Config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(request.Config, fmt.Appendf(text, "run = %q\n%s", run, more), 0o644); err != nil {
		t.Fatal(err)
	}
	s := open(t, request)
	tasks := sleepers(t, 1)
	if err := s.Locate(tasks); err != nil {
		t.Fatal(err)
	}
	tasks[0].Access, tasks[0].Probed = idset.Of(0, 1, 3), nil
	if result, err = s.Bind(tasks); err != nil {
		t.Fatal(err)
	}
	return result, run
}

// What the agent gets is each GPU's share; the task gets all of them.
func TestFollowIsWrittenDown(t *testing.T) {
	result, run := followed(t, "follow,cpus=exclusive", "")
	if !strings.Contains(result.NotFollowed, "gputuned does not run on this node") || filepath.Dir(result.FollowFile) != follow.Folder(run) {
		t.Errorf("%q, file %s", result.NotFollowed, result.FollowFile)
	}
	text, err := os.ReadFile(result.FollowFile)
	if err != nil {
		t.Fatal(err)
	}
	var written follow.Step
	if err := json.Unmarshal(text, &written); err != nil {
		t.Fatal(err)
	}
	if written.Job != "4711" || written.Step != "3" || written.PID != os.Getpid() || written.Began == "" || !written.MovePages || len(written.Cgroups) > 0 {
		t.Errorf("%s", text)
	}
	want := map[string]string{"0000:17:00.0": "0", "0000:3d:00.0": "0", "0000:bd:00.0": "1"}
	for _, share := range written.Shares {
		if want[share.PCI] != share.CPUs.String() || share.Mems.Empty() || share.Locality != placement.Local {
			t.Errorf("%+v", share)
		}
		delete(want, share.PCI)
	}
	if len(want) > 0 || result.Tasks[0].Binding.CPUs.String() != "0-1" {
		t.Errorf("without a share: %v; the task is on %s", want, result.Tasks[0].Binding.CPUs)
	}
}

func TestFollowLeavesMemoryAlone(t *testing.T) {
	for _, mem := range []string{"none", "interleave"} {
		result, _ := followed(t, "follow,mem="+mem, "")
		text, err := os.ReadFile(result.FollowFile)
		if err != nil || !strings.Contains(string(text), `"move_pages":false`) {
			t.Errorf("mem=%s: %v, %s", mem, err, text)
		}
	}
}

func TestNotFollowed(t *testing.T) {
	for name, c := range map[string]struct{ items, more, want string }{
		"the site has it off": {"follow", "[agent]\nfollow_interval = \"off\"\n", `agent.follow_interval of gputune.toml is "off"`},
		"not asked for":       {"on", "", ""},
		"off":                 {"off,follow", "", ""},
	} {
		result, run := followed(t, c.items, c.more)
		if (c.want == "") != (result.NotFollowed == "") || !strings.Contains(result.NotFollowed, c.want) {
			t.Errorf("%s: %q, want %q", name, result.NotFollowed, c.want)
		}
		if _, err := os.Stat(follow.Folder(run)); c.want == "" && !os.IsNotExist(err) {
			t.Errorf("%s: %s was made", name, follow.Folder(run))
		}
	}
}

func TestOldKernels(t *testing.T) {
	for release, want := range map[string]bool{
		"5.14.0-503.el9.x86_64": true, "4.18.0": true, "5.15.0-1": false, "6.1.0-9-amd64": false, "10.0": false, "": false, "x": false,
	} {
		if got := olderThan(release, 5, 15); got != want {
			t.Errorf("%q: %v", release, got)
		}
	}
	two := func() placement.Result {
		return placement.Result{
			Shares: []placement.Share{{GPU: 0, Mems: idset.Of(0)}, {GPU: 1, Mems: idset.Of(1)}},
			Tasks:  []placement.Binding{{Mems: idset.Of(0, 1), MemPolicy: placement.MemPrefer}},
		}
	}
	plan := two()
	looseMemory(&plan)
	if !plan.Shares[0].Mems.Empty() || !plan.Shares[1].Mems.Empty() || !plan.Tasks[0].Mems.Empty() || plan.Tasks[0].MemPolicy != placement.MemNone {
		t.Errorf("%+v", plan)
	}
	plan = two()
	plan.Shares = plan.Shares[:1]
	if looseMemory(&plan); plan.Shares[0].Mems.Empty() {
		t.Errorf("one node: %+v", plan)
	}
}
