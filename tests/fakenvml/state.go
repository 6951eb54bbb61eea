package fakenvml

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// GPUState is what is set on one GPU. Unlike NVML it tells locks of clocks.
type GPUState struct {
	PowerLimit        int    // mW
	GPUClocks         string // "none" or "MIN,MAX" in MHz, "tdp" and "unlimited" for symbols
	MemoryClocks      string // as GPUClocks
	ApplicationClocks string // "MEMORY,GRAPHICS" in MHz, or "none"
	Persistence       int    // 0 or 1
	ComputeMode       int    // nvmlComputeMode_t
	MIGMode           string // "" for off, else "NOW,NEXT", 0 or 1
	MIG               string // "" for none, else instances as in the description
}

// keysPerGPU is the number of lines each GPU has.
const keysPerGPU = 8

func parseState(text string) (map[string]GPUState, error) {
	if !strings.HasSuffix(text, "\n") {
		return nil, errors.New("the last line has no end")
	}
	state := map[string]GPUState{}
	seen := map[string]bool{}
	lines := map[string]int{}
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		key, value, found := strings.Cut(line, " ")
		part := strings.Split(key, "/")
		if !found || len(part) != 3 || part[0] != "gpu" || seen[key] {
			return nil, fmt.Errorf("line %d: %q: want gpu/UUID/KEY VALUE, once", i+1, line)
		}
		seen[key] = true
		lines[part[1]]++
		gpu := state[part[1]]
		if err := gpu.set(part[2], value); err != nil {
			return nil, fmt.Errorf("line %d: %q: %w", i+1, line, err)
		}
		state[part[1]] = gpu
	}
	for uuid, n := range lines {
		if n != keysPerGPU {
			return nil, fmt.Errorf("GPU %s has %d lines, want %d", uuid, n, keysPerGPU)
		}
	}
	return state, nil
}

func (g *GPUState) set(key, value string) error {
	number := map[string]*int{"power_limit": &g.PowerLimit, "persistence": &g.Persistence, "compute_mode": &g.ComputeMode}
	text := map[string]*string{"gpu_clocks": &g.GPUClocks, "memory_clocks": &g.MemoryClocks, "application_clocks": &g.ApplicationClocks}
	if to, is := number[key]; is {
		n, err := strconv.Atoi(value)
		if err != nil {
			return fmt.Errorf("want a number: %w", err)
		}
		*to = n
		return nil
	}
	switch key {
	case "mig_mode":
		g.MIGMode = strings.TrimPrefix(value, "none")
		return nil
	case "mig_instances":
		g.MIG = strings.TrimPrefix(value, "none")
		return nil
	}
	if to, is := text[key]; is {
		if value != "none" && strings.Count(value, ",") != 1 {
			return errors.New("want none or two clocks")
		}
		*to = value
		return nil
	}
	return errors.New("unknown key")
}
