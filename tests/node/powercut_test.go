package node

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// bootID is where programs read which boot this is.
const bootID = "/proc/sys/kernel/random/boot_id"

// nextBoot makes a command one that runs after the machine has booted again.
func (n *Node) nextBoot(command *exec.Cmd) (*exec.Cmd, error) {
	id := filepath.Join(n.Dir, "boot_id")
	if err := os.WriteFile(id, []byte("b00b00b0-0000-4000-8000-000000000001\n"), 0o644); err != nil {
		return nil, err
	}
	const script = `mount --bind "$0" ` + bootID + ` && exec "$@"`
	command.Args = append([]string{"unshare", "--mount", "sh", "-c", script, id, command.Path}, command.Args[1:]...)
	var err error
	command.Path, err = exec.LookPath("unshare")
	// The script's programs are looked up, which the command itself does not need.
	command.Env = append(command.Env, "PATH="+os.Getenv("PATH"))
	return command, err
}

// needNextBoot skips a test where the boot's id cannot be covered.
func needNextBoot(t *testing.T, n *Node) {
	t.Helper()
	command, err := n.nextBoot(exec.Command("/bin/cat", bootID))
	if err != nil {
		t.Skip(err)
	}
	if text, err := command.CombinedOutput(); err != nil || !strings.HasPrefix(string(text), "b00b00b0-") {
		t.Skipf("a boot cannot be simulated here: %v: %s", err, text)
	}
}

// moments runs a program and returns what the node had before each change.
func (n *Node) moments(t *testing.T, command *exec.Cmd) []snapshot {
	t.Helper()
	var list []snapshot
	got, err := traced(command, "", everyProcess, func(point) []int {
		now, err := n.take()
		if err != nil {
			t.Error(err)
		}
		if len(list) == 0 || !now.equal(list[len(list)-1]) {
			list = append(list, now)
		}
		return nil
	})
	if err != nil || got.processes[0].status != 0 {
		t.Fatalf("%v: %v\n%s", command.Args, err, got.output)
	}
	last, err := n.take()
	if err != nil {
		t.Fatal(err)
	}
	return append(list, last)
}

// torn returns a snapshot whose files that were not finished are cut off in the
// middle, ok if it has any.
func (s snapshot) torn() (torn snapshot, ok bool) {
	torn = snapshot{files: maps.Clone(s.files), gpus: s.gpus}
	for name, f := range s.files {
		if path.Ext(name) == ".new" && f.mode.IsRegular() && f.text != "" {
			f.text = f.text[:len(f.text)/2]
			torn.files[name], ok = f, true
		}
	}
	return torn, ok
}

// without returns a snapshot without a folder's files.
func (s snapshot) without(folder string) snapshot {
	files := maps.Clone(s.files)
	maps.DeleteFunc(files, func(name string, _ file) bool { return name == folder || strings.HasPrefix(name, folder+"/") })
	return snapshot{files: files, gpus: s.gpus}
}

// TestPowerCut cuts the power at every state that the disk has while Prolog and
// Epilog run, and boots: the GPUs are as the driver makes them and stay so, and
// nothing is left of the job. For comparison, each state is also one in which
// everything was killed and the machine goes on.
func TestPowerCut(t *testing.T) {
	needTracer(t)
	n, gpus := beginHard(t, "")
	needNextBoot(t, n)
	if err := n.NVML.Reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	booted := n.state(t)
	if err := n.setGPUs(gpus); err != nil {
		t.Fatal(err)
	}
	j := hard()
	run, err := filepath.Rel(n.Dir, n.Run)
	if err != nil {
		t.Fatal(err)
	}
	moments := n.moments(t, n.Program(t.Context(), "gputune-prolog", j))
	inProlog := len(moments)
	moments = append(moments, n.moments(t, n.Program(t.Context(), "gputune-epilog", j))...)
	if inProlog < 20 || len(moments)-inProlog < 15 {
		t.Errorf("only %d states in the Prolog and %d in the Epilog", inProlog, len(moments)-inProlog)
	}

	programs := []func(ctx context.Context) *exec.Cmd{
		func(ctx context.Context) *exec.Cmd { return n.Program(ctx, "gputune-epilog", j) },
		func(ctx context.Context) *exec.Cmd { return n.Program(ctx, "gputune", j, "restore", "--job=42") },
		func(ctx context.Context) *exec.Cmd { return n.Program(ctx, "gputune", j, "restore", "--all") },
	}
	tried, failed, forgotten := 0, 0, 0
	for i, at := range moments {
		if testing.Short() && i%5 != 0 {
			continue
		}
		after := at
		after.gpus = booted
		states := []struct {
			name   string
			disk   snapshot
			reboot bool
			want   string
		}{
			{"killed", at, false, gpus},
			{"power cut", after.without(run), true, booted},
			{"power cut, reports on disk", after, true, booted},
		}
		if torn, ok := after.torn(); ok {
			states = append(states, struct {
				name   string
				disk   snapshot
				reboot bool
				want   string
			}{"power cut in the middle of a file", torn, true, booted})
		}
		for s, state := range states {
			if err := n.put(state.disk); err != nil {
				t.Fatal(err)
			}
			command := programs[(i+s)%len(programs)](t.Context())
			if state.reboot {
				if command, err = n.nextBoot(command); err != nil {
					t.Fatal(err)
				}
			}
			result, err := Finish(command)
			if err != nil {
				t.Fatal(err)
			}
			tried++
			if strings.Contains(result.Output, "forgotten when the machine booted") {
				forgotten++
			}
			if dirt := n.dirt(state.want); result.Code != 0 || dirt != "" || strings.Contains(result.Output, "left alone") {
				failed++
				t.Errorf("state %d of %d (%d in the Prolog), %s: %v: status %d, %s\n%s",
					i, len(moments), inProlog, state.name, command.Args, result.Code, dirt, result.Output)
			}
		}
	}
	n.wantNobody(t)
	t.Logf("%d states on disk, %d of them in the Prolog, in %d variants, of which %d left anything; %d had a record of an earlier boot",
		len(moments), inProlog, tried, failed, forgotten)
	if forgotten == 0 {
		t.Error("no boot made a record one of an earlier boot")
	}
}
