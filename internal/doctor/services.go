package doctor

import (
	"context"

	"gputune/internal/conflict"
)

// services: daemons that set the same things as gputune's options, or that those
// rely on.
func services(_ context.Context, h *Host) []Finding {
	var found []Finding
	others, err := conflict.Find(h.Root)
	if err != nil {
		found = append(found, warn("run this on the node", "%v", err))
	}
	for _, other := range others {
		found = append(found, warn(other.Advice, "%s", other.What()))
	}
	if len(h.processes("nv-hostengine")) > 0 {
		found = append(found, warn("let it set no clocks", "DCGM runs: its profiling and its policies can hold or change clocks"))
	}
	if len(h.processes("nvidia-persistenced")) > 0 {
		return append(found, ok("nvidia-persistenced runs"))
	}
	return append(found, warn("enable nvidia-persistenced", "nvidia-persistenced does not run: the driver forgets settings whenever no program has a GPU open"))
}

// peermem: a NIC can reach a GPU's memory by itself.
func peermem(_ context.Context, h *Host) []Finding {
	switch {
	case !rdma(h.Node.Machine, h.there):
		return []Finding{ok("no RDMA device")}
	case h.there("/sys/module/nvidia_peermem") || h.there("/sys/module/nv_peer_mem"):
		return []Finding{ok("nvidia_peermem is loaded")}
	}
	return []Finding{warn("modprobe nvidia_peermem, unless the NICs' driver uses DMA-BUF", "nvidia_peermem is not loaded: RDMA to GPU memory may go over the host's")}
}
