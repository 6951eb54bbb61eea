package nvml

import (
	"os"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gputune/internal/follow"
)

// Lists asks which processes use GPUs. The library stays loaded from the first
// question to Close, and has all GPUs of the node open meanwhile: one that attaches
// to none (NVML_INIT_FLAG_NO_ATTACH) finds none by its address.
type Lists struct {
	library *Library
	handles map[string]nvml.Device // by PCI address; nil: not initialised
}

var _ follow.Lister = (*Lists)(nil)

// Lists returns one that has asked nothing yet.
func (l *Library) Lists() follow.Lister { return &Lists{library: l} }

// List implements follow.Lister.
func (l *Lists) List(pci []string) []follow.List {
	lists := make([]follow.List, len(pci))
	for i, address := range pci {
		lists[i] = l.list(address)
	}
	return lists
}

func (l *Lists) list(pci string) follow.List {
	list := follow.List{PCI: pci, PIDs: []int{}}
	if l.handles == nil {
		switch ret := l.library.api.Init(); ret {
		case nvml.SUCCESS:
			l.handles = map[string]nvml.Device{}
		case nvml.ERROR_LIBRARY_NOT_FOUND:
			list.Error = "libnvidia-ml.so.1 is not on this node, so that nobody tells who uses it"
			return list
		default:
			list.Error = "NVML: initialising: " + ret.Error()
			return list
		}
	}
	handle, known := l.handles[pci]
	if !known {
		var ret nvml.Return
		if handle, ret = l.library.api.DeviceGetHandleByPciBusId(pci); ret != nvml.SUCCESS {
			list.Error = "NVML: " + ret.Error()
			return list
		}
		l.handles[pci] = handle
	}
	// The handle of a GPU that is split answers for all its instances to root (nvml.h).
	found, ret := handle.GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		delete(l.handles, pci) // after a reset the GPU has another
		list.Error = "NVML: which processes use it: " + ret.Error()
		return list
	}
	for _, p := range found {
		if pid := count(p.Pid); isMPSServer(pid) {
			list.MPS = true
		} else {
			list.PIDs = append(list.PIDs, pid)
		}
	}
	return list
}

// isMPSServer tells whether a process is nvidia-cuda-mps-server, by the 15 bytes that
// proc_pid_comm(5) has of its name.
func isMPSServer(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return err == nil && strings.TrimSpace(string(text)) == "nvidia-cuda-mps"
}

// Close implements follow.Lister.
func (l *Lists) Close() error {
	if l.handles == nil {
		return nil
	}
	l.handles = nil
	return (&session{api: l.library.api}).Close()
}
