package nvml

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"gputune/internal/follow"
)

// The library is loaded with the first question, keeps its handles, takes a new one
// after an error, and is let go of until it is asked again.
func TestLists(t *testing.T) {
	// What NVML has of an H200 that two clients of an MPS server use.
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	program := filepath.Join(t.TempDir(), "nvidia-cuda-mps-server")
	if err := os.Symlink(sleep, program); err != nil {
		t.Fatal(err)
	}
	server := exec.Command(program, "600")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	answer, processes := nvml.SUCCESS, []nvml.ProcessInfo{{Pid: 1}, {Pid: uint32(server.Process.Pid)}}
	device := &mock.Device{GetComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) { return processes, answer }}
	initialised, handles, closed := nvml.ERROR_LIBRARY_NOT_FOUND, 0, 0
	lists := (&Library{api: &mock.Interface{
		InitFunc:     func() nvml.Return { return initialised },
		ShutdownFunc: func() nvml.Return { closed++; return nvml.SUCCESS },
		DeviceGetHandleByPciBusIdFunc: func(pci string) (nvml.Device, nvml.Return) {
			handles++
			if pci != "0000:07:00.0" {
				return nil, nvml.ERROR_NOT_FOUND
			}
			return device, nvml.SUCCESS
		},
		ErrorStringFunc: func(nvml.Return) string { return "text" },
	}}).Lists()
	const pci = "0000:07:00.0"
	ask := func(want follow.List) {
		t.Helper()
		if got := lists.List([]string{want.PCI}); len(got) != 1 || got[0].PCI != want.PCI || got[0].MPS != want.MPS ||
			!reflect.DeepEqual(got[0].PIDs, append([]int{}, want.PIDs...)) || (got[0].Error == "") != (want.Error == "") {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	ask(follow.List{PCI: pci, Error: "no library"})
	if err := lists.Close(); err != nil || closed != 0 {
		t.Errorf("%v, shut down %d times before it was initialised", err, closed)
	}
	initialised = nvml.SUCCESS
	ask(follow.List{PCI: pci, PIDs: []int{1}, MPS: true})
	processes = processes[1:]
	ask(follow.List{PCI: pci, MPS: true})
	processes = nil
	ask(follow.List{PCI: pci})
	if handles != 1 {
		t.Errorf("%d handles for one GPU", handles)
	}
	ask(follow.List{PCI: "0000:08:00.0", Error: "not found"})
	answer = nvml.ERROR_GPU_IS_LOST
	ask(follow.List{PCI: pci, Error: "lost"})
	answer = nvml.SUCCESS
	ask(follow.List{PCI: pci})
	if handles != 3 {
		t.Errorf("%d handles, want a new one after an error", handles)
	}
	for range 2 {
		if err := lists.Close(); err != nil || closed != 1 {
			t.Errorf("%v, shut down %d times", err, closed)
		}
	}
	ask(follow.List{PCI: pci})
}
