package fakenvml

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

// TestH200 asks what was asked of real H200, and the rest.
func TestH200(t *testing.T) {
	l := newLibrary(t, H200(2))
	before := stateText(t, l)
	check(
		t, l,
		exchange{"SystemGetDriverVersion", "580.159.04 SUCCESS"},
		exchange{"SystemGetNVMLVersion", "13.580.159.04 SUCCESS"},
		exchange{"SystemGetCudaDriverVersion", "13000 SUCCESS"},
		exchange{"GetCount", "2 SUCCESS"},
		exchange{"GetIndex 1", "1 SUCCESS"},
		exchange{"GetIndex 2", "handle INVALID_ARGUMENT"},
		exchange{"GetUUID 1", "GPU-4b0480b5-0000-4000-8000-000000000001 SUCCESS"},
		exchange{"GetHandleByUUID GPU-4b0480b5-0000-4000-8000-000000000001", "GPU-4b0480b5-0000-4000-8000-000000000001 SUCCESS"},
		exchange{"GetHandleByUUID GPU-x", "NOT_FOUND"},
		exchange{"GetHandleByPciBusId 00000000:00:07.0", "GPU-4b0480b5-0000-4000-8000-000000000001 SUCCESS"},
		exchange{"GetHandleByPciBusId 0000:00:06", "GPU-4b0480b4-0000-4000-8000-000000000000 SUCCESS"},
		exchange{"GetHandleByPciBusId 00:07.0", "GPU-4b0480b5-0000-4000-8000-000000000001 SUCCESS"},
		exchange{"GetHandleByPciBusId 0001:00:07.0", "NOT_FOUND"},
		exchange{"GetHandleByPciBusId seven", "INVALID_ARGUMENT"},
		exchange{"GetName 0", "NVIDIA H200 SUCCESS"},
		exchange{"GetArchitecture 0", "9 SUCCESS"},
		exchange{"GetMinorNumber 0", "0 SUCCESS"},
		exchange{"GetMinorNumber 1", "1 SUCCESS"},
		exchange{"GetPciInfo 0", "00000000:00:06.0 0000:00:06.0 0:0:6 SUCCESS"},
		exchange{"GetMemoryAffinity 0 1 0", "[0x1] SUCCESS"},
		exchange{"GetMemoryAffinity 0 1 1", "[0x1] SUCCESS"},
		exchange{"GetMemoryAffinity 0 1 2", "[0x0] INVALID_ARGUMENT"},
		exchange{"GetCpuAffinity 0 32", "[0xffffffff 0x0 0x0 0x0] SUCCESS"},
		exchange{"GetCpuAffinityWithinScope 0 32 1", "[0xffffffff 0x0 0x0 0x0] SUCCESS"},
		exchange{"GetNumaNodeId 0", "NOT_SUPPORTED"},
		exchange{"GetMigMode 0", "0 0 SUCCESS"},
		exchange{"GetMaxMigDeviceCount 0", "0 SUCCESS"},
		exchange{"mig 0 0", "NOT_FOUND"},
		exchange{"GetPowerManagementLimit 0", "700000 SUCCESS"},
		exchange{"GetPowerManagementLimitConstraints 0", "200000 700000 SUCCESS"},
		exchange{"GetPowerManagementDefaultLimit 0", "700000 SUCCESS"},
		exchange{"GetEnforcedPowerLimit 0", "700000 SUCCESS"},
		exchange{"GetPowerUsage 0", "75000 SUCCESS"},
		exchange{"GetTotalEnergyConsumption 0", "1000000000 SUCCESS"},
		exchange{"GetSupportedMemoryClocks 0", "2 INSUFFICIENT_SIZE"},
		exchange{"GetSupportedGraphicsClocks 0 3201", "110 INSUFFICIENT_SIZE"},
		exchange{"GetSupportedGraphicsClocks 0 1", "0 NOT_FOUND"},
		exchange{"GetMinMaxClockOfPState 0 0 0", "345 1980 SUCCESS"},
		exchange{"GetMinMaxClockOfPState 0 2 0", "3201 3201 SUCCESS"},
		exchange{"GetMinMaxClockOfPState 0 2 16", "INVALID_ARGUMENT"},
		exchange{"GetMaxClockInfo 0 0", "1980 SUCCESS"},
		exchange{"GetMaxClockInfo 0 1", "1980 SUCCESS"},
		exchange{"GetMaxClockInfo 0 2", "3201 SUCCESS"},
		exchange{"GetMaxClockInfo 0 3", "1545 SUCCESS"},
		exchange{"GetMaxClockInfo 0 4", "INVALID_ARGUMENT"},
		exchange{"GetClockInfo 0 1", "345 SUCCESS"},
		exchange{"GetClock 0 0 0", "345 SUCCESS"},
		exchange{"GetClock 0 0 1", "1980 SUCCESS"},
		exchange{"GetClock 0 2 2", "3201 SUCCESS"},
		exchange{"GetClock 0 0 3", "1980 SUCCESS"},
		exchange{"GetClock 0 0 4", "INVALID_ARGUMENT"},
		exchange{"GetApplicationsClock 0 0", "1980 SUCCESS"},
		exchange{"GetDefaultApplicationsClock 0 2", "3201 SUCCESS"},
		exchange{"GetPersistenceMode 0", "1 SUCCESS"},
		exchange{"GetComputeMode 0", "0 SUCCESS"},
		exchange{"GetEccMode 0", "1 1 SUCCESS"},
		exchange{"GetRemappedRows 0", "0 0 false false SUCCESS"},
		exchange{"GetCurrentClocksEventReasons 0", "1 SUCCESS"},
		exchange{"GetCurrentClocksThrottleReasons 0", "1 SUCCESS"},
		exchange{"GetComputeRunningProcesses 0", "[] SUCCESS"},
		exchange{"GetPerformanceState 0", "0 SUCCESS"},
		exchange{"GetUtilizationRates 0", "0 0 SUCCESS"},
		exchange{"GetTemperature 0 0", "30 SUCCESS"},
		exchange{"GetTemperature 0 1", "INVALID_ARGUMENT"},
		exchange{"GetMemoryInfo 0", "150754820096 0 150754820096 SUCCESS"},
		exchange{"ErrorString 3", "Not Supported SUCCESS"},
	)
	if after := stateText(t, l); after != before {
		t.Errorf("reading changed the state from\n%sto\n%s", before, after)
	}
}

// Processes come and go without a new description.
func TestSetProcesses(t *testing.T) {
	d := H200(2)
	d.GPUs[0].Lines = []string{"process 7 1"}
	l := newLibrary(t, d)
	if err := l.SetProcesses(map[string][]int{d.GPUs[0].UUID: {17}, d.GPUs[1].UUID: {18, 17}}); err != nil {
		t.Fatal(err)
	}
	check(t, l, exchange{"GetComputeRunningProcesses 0", "[{7 1 4294967295 4294967295} {17 1073741824 4294967295 4294967295}] SUCCESS"},
		exchange{"GetComputeRunningProcesses 1", "[{18 1073741824 4294967295 4294967295} {17 1073741824 4294967295 4294967295}] SUCCESS"})
	if err := l.SetProcesses(nil); err != nil {
		t.Fatal(err)
	}
	check(t, l, exchange{"GetComputeRunningProcesses 0", "[{7 1 4294967295 4294967295}] SUCCESS"}, exchange{"GetComputeRunningProcesses 1", "[] SUCCESS"})
}

// TestOtherGPUs describes GPUs that have less, or more, than an H200.
func TestOtherGPUs(t *testing.T) {
	d := H200(3)
	d.Driver = "525.60.13"
	d.GPUs[0].Lines = []string{
		"numa_node 8", "ecc none", "mig_mode none", "power_range none", "memory_clocks none", "graphics_clocks none",
		"application_clocks none", "nodes none", "cpus none",
	}
	d.GPUs[1].MIG = []string{"MIG-a", "", "MIG-b"}
	d.GPUs[1].Lines = []string{"cpus 0-3,64", "cpus_socket 0-127", "nodes 1", "nodes_socket 0-1"}
	d.GPUs[2].Lines = []string{
		"process 17 1048576", "process 18 2097152", "process 19 5", "memory_clocks 1593 900", "graphics_clocks 1410 210 15",
		"application_clocks 1593 1200", "remapped_rows 1 2 1 1", "utilization 90 40", "power_limit 350000",
		"persistence 0", "compute_mode 3", "memory 1000", "memory_used 300", "event_reasons 0x4", "energy 5000000000",
	}
	l := newLibrary(t, d)
	check(
		t, l,
		exchange{"SystemGetDriverVersion", "525.60.13 SUCCESS"},
		exchange{"GetNumaNodeId 0", "8 SUCCESS"},
		exchange{"GetEccMode 0", "NOT_SUPPORTED"},
		exchange{"GetMigMode 0", "NOT_SUPPORTED"},
		exchange{"GetPowerManagementLimit 0", "NOT_SUPPORTED"},
		exchange{"GetPowerManagementLimitConstraints 0", "NOT_SUPPORTED"},
		exchange{"GetPowerManagementDefaultLimit 0", "NOT_SUPPORTED"},
		exchange{"GetSupportedMemoryClocks 0", "0 NOT_SUPPORTED"},
		exchange{"GetSupportedGraphicsClocks 0 3201", "0 NOT_SUPPORTED"},
		exchange{"GetClockInfo 0 0", "NOT_SUPPORTED"},
		exchange{"GetApplicationsClock 0 0", "NOT_SUPPORTED"},
		exchange{"GetMemoryAffinity 0 1 0", "[0x0] NOT_SUPPORTED"},
		exchange{"GetCpuAffinity 0 1", "[0x0] NOT_SUPPORTED"},
		exchange{"GetMigMode 1", "1 1 SUCCESS"},
		exchange{"GetMaxMigDeviceCount 1", "7 SUCCESS"},
		exchange{"mig 1 0", "MIG-a true of 1, power limit NOT_SUPPORTED SUCCESS"},
		exchange{"mig 1 1", "NOT_FOUND"},
		exchange{"mig 1 2", "MIG-b true of 1, power limit NOT_SUPPORTED SUCCESS"},
		exchange{"mig 1 7", "INVALID_ARGUMENT"},
		exchange{"GetHandleByUUID MIG-b", "MIG-b SUCCESS"},
		exchange{"GetRemappedRows 1", "0 0 false false NOT_SUPPORTED"},
		exchange{"GetCpuAffinity 1 16", "[0xf 0x1] SUCCESS"},
		exchange{"GetCpuAffinityWithinScope 1 16 1", "[0xffffffffffffffff 0xffffffffffffffff] SUCCESS"},
		exchange{"GetMemoryAffinity 1 1 0", "[0x2] SUCCESS"},
		exchange{"GetMemoryAffinity 1 1 1", "[0x3] SUCCESS"},
		exchange{"GetComputeRunningProcesses 2", "[{17 1048576 4294967295 4294967295} {18 2097152 4294967295 4294967295} {19 5 4294967295 4294967295}] SUCCESS"},
		exchange{"GetSupportedMemoryClocks 2", "2 INSUFFICIENT_SIZE"},
		exchange{"GetSupportedGraphicsClocks 2 900", "81 INSUFFICIENT_SIZE"},
		exchange{"GetMinMaxClockOfPState 2 2 0", "1593 1593 SUCCESS"},
		exchange{"GetClockInfo 2 0", "1200 SUCCESS"},
		exchange{"GetRemappedRows 2", "1 2 true true SUCCESS"},
		exchange{"GetUtilizationRates 2", "90 40 SUCCESS"},
		exchange{"GetPowerManagementLimit 2", "350000 SUCCESS"},
		exchange{"GetPowerManagementDefaultLimit 2", "350000 SUCCESS"},
		exchange{"GetPersistenceMode 2", "0 SUCCESS"},
		exchange{"GetComputeMode 2", "3 SUCCESS"},
		exchange{"GetMemoryInfo 2", "1000 300 700 SUCCESS"},
		exchange{"GetCurrentClocksEventReasons 2", "4 SUCCESS"},
		exchange{"GetTotalEnergyConsumption 2", "5000000000 SUCCESS"},
	)
}

// TestFactsOfTopology asks as the programs do and wants the description back.
func TestFactsOfTopology(t *testing.T) {
	d := H200(4)
	d.GPUs[1] = GPU{UUID: "GPU-other", Name: "NVIDIA A100-SXM4-80GB", PCI: "0000:c7:00.0", Minor: 5, CPUs: "48-63,176-191", Nodes: "3"}
	d.GPUs[2].Nodes = "none"
	d.GPUs[3].MIG = []string{"MIG-a", "", "MIG-b"}
	l := newLibrary(t, d)

	answer, found := strings.CutSuffix(ask(t, l, "facts 256 8")[0], " SUCCESS")
	if !found {
		t.Fatal(answer)
	}
	var got topology.NVMLFacts
	if err := json.Unmarshal([]byte(answer), &got); err != nil {
		t.Fatal(err)
	}
	if got.Driver != d.Driver || len(got.GPUs) != len(d.GPUs) {
		t.Fatalf("driver %q, %d GPUs", got.Driver, len(got.GPUs))
	}
	for i, want := range d.GPUs {
		gpu := got.GPUs[i]
		nodes := idset.Set{}
		if want.Nodes != "none" {
			nodes = idset.MustParse(want.Nodes)
		}
		mig := slices.DeleteFunc(slices.Clone(want.MIG), func(uuid string) bool { return uuid == "" })
		if gpu.UUID != want.UUID || gpu.Model != want.Name || gpu.Minor != want.Minor || gpu.PCI != "0000"+strings.ToUpper(want.PCI) ||
			!gpu.CPUs.Equal(idset.MustParse(want.CPUs)) || !gpu.Memory.Equal(nodes) || !slices.Equal(gpu.MIG, mig) {
			t.Errorf("GPU %d: got %+v, want %+v", i, gpu, want)
		}
	}
	if want := []string{"NVML: memory affinity of GPU 00000000:00:08.0: Not Supported"}; !slices.Equal(got.Warnings, want) {
		t.Errorf("warnings %q, want %q", got.Warnings, want)
	}
}

// TestWhereTheDescriptionIs has the library reached by a link, by a relative
// path and with the description elsewhere.
func TestWhereTheDescriptionIs(t *testing.T) {
	l := newLibrary(t, H200(2))
	links := t.TempDir()
	if err := os.Symlink(l.Path(), filepath.Join(links, "libnvidia-ml.so.1")); err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(t.TempDir(), "machine.conf")
	if err := os.WriteFile(elsewhere, []byte(H200(3).String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, want string
		environ    []string
		folder     string
	}{
		{"link", "2 SUCCESS", []string{"LD_LIBRARY_PATH=" + links}, ""},
		{"relative", "2 SUCCESS", []string{"LD_LIBRARY_PATH=."}, l.Folder},
		{"elsewhere", "3 SUCCESS", append(l.Environ(), "FAKENVML_CONF="+elsewhere), ""},
		{"nowhere", "Init DRIVER_NOT_LOADED", append(l.Environ(), "FAKENVML_CONF="+elsewhere+".not"), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := command(t, l, "GetCount")
			cmd.Env = append(callerEnviron(), test.environ...)
			cmd.Dir = test.folder
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimSpace(string(out)); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestMalformed wants each mistake named with its file and line.
func TestMalformed(t *testing.T) {
	l := newLibrary(t, H200(1))
	for _, test := range []struct{ line, want string }{
		{"colour blue", `unknown key "colour" of a GPU`},
		{"gpu GPU-4b0480b4-0000-4000-8000-000000000000", "gpu: want a UUID that no other has"},
		{"gpu GPU a", "gpu: want a UUID"},
		{"pci 00:06.0", "pci: want an address"},
		{"cpus 3-1", "cpus: want a list"},
		{"cpus 9999", "cpus: want a list"},
		{"nodes 0,", "nodes: want a list"},
		{"power_range 1", "power_range: want 2 numbers"},
		{"power_range 1 2 3", "power_range: want 2 numbers"},
		{"energy -1", "energy: want one number"},
		{"memory_clocks 900 1593", "memory_clocks: want numbers that fall"},
		{"graphics_clocks 1980 345 16", "graphics_clocks: want highest, lowest and a step"},
		{"mig 7 MIG-a", "mig: want a place from 0 to 6"},
		{"process 1", "process: want a pid"},
		{"fault", "want the name of a call"},
		{"fault GetNumber error=UNKNOWN", `no call matches "GetNumber"`},
		{"fault GetCount gpu=0 error=UNKNOWN", `no call about a GPU matches "GetCount"`},
		{"fault GetName gpu=1 error=UNKNOWN", "gpu=1: no such GPU"},
		{"fault GetName error=LOST", `"error=LOST" is not understood`},
		{"fault GetName error=SUCCESS", `"error=SUCCESS" is not understood`},
		{"fault GetName nth=0 error=UNKNOWN", `"nth=0" is not understood`},
		{"fault GetName nth=3-2 error=UNKNOWN", `"nth=3-2" is not understood`},
		{"fault GetName value=1", "value: GetName has 0 numbers"},
		{"fault GetEccMode value=1", "value: GetEccMode has 2 numbers"},
		{"fault GetEccMode ignored", "GetEccMode sets nothing"},
		{"fault SetComputeMode applied", "applied: want error=NAME"},
		{"fault SetComputeMode ignored value=1", "ignored: want neither"},
		{"fault SetComputeMode nth=1", "want error=NAME, value"},
		{"fault SetComputeMode ignored=1", `"ignored=1" is not understood`},
		{"fault SetComputeMode sometimes", `"sometimes" is not understood`},
	} {
		d := H200(1)
		d.Lines = []string{"# comment", ""}
		d.GPUs[0].Lines = []string{test.line}
		err := l.Describe(t.Context(), d)
		if err == nil || !strings.Contains(err.Error(), "fakenvml.conf:10: ") || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: got %v, want fakenvml.conf:10: %s", test.line, err, test.want)
		}
	}
	// The library says the same, and the call fails.
	got := ask(t, l, "GetCount")
	if len(got) != 2 || got[0] != "Init UNKNOWN" || !strings.Contains(got[1], `"sometimes" is not understood`) {
		t.Errorf("got %q", got)
	}
}
