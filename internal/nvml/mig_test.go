package nvml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gputune/internal/ledger"
	"gputune/internal/mig"
	"gputune/internal/setting"
	"gputune/tests/fakenvml"
)

// built is the fake library; this program loads one alone, and each test gives it
// a description of its own.
var built = sync.OnceValues(func() (fakenvml.Library, error) {
	folder, err := os.MkdirTemp("", "nvml-mig-")
	if err != nil {
		return fakenvml.Library{}, err
	}
	return fakenvml.Build(context.Background(), folder)
})

// loaded is the fake library as this program has loaded it.
var loaded = sync.OnceValue(func() nvml.Interface {
	l, err := built()
	if err != nil {
		panic(err)
	}
	return nvml.New(nvml.WithLibraryPath(l.Path()))
})

func TestMain(m *testing.M) {
	code := m.Run()
	if l, err := built(); err == nil {
		_ = os.RemoveAll(l.Folder)
	}
	os.Exit(code)
}

// splitNode is a node with GPUs of the fake library and a ledger.
type splitNode struct {
	t      *testing.T
	lib    fakenvml.Library
	env    *setting.Environment
	ledger *ledger.Ledger
	uuid   string // of the first GPU
}

func newSplitNode(t *testing.T, lines ...string) *splitNode {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: NVML lets no other split a GPU")
	}
	l, err := built()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	program, err := os.ReadFile(filepath.Join(l.Folder, "fakenvml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "fakenvml"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FAKENVML_CONF", filepath.Join(root, "fakenvml.conf"))
	n := &splitNode{t: t, lib: fakenvml.Library{Folder: root}}
	n.describe(lines...)
	library := &Library{api: loaded()}
	n.env = setting.NewEnvironment(root, library.Open)
	t.Cleanup(func() {
		if err := n.env.Close(); err != nil {
			t.Error(err)
		}
	})
	n.ledger, err = ledger.Open("state", ledger.Options{
		Root: root, BootID: "boot", Resolve: func(key string) (setting.Setting, error) { return setting.Parse(n.env, key) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *splitNode) describe(lines ...string) {
	n.t.Helper()
	d := fakenvml.H200(2)
	d.GPUs[0].Lines = lines
	d.GPUs[0].Minor = 5
	d.Log = "calls.log"
	n.uuid = d.GPUs[0].UUID
	if err := n.lib.Describe(n.t.Context(), d); err != nil {
		n.t.Fatal(err)
	}
}

func (n *splitNode) setting() setting.Setting {
	n.t.Helper()
	s, err := setting.Parse(n.env, setting.GPUKey(n.uuid, setting.MIGName))
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}

func (n *splitNode) card() mig.Card {
	n.t.Helper()
	d, err := n.env.Device(n.uuid)
	if err != nil {
		n.t.Fatal(err)
	}
	card, err := d.MIG()
	if err != nil {
		n.t.Fatal(err)
	}
	return card
}

func (n *splitNode) read() string {
	n.t.Helper()
	value, err := n.setting().Read(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	return value
}

func (n *splitNode) apply(value string) error {
	n.t.Helper()
	_, err := n.ledger.Apply(n.t.Context(), "7", []ledger.Change{{Setting: n.setting(), Value: value}})
	return err
}

func (n *splitNode) release() error {
	_, err := n.ledger.Release(n.t.Context(), "7")
	return err
}

// text is the state file: equal texts are equal states, ids included.
func (n *splitNode) text() string {
	n.t.Helper()
	text, err := n.lib.StateText()
	if err != nil {
		n.t.Fatal(err)
	}
	return text
}

func (n *splitNode) faults(faults ...fakenvml.Fault) {
	n.t.Helper()
	if err := n.lib.SetFaults(n.t.Context(), faults...); err != nil {
		n.t.Fatal(err)
	}
}

// TestMIGProfiles: what an H200 answered, in NVML's order.
func TestMIGProfiles(t *testing.T) {
	n := newSplitNode(t)
	profiles, err := n.card().Profiles()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range profiles {
		got = append(got, fmt.Sprintf("%d %s %d of %d at %v", p.ID, p.Name, p.Count, p.Slices, p.Places))
	}
	want := []string{
		"19 1g.18gb 7 of 1 at [0:1 1:1 2:1 3:1 4:1 5:1 6:1]",
		"14 2g.35gb 3 of 2 at [0:2 2:2 4:2]",
		"9 3g.71gb 2 of 3 at [0:4 4:4]",
		"5 4g.71gb 1 of 4 at [0:4]",
		"0 7g.141gb 1 of 7 at [0:8]",
		"20 1g.18gb+me 1 of 1 at [0:1 1:1 2:1 3:1 4:1 5:1 6:1]",
		"15 1g.35gb 4 of 1 at [0:2 2:2 4:2 6:2]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if minor, err := n.card().Minor(); minor != 5 || err != nil {
		t.Errorf("minor %d, %v", minor, err)
	}
}

func TestMIGSplitAndBack(t *testing.T) {
	for _, test := range []struct {
		found, prior, wanted string
		devices              int
	}{
		{"mig_mode 0", "off", "on:1g.18gb@0:1,1g.18gb@1:1,1g.18gb@2:1", 3},
		{"mig_mode 1", "on", "on:1g.18gb+me@0:1,3g.71gb@4:4", 2},
		{
			"mig_mode 1\nmig_instances 9@4:4/1@0:2/0@2:1;9@0:4",
			"on:3g.71gb@0:4[],3g.71gb@4:4[2c.3g.71gb@0:2/1c.3g.71gb@2:1]", "on:1g.18gb@0:1,1g.35gb@2:2,3g.71gb@4:4", 3,
		},
		{
			"mig_mode 1\nmig 0 MIG-a\nmig 1 MIG-b", "on:1g.18gb@0:1,1g.18gb@1:1", "on:7g.141gb@0:8[3c.7g.141gb@0:3/3c.7g.141gb@4:3]", 2,
		},
		{"architecture 7\nmig_mode 0", "off", "on:1g.5gb@0:1,1g.10gb@2:2", 2},
	} {
		n := newSplitNode(t, test.found)
		before := n.text()
		if got := n.read(); got != test.prior {
			t.Errorf("%s: %s", test.prior, got)
		}
		if err := n.apply(test.wanted); err != nil {
			t.Fatal(err)
		}
		if got := n.read(); got != test.wanted {
			t.Errorf("%s: %s", test.wanted, got)
		}
		devices, err := n.card().Devices()
		if err != nil || len(devices) != test.devices {
			t.Errorf("%s: %v, %v", test.wanted, devices, err)
		}
		for _, d := range devices {
			if !strings.HasPrefix(d.UUID, "MIG-") {
				t.Errorf("%+v", d)
			}
		}
		if err := n.release(); err != nil || n.text() != before {
			t.Errorf("%s to %s and back: %v\n%s\n%s", test.prior, test.wanted, err, before, n.text())
		}
	}
}

// TestMIGDevicesOrder: UUIDs come in the order in which instances were asked for,
// and the fake's are the same when they are made again in the same place.
func TestMIGDevicesOrder(t *testing.T) {
	n := newSplitNode(t)
	wants := []mig.Want{{Profile: "1g.18gb", Count: 2}, {Profile: "4g.71gb", Count: 1}}
	plan, err := setting.MIGPlan(n.env, n.uuid, wants, false)
	if err != nil {
		t.Fatal(err)
	}
	var former []string
	for range 2 {
		if err := n.apply(plan.Layout.String()); err != nil {
			t.Fatal(err)
		}
		uuids, err := setting.MIGDevices(n.env, n.uuid, plan)
		if err != nil || len(uuids) != 3 {
			t.Fatalf("%q, %v", uuids, err)
		}
		for i, place := range []string{"4", "5", "0"} {
			if !strings.HasSuffix(uuids[i], "00000000000"+place) {
				t.Errorf("device %d is %s", i, uuids[i])
			}
		}
		if former != nil && !slices.Equal(uuids, former) {
			t.Errorf("%q after %q", uuids, former)
		}
		former = uuids
		if err := n.release(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMIGFaults has each call of NVML fail in each way, once and for good. Then
// the former layout is there, or the error says what is missing and the ledger
// has it.
func TestMIGFaults(t *testing.T) {
	const found = "mig_mode 1\nmig_instances 9@0:4/1@0:2/0@2:1;9@4:4/2@0:3"
	const wanted = "on:1g.18gb@0:1,1g.18gb@1:1[],3g.71gb@4:4[1c.3g.71gb@0:1/1c.3g.71gb@2:1]"
	sets := []string{
		"SetMigMode", "CreateGpuInstanceWithPlacement", "GpuInstanceDestroy", "GpuInstanceCreateComputeInstance",
		"GpuInstanceCreateComputeInstanceWithPlacement", "ComputeInstanceDestroy",
	}
	gets := []string{
		"GetMigMode", "GetGpuInstanceProfileInfoV", "GetGpuInstancePossiblePlacements", "GetGpuInstances", "GetGpuInstanceById", "GpuInstanceGetInfo",
		"GpuInstanceGetComputeInstanceProfileInfoV", "GpuInstanceGetComputeInstances", "GpuInstanceGetComputeInstanceById", "ComputeInstanceGetInfo",
		"GetComputeRunningProcesses", "GetGraphicsRunningProcesses",
	}
	var faults []fakenvml.Fault
	for _, nth := range []string{"1", "2", "1-", "2-"} {
		for _, call := range append(slices.Clone(sets), gets...) {
			faults = append(faults, fakenvml.Fault{Call: call, Nth: nth, Error: "UNKNOWN"})
		}
		for _, call := range sets {
			faults = append(faults, fakenvml.Fault{Call: call, Nth: nth, Error: "TIMEOUT", Applied: true},
				fakenvml.Fault{Call: call, Nth: nth, Ignored: true})
		}
		faults = append(faults, fakenvml.Fault{Call: "Get*", Nth: nth, Error: "GPU_IS_LOST"})
	}
	starts := []string{found, "mig_mode 0"}
	refused, unclean := 0, 0
	for _, lines := range starts {
		n := newSplitNode(t, lines)
		prior := n.read()
		for i, fault := range faults {
			if testing.Short() && i%4 != 0 {
				continue
			}
			n.describe(lines)
			before := n.text()
			n.faults(fault)
			err := n.apply(wanted)
			var apply *ledger.ApplyError
			is := n.text()
			switch {
			case err == nil && is == before:
				t.Errorf("%s: no error, and nothing done", fault)
			case err != nil:
				refused++
				if is != before && (!errors.As(err, &apply) || apply.Clean()) {
					t.Errorf("%s: %v, and left\n%s", fault, err, is)
				}
			}
			err = n.release()
			if is := n.text(); err == nil && is != before {
				t.Errorf("%s: released, and left\n%s", fault, is)
			}
			if err != nil {
				unclean++
				if !strings.Contains(err.Error(), "0000:00:06.0") && !strings.Contains(err.Error(), n.uuid) {
					t.Errorf("%s: %v", fault, err)
				}
			}
			n.faults()
			if err := n.release(); err != nil || n.read() != prior {
				t.Fatalf("%s: when it is gone: %v, %s", fault, err, n.read())
			}
		}
	}
	t.Logf("%d faults, %d times refused, %d times the Epilog fails first", len(starts)*len(faults), refused, unclean)
	if !testing.Short() && (refused < 60 || unclean < 30) {
		t.Error("too few to say anything")
	}
}

// TestMIGReset: cards whose mode waits for a reset, before Hopper.
func TestMIGReset(t *testing.T) {
	n := newSplitNode(t, "architecture 7")
	wants := []mig.Want{{Profile: "1g.5gb", Count: 1}}
	if _, err := setting.MIGPlan(n.env, n.uuid, wants, false); !errors.Is(err, mig.ErrReset) {
		t.Errorf("not allowed: %v", err)
	}
	if _, err := setting.MIGPlan(n.env, n.uuid, wants, true); err != nil {
		t.Error(err)
	}
	before := n.text()

	for lines, want := range map[string]string{
		"architecture 7\nmig_activates 0": "switch MIG mode on: it waits for a reset of the GPU (NVML: GPU requires reset)",
		"architecture 7\nprocess 1 1":     "",
	} {
		n.describe(lines)
		err := n.apply("on:1g.5gb@0:1")
		if err == nil || !strings.Contains(err.Error(), want) || n.text() != before {
			t.Errorf("%s: %v\n%s", lines, err, n.text())
		}
	}

	n.describe("architecture 7\nmig_mode 0 1")
	if _, err := setting.MIGPlan(n.env, n.uuid, wants, true); err == nil || !strings.Contains(err.Error(), "MIG mode is off>on: it waits for a reset") {
		t.Error(err)
	}
}

// TestMIGBusy: a program on an instance keeps it, and is named.
func TestMIGBusy(t *testing.T) {
	n := newSplitNode(t, "mig_mode 1\nmig_instances 9@4:4/2@0:3\nprocess 4711 1 4")
	before := n.text()
	err := n.apply("on:1g.18gb@0:1")
	if !errors.Is(err, setting.ErrInUse) || !strings.HasSuffix(err.Error(), "in use by pid 4711 (unknown)") || n.text() != before {
		t.Errorf("%v", err)
	}
	if err := n.apply("on:1g.18gb@0:1,3g.71gb@4:4"); err != nil {
		t.Error(err)
	}
	if err := n.release(); err != nil || n.text() != before {
		t.Errorf("%v", err)
	}
	// One that appears too late to be seen before: NVML refuses, and is asked who.
	host := mig.Host{Root: n.lib.Folder, InUse: func(err error) bool { return errors.Is(err, setting.ErrInUse) }}
	err = host.Change(t.Context(), n.card(), mig.Layout{Mode: mig.Mode{Now: true, Next: true}})
	if err == nil || !strings.HasSuffix(err.Error(), "3g.71gb@4:4 is left over: gpu 0000:00:06.0: destroy compute instance 0 of MIG instance 1: "+
		"in use (NVML: In use by another client), held by pid 4711 (unknown)") {
		t.Errorf("%v", err)
	}
}

// TestMIGUnsupported: a GPU that cannot be split, and a driver without the calls.
func TestMIGUnsupported(t *testing.T) {
	n := newSplitNode(t, "mig_mode none")
	if err := n.apply("on:1g.18gb@0:1"); !errors.Is(err, setting.ErrUnsupported) {
		t.Errorf("%v", err)
	}
	if _, err := setting.MIGPlan(n.env, n.uuid, []mig.Want{{Profile: "1g.18gb", Count: 1}}, false); !errors.Is(err, setting.ErrUnsupported) {
		t.Errorf("%v", err)
	}
	for _, function := range migFunctions {
		d := newCard().open(t, function)
		if _, err := d.MIG(); !errors.Is(err, setting.ErrUnsupported) || !strings.Contains(err.Error(), function) {
			t.Errorf("without %s: %v", function, err)
		}
	}
}
