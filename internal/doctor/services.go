package doctor

import "context"

// services: daemons that set the same things as gputune's options, or that those
// rely on.
func services(_ context.Context, h *Host) []Finding {
	var found []Finding
	for _, s := range []struct{ name, text, do string }{
		{"tuned", "tuned runs: it sets governors and kernel settings, and may set them while a job has others", "keep its profile and node settings of jobs apart"},
		{"irqbalance", "irqbalance runs: it moves interrupts away from where they were put", "ban the GPUs' and NICs' interrupts, or stop it"},
		{"nv-hostengine", "DCGM runs: its profiling and its policies can hold or change clocks", "let it set no clocks"},
	} {
		if pids := h.processes(s.name); len(pids) > 0 {
			found = append(found, warn(s.do, "%s", s.text))
		}
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
