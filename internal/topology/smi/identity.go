package smi

import (
	"strconv"
	"strings"

	"gputune/internal/topology"
)

// identity is what names a GPU beside its number.
type identity struct{ pci, uuid, model string }

var (
	// "nvidia-smi -L"
	listedGPU = pattern(`\bGPU ([0-9]{1,4}): (.{1,100}) \(UUID: (GPU-[0-9a-fA-F-]{36})\)`)
	// "nvidia-smi --query-gpu=index,pci.bus_id --format=csv,noheader"
	queriedGPU = pattern(`^ *([0-9]{1,4}), *([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$`)
)

// identities finds what other commands of nvidia-smi, printed beside the
// matrix, say about the GPUs, by their number.
func identities(lines []string) map[int]identity {
	found := make(map[int]identity)
	for _, line := range lines {
		if len(line) > longestLine {
			continue
		}
		if strings.Contains(line, "(UUID: ") {
			if match := listedGPU().FindStringSubmatch(line); match != nil {
				gpu := found[number(match[1])]
				gpu.model, gpu.uuid = match[2], match[3]
				found[number(match[1])] = gpu
			}
		} else if match := queriedGPU().FindStringSubmatch(line); match != nil {
			if pci, err := topology.NormalizePCI(match[2]); err == nil {
				gpu := found[number(match[1])]
				gpu.pci = pci
				found[number(match[1])] = gpu
			}
		}
	}
	return found
}

// number reads digits that an expression has matched.
func number(digits string) int {
	n, err := strconv.Atoi(digits)
	if err != nil {
		panic("smi: " + err.Error()) // four digits always are a number
	}
	return n
}
