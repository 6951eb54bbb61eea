package fakenvml

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	uuid0 = "GPU-4b0480b4-0000-4000-8000-000000000000"
	uuid1 = "GPU-4b0480b5-0000-4000-8000-000000000001"
)

func untouched() GPUState {
	return GPUState{PowerLimit: 700000, GPUClocks: "none", MemoryClocks: "none", ApplicationClocks: "3201,1980", Persistence: 1}
}

// TestSettings sets in one process, reads back in a second and sets back in a
// third.
func TestSettings(t *testing.T) {
	needRoot(t)
	for _, test := range []struct {
		set    string
		state  func(*GPUState)
		reads  []exchange
		back   string
		source string // line of the description
	}{
		{
			set: "SetPowerManagementLimit 1 200000", back: "SetPowerManagementLimit 1 700000",
			state: func(s *GPUState) { s.PowerLimit = 200000 },
			reads: []exchange{
				{"GetPowerManagementLimit 1", "200000 SUCCESS"},
				{"GetEnforcedPowerLimit 1", "200000 SUCCESS"},
				{"GetPowerManagementDefaultLimit 1", "700000 SUCCESS"},
				{"GetPowerManagementLimit 0", "700000 SUCCESS"},
			},
		},
		{
			set: "SetGpuLockedClocks 1 1200 1200", back: "ResetGpuLockedClocks 1",
			state: func(s *GPUState) { s.GPUClocks = "1200,1200" },
			reads: []exchange{
				{"GetClockInfo 1 0", "1200 SUCCESS"},
				{"GetClockInfo 1 1", "1200 SUCCESS"},
				{"GetClock 1 0 0", "1200 SUCCESS"},
				{"GetClockInfo 1 2", "3201 SUCCESS"},
				{"GetMaxClockInfo 1 0", "1980 SUCCESS"},
				{"GetClockInfo 0 0", "345 SUCCESS"},
			},
		},
		{
			set: "SetGpuLockedClocks 1 1001 1500", back: "SetGpuLockedClocks 1 4294967042 4294967042", // unlimited
			state: func(s *GPUState) { s.GPUClocks = "1001,1500" },
			reads: []exchange{{"GetClockInfo 1 0", "990 SUCCESS"}},
		},
		{
			set: "SetGpuLockedClocks 1 345 1200", back: "ResetGpuLockedClocks 1", source: "process 1 1",
			state: func(s *GPUState) { s.GPUClocks = "345,1200" },
			reads: []exchange{{"GetClockInfo 1 0", "1200 SUCCESS"}},
		},
		{
			set: "SetGpuLockedClocks 1 4294967041 4294967042", back: "ResetGpuLockedClocks 1", // TDP, unlimited
			state: func(s *GPUState) { s.GPUClocks = "tdp,unlimited" },
			reads: []exchange{{"GetClockInfo 1 0", "1980 SUCCESS"}},
		},
		{
			set: "SetMemoryLockedClocks 1 900 900", back: "ResetMemoryLockedClocks 1", source: "memory_clocks 3201 900",
			state: func(s *GPUState) { s.MemoryClocks = "900,900" },
			reads: []exchange{{"GetClockInfo 1 2", "900 SUCCESS"}, {"GetMaxClockInfo 1 2", "3201 SUCCESS"}},
		},
		{
			set: "SetApplicationsClocks 1 3201 1200", back: "ResetApplicationsClocks 1", source: "process 1 1",
			state: func(s *GPUState) { s.ApplicationClocks = "3201,1200" },
			reads: []exchange{
				{"GetApplicationsClock 1 0", "1200 SUCCESS"},
				{"GetApplicationsClock 1 2", "3201 SUCCESS"},
				{"GetClock 1 0 1", "1200 SUCCESS"},
				{"GetDefaultApplicationsClock 1 0", "1980 SUCCESS"},
				{"GetClockInfo 1 0", "1200 SUCCESS"},
			},
		},
		{
			set: "SetPersistenceMode 1 0", back: "SetPersistenceMode 1 1",
			state: func(s *GPUState) { s.Persistence = 0 },
			reads: []exchange{{"GetPersistenceMode 1", "0 SUCCESS"}, {"GetPersistenceMode 0", "1 SUCCESS"}},
		},
		{
			set: "SetComputeMode 1 3", back: "SetComputeMode 1 0",
			state: func(s *GPUState) { s.ComputeMode = 3 },
			reads: []exchange{{"GetComputeMode 1", "3 SUCCESS"}, {"GetComputeMode 0", "0 SUCCESS"}},
		},
	} {
		t.Run(test.set, func(t *testing.T) {
			d := H200(2)
			if test.source != "" {
				d.GPUs[1].Lines = []string{test.source}
			}
			l := newLibrary(t, d)
			before := stateText(t, l)
			check(t, l, exchange{test.set, "SUCCESS"})
			state, err := l.State()
			if err != nil {
				t.Fatal(err)
			}
			want := untouched()
			if state[uuid0] != want {
				t.Errorf("the other GPU has %+v", state[uuid0])
			}
			if test.state(&want); state[uuid1] != want {
				t.Errorf("got %+v, want %+v", state[uuid1], want)
			}
			set := stateText(t, l)
			check(t, l, test.reads...)
			if after := stateText(t, l); after != set {
				t.Errorf("reading changed the state to\n%s", after)
			}
			check(t, l, exchange{test.back, "SUCCESS"})
			if after := stateText(t, l); after != before {
				t.Errorf("set back, the state is\n%s", after)
			}
		})
	}
}

// TestRefused sets what cannot be set, and reads and sets as somebody else.
func TestRefused(t *testing.T) {
	needRoot(t)
	d := H200(3)
	d.GPUs[2].Lines = []string{"power_range none", "memory_clocks none", "graphics_clocks none", "application_clocks none"}
	l := newLibrary(t, d)
	before := stateText(t, l)
	exchanges := []exchange{
		{"SetPowerManagementLimit 0 199999", "INVALID_ARGUMENT"},
		{"SetPowerManagementLimit 0 700001", "INVALID_ARGUMENT"},
		{"SetPowerManagementLimit 3 300000", "handle INVALID_ARGUMENT"},
		{"SetPowerManagementLimit 2 300000", "NOT_SUPPORTED"},
		{"SetGpuLockedClocks 0 1200 1100", "INVALID_ARGUMENT"},
		{"SetGpuLockedClocks 0 344 1100", "INVALID_ARGUMENT"},
		{"SetGpuLockedClocks 0 1100 9999", "INVALID_ARGUMENT"},
		{"SetGpuLockedClocks 0 1100 4294967042", "INVALID_ARGUMENT"},
		{"SetGpuLockedClocks 2 1100 1200", "NOT_SUPPORTED"},
		{"ResetGpuLockedClocks 2", "NOT_SUPPORTED"},
		{"SetMemoryLockedClocks 0 2200 3201", "INVALID_ARGUMENT"},
		{"SetMemoryLockedClocks 2 3201 3201", "NOT_SUPPORTED"},
		{"ResetMemoryLockedClocks 2", "NOT_SUPPORTED"},
		{"SetApplicationsClocks 0 3201 1201", "INVALID_ARGUMENT"},
		{"SetApplicationsClocks 0 3200 1200", "INVALID_ARGUMENT"},
		{"SetApplicationsClocks 2 3201 1200", "NOT_SUPPORTED"},
		{"ResetApplicationsClocks 2", "NOT_SUPPORTED"},
		{"SetPersistenceMode 0 2", "INVALID_ARGUMENT"},
		{"SetComputeMode 0 1", "NOT_SUPPORTED"},
		{"SetComputeMode 0 4", "INVALID_ARGUMENT"},
		{"become 65534", "SUCCESS"},
		{"GetPowerManagementLimit 0", "700000 SUCCESS"},
		{"GetClockInfo 0 0", "345 SUCCESS"},
	}
	for _, call := range []string{
		"SetPowerManagementLimit 0 300000", "SetGpuLockedClocks 0 1200 1200", "ResetGpuLockedClocks 0",
		"SetMemoryLockedClocks 0 3201 3201", "ResetMemoryLockedClocks 0", "SetApplicationsClocks 0 3201 1200",
		"ResetApplicationsClocks 0", "SetPersistenceMode 0 0", "SetComputeMode 0 3",
	} {
		exchanges = append(exchanges, exchange{call, "NO_PERMISSION"})
	}
	check(t, l, exchanges...)
	if after := stateText(t, l); after != before {
		t.Errorf("the state changed to\n%s", after)
	}
}

// TestWithoutState starts without a state file, as after a reboot.
func TestWithoutState(t *testing.T) {
	needRoot(t)
	l := newLibrary(t, H200(2))
	before := stateText(t, l)
	if err := os.Remove(l.file("fakenvml.state")); err != nil {
		t.Fatal(err)
	}
	check(t, l, exchange{"GetPowerManagementLimit 0", "700000 SUCCESS"})
	if _, err := l.StateText(); err == nil {
		t.Error("reading made a state file")
	}
	check(t, l, exchange{"SetPowerManagementLimit 0 300000", "SUCCESS"}, exchange{"SetPowerManagementLimit 0 700000", "SUCCESS"})
	if after := stateText(t, l); after != before {
		t.Errorf("the state is\n%s", after)
	}
}

// TestForeignState wants a state file that nobody here wrote to be refused.
func TestForeignState(t *testing.T) {
	l := newLibrary(t, H200(1))
	whole := stateText(t, l)
	for _, text := range []string{
		whole[:len(whole)-1],
		"gpu/GPU-gone/power_limit 1\n",
		"gpu/" + uuid0 + "/power_limit\n",
		"gpu/" + uuid0 + "/power_limit 1x\n",
		"gpu/" + uuid0 + "/gpu_clocks 345\n",
		"gpu/" + uuid0 + "/colour 3\n",
		"power_limit 1\n",
		"\n",
	} {
		if err := l.replace("fakenvml.state", text); err != nil {
			t.Fatal(err)
		}
		got := ask(t, l, "GetPowerManagementLimit 0")
		if len(got) != 2 || got[0] != "UNKNOWN" || !strings.Contains(got[1], "fakenvml.state:") {
			t.Errorf("%q: got %q", text, got)
		}
		if _, err := l.State(); err == nil {
			t.Errorf("%q: State has nothing against it", text)
		}
	}
}

// TestLog wants one line for each call that would set something.
func TestLog(t *testing.T) {
	needRoot(t)
	d := H200(2)
	d.Log = "calls.log"
	d.Faults = []Fault{{Call: "SetComputeMode", GPU: "0", Error: "IN_USE"}}
	l := newLibrary(t, d)
	ask(
		t, l, "GetName 0", "SetPowerManagementLimit 1 500000", "SetPowerManagementLimit 1 5", "SetGpuLockedClocks 0 345 1200",
		"ResetGpuLockedClocks 0", "SetComputeMode 0 3", "SetPersistenceMode 1 0",
	)
	got, err := l.Log(d.Log)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"SetPowerManagementLimit " + uuid1 + " 500000 SUCCESS",
		"SetPowerManagementLimit " + uuid1 + " 5 INVALID_ARGUMENT",
		"SetGpuLockedClocks " + uuid0 + " 345,1200 SUCCESS",
		"ResetGpuLockedClocks " + uuid0 + " SUCCESS",
		"SetComputeMode " + uuid0 + " 3 IN_USE",
		"SetPersistenceMode " + uuid1 + " 0 SUCCESS",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestParallel has a process for each GPU set it a thousand times and read it
// back at once; whatever one process wrote over another's would be missed.
func TestParallel(t *testing.T) {
	needRoot(t)
	const gpus, rounds = 2, 1000
	l := newLibrary(t, H200(gpus))
	var wait sync.WaitGroup
	for gpu := range gpus {
		cmd := command(t, l, fmt.Sprintf("repeat %d %d", gpu, rounds))
		wait.Go(func() {
			out, err := cmd.CombinedOutput()
			if got := strings.TrimSpace(string(out)); err != nil || got != "SUCCESS" {
				t.Errorf("GPU %d: %v: %s", gpu, err, got)
			}
		})
	}
	wait.Wait()
	if _, err := l.State(); err != nil {
		t.Error(err)
	}
}

// TestKilled kills processes that set without pause, at random, and wants a
// whole state and a free lock each time.
func TestKilled(t *testing.T) {
	needRoot(t)
	kills := 200
	if testing.Short() {
		kills = 20
	}
	l := newLibrary(t, H200(4))
	between := 0
	for kill := range kills {
		cmd := command(t, l, "GetCount", "repeat 2 1000000")
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("ended before it was killed")
		}
		state, err := l.State()
		if err != nil {
			t.Fatalf("kill %d: %v", kill, err)
		}
		if len(state) != 4 || state[uuid0] != untouched() || state[uuid1] != untouched() {
			t.Fatalf("kill %d: %+v", kill, state)
		}
		if err := os.Remove(l.file("fakenvml.state.tmp")); err == nil {
			between++
		}
	}
	check(t, l, exchange{"SetPowerManagementLimit 3 300000", "SUCCESS"})
	t.Logf("%d kills, %d of them between the start of a write and its rename", kills, between)
}

// TestKilledAtEverySystemCall kills a process that sets two things at each of
// its system calls, one run each, and wants the state before, between or after.
func TestKilledAtEverySystemCall(t *testing.T) {
	needRoot(t)
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip(err)
	}
	l := newLibrary(t, H200(2))
	program := compile(t, l, "set.c")
	before := stateText(t, l)
	check(t, l, exchange{"SetPowerManagementLimit 0 300000", "SUCCESS"})
	between := stateText(t, l)
	check(t, l, exchange{"SetComputeMode 0 3", "SUCCESS"})
	after := stateText(t, l)

	// strace counts each system call by its name, so a point is a name and a number.
	trace := filepath.Join(t.TempDir(), "trace")
	run := func(args ...string) ([]byte, error) {
		if err := l.Reset(t.Context()); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), strace, append(append([]string{"-o", trace}, args...), program)...) //nolint:gosec // what PATH finds
		cmd.Env = l.Environ()
		return cmd.CombinedOutput()
	}
	if out, err := run(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	calls := regexp.MustCompile(`(?m)^([a-z0-9_]+)\(`).FindAllStringSubmatch(string(lines), -1)
	if len(calls) == 0 || calls[0][1] != "execve" {
		t.Fatalf("the trace is\n%s", lines)
	}
	calls = calls[1:] // strace's own
	count, found := map[string]int{}, map[string]int{}
	for _, call := range calls {
		count[call[1]]++
		point := fmt.Sprintf("inject=%s:signal=KILL:when=%d", call[1], count[call[1]])
		if out, err := run("-e", point); err == nil || len(out) > 0 {
			t.Fatalf("%s: %v\n%s", point, err, out)
		}
		text := stateText(t, l)
		if text != before && text != between && text != after {
			t.Fatalf("%s: the state is\n%s", point, text)
		}
		found[text]++
		// The next one finds no lock held, and no leftover in its way.
		check(t, l, exchange{"SetPowerManagementLimit 1 650000", "SUCCESS"}, exchange{"SetPowerManagementLimit 1 700000", "SUCCESS"})
		if again := stateText(t, l); again != text {
			t.Fatalf("%s: afterwards the state is\n%s", point, again)
		}
	}
	if len(found) != 3 {
		t.Errorf("%d different states, want 3", len(found))
	}
	t.Logf("%d points: %d before, %d between, %d after", len(calls), found[before], found[between], found[after])
}
