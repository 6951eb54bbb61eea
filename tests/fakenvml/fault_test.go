package fakenvml

import (
	"strings"
	"testing"
	"time"
)

func setFaults(t *testing.T, l Library, faults ...Fault) {
	t.Helper()
	if err := l.SetFaults(t.Context(), faults...); err != nil {
		t.Fatal(err)
	}
}

func TestFaults(t *testing.T) {
	needRoot(t)
	for _, test := range []struct {
		name      string
		faults    []Fault
		exchanges []exchange
		limit     int // of GPU 1 afterwards
	}{
		{
			name:   "lost",
			faults: []Fault{{Call: "*", GPU: "1", Error: "GPU_IS_LOST"}},
			exchanges: []exchange{
				{"GetCount", "2 SUCCESS"},
				{"GetName 0", "NVIDIA H200 SUCCESS"},
				{"GetName 1", "handle GPU_IS_LOST"},
				{"GetHandleByUUID " + uuid1, "GPU_IS_LOST"},
			},
			limit: 700000,
		},
		{
			name:   "every error of one call",
			faults: []Fault{{Call: "nvmlDeviceSetPowerManagementLimit", GPU: uuid1, Error: "IN_USE"}},
			exchanges: []exchange{
				{"SetPowerManagementLimit 1 300000", "IN_USE"},
				{"SetPowerManagementLimit 0 300000", "SUCCESS"},
				{"GetPowerManagementLimit 1", "700000 SUCCESS"},
			},
			limit: 700000,
		},
		{
			name:   "second use",
			faults: []Fault{{Call: "SetPowerManagementLimit", GPU: "1", Nth: "2", Error: "TIMEOUT"}},
			exchanges: []exchange{
				{"SetPowerManagementLimit 1 300000", "SUCCESS"},
				{"SetPowerManagementLimit 0 310000", "SUCCESS"},
				{"SetPowerManagementLimit 1 320000", "TIMEOUT"},
				{"SetPowerManagementLimit 1 330000", "SUCCESS"},
			},
			limit: 330000,
		},
		{
			name: "from the second use, and the first three",
			faults: []Fault{
				{Call: "GetName", Nth: "2-", Error: "UNKNOWN"},
				{Call: "GetIndex", Nth: "1-3", Error: "NO_PERMISSION"},
			},
			exchanges: []exchange{
				{"GetName 0", "NVIDIA H200 SUCCESS"},
				{"GetName 1", "UNKNOWN"},
				{"GetName 0", "UNKNOWN"},
				{"GetIndex 0", "NO_PERMISSION"},
				{"GetIndex 0", "NO_PERMISSION"},
				{"GetIndex 0", "NO_PERMISSION"},
				{"GetIndex 0", "0 SUCCESS"},
			},
			limit: 700000,
		},
		{
			name:   "done all the same",
			faults: []Fault{{Call: "SetPowerManagementLimit", Error: "TIMEOUT", Applied: true}},
			exchanges: []exchange{
				{"SetPowerManagementLimit 1 300000", "TIMEOUT"},
				{"SetPowerManagementLimit 1 1", "INVALID_ARGUMENT"},
				{"GetPowerManagementLimit 1", "300000 SUCCESS"},
			},
			limit: 300000,
		},
		{
			name:   "ignored",
			faults: []Fault{{Call: "SetPowerManagementLimit", Ignored: true}},
			exchanges: []exchange{
				{"SetPowerManagementLimit 1 300000", "SUCCESS"},
				{"GetPowerManagementLimit 1", "700000 SUCCESS"},
			},
			limit: 700000,
		},
		{
			name: "another value set, another value read",
			faults: []Fault{
				{Call: "SetPowerManagementLimit", Value: "400000"},
				{Call: "SetGpuLockedClocks", Value: "345,600"},
				{Call: "GetPersistenceMode", Value: "0"},
				{Call: "GetPowerManagementLimitConstraints", Value: "1,2"},
			},
			exchanges: []exchange{
				{"SetPowerManagementLimit 1 300000", "SUCCESS"},
				{"GetPowerManagementLimit 1", "400000 SUCCESS"},
				{"SetGpuLockedClocks 1 1200 1200", "SUCCESS"},
				{"GetClockInfo 1 0", "345 SUCCESS"},
				{"GetPersistenceMode 1", "0 SUCCESS"},
				{"GetPowerManagementLimitConstraints 1", "1 2 SUCCESS"},
			},
			limit: 400000,
		},
		{
			name:      "application clocks not there",
			faults:    []Fault{{Call: "*ApplicationsClock*", Error: "NOT_SUPPORTED"}},
			exchanges: []exchange{{"SetApplicationsClocks 1 3201 1200", "NOT_SUPPORTED"}, {"GetApplicationsClock 1 0", "NOT_SUPPORTED"}},
			limit:     700000,
		},
		{
			name:      "the first holds",
			faults:    []Fault{{Call: "GetIndex", Nth: "2", Error: "IN_USE"}, {Call: "GetIndex", Nth: "1-", Error: "UNKNOWN"}},
			exchanges: []exchange{{"GetIndex 0", "UNKNOWN"}, {"GetIndex 0", "IN_USE"}, {"GetIndex 0", "UNKNOWN"}},
			limit:     700000,
		},
		{
			name:      "other programs",
			faults:    []Fault{{Call: "GetIndex", Program: "gputune-prolog", Error: "UNKNOWN"}, {Call: "GetName", Program: "caller", Error: "UNKNOWN"}},
			exchanges: []exchange{{"GetIndex 0", "0 SUCCESS"}, {"GetName 0", "UNKNOWN"}},
			limit:     700000,
		},
		{
			name:      "init",
			faults:    []Fault{{Call: "Init_v2", Error: "DRIVER_NOT_LOADED"}},
			exchanges: []exchange{{"GetIndex 0", "Init DRIVER_NOT_LOADED"}},
			limit:     700000,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLibrary(t, H200(2))
			setFaults(t, l, test.faults...)
			check(t, l, test.exchanges...)
			state, err := l.State()
			if err != nil {
				t.Fatal(err)
			}
			if got := state[uuid1].PowerLimit; got != test.limit {
				t.Errorf("limit in the state is %d, want %d", got, test.limit)
			}
		})
	}
}

// TestEveryError wants every error that can be asked for to arrive.
func TestEveryError(t *testing.T) {
	needRoot(t)
	l := newLibrary(t, H200(1))
	for _, name := range names {
		if name == "SUCCESS" {
			continue
		}
		setFaults(t, l, Fault{Call: "SetComputeMode", Error: name})
		got := ask(t, l, "SetComputeMode 0 3")
		if len(got) != 1 || got[0] != name {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

// TestUsesOfAllProcesses counts over processes, and anew with new faults.
func TestUsesOfAllProcesses(t *testing.T) {
	l := newLibrary(t, H200(1))
	third := Fault{Call: "GetIndex", Nth: "3", Error: "UNKNOWN"}
	for range 2 {
		setFaults(t, l, third)
		for use, want := range []string{"0 SUCCESS", "0 SUCCESS", "UNKNOWN", "0 SUCCESS"} {
			if got := ask(t, l, "GetIndex 0")[0]; got != want {
				t.Errorf("use %d: got %q, want %q", use+1, got, want)
			}
		}
	}
}

// TestSlow wants a slow GPU to be slow, and to slow no other.
func TestSlow(t *testing.T) {
	needRoot(t)
	const slow = 1500 * time.Millisecond
	l := newLibrary(t, H200(2))
	setFaults(t, l, Fault{Call: "SetGpuLockedClocks", GPU: "0", Slow: slow})
	cmd := command(t, l, "SetGpuLockedClocks 0 1200 1200")
	var out strings.Builder
	cmd.Stdout = &out
	start := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	check(t, l, exchange{"SetGpuLockedClocks 1 1500 1500", "SUCCESS"}, exchange{"GetClockInfo 1 0", "1500 SUCCESS"})
	if took := time.Since(start); took >= slow {
		t.Errorf("the other GPU took %v", took)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < slow || out.String() != "SUCCESS\n" {
		t.Errorf("took %v, want %v; said %q", took, slow, out.String())
	}
	check(t, l, exchange{"GetClockInfo 0 0", "1200 SUCCESS"})
}
