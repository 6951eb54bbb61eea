package topology

import (
	"fmt"
	"slices"
	"strings"

	"gputune/internal/idset"
)

// FindGPUs returns the positions in GPUs of those that a list names, in the order
// of the list: indices and ranges of them ("0,2-3"), PCI addresses, and UUIDs or
// their first parts. An error names the piece and what would work.
func (m *Machine) FindGPUs(list string) ([]int, error) {
	if len(m.GPUs) == 0 {
		return nil, fmt.Errorf("GPU list %q: there are no GPUs", clip(list))
	}
	var found []int
	for piece := range strings.SplitSeq(list, ",") {
		piece = strings.TrimSpace(piece)
		gpus, err := m.findGPU(piece)
		if err != nil {
			return nil, fmt.Errorf("GPU list %q: %q: %w", clip(list), clip(piece), err)
		}
		for _, gpu := range gpus {
			if slices.Contains(found, gpu) {
				return nil, fmt.Errorf("GPU list %q: GPU %d is named twice", clip(list), gpu)
			}
			found = append(found, gpu)
		}
	}
	return found, nil
}

func (m *Machine) findGPU(piece string) ([]int, error) {
	wanted := fmt.Errorf("want GPU-<uuid>, a PCI address or an index from 0 to %d", len(m.GPUs)-1)
	if pci, err := NormalizePCI(piece); err == nil {
		if i := slices.IndexFunc(m.GPUs, func(gpu GPU) bool { return gpu.PCI == pci }); i >= 0 {
			return []int{i}, nil
		}
		return nil, fmt.Errorf("no GPU is there: %w", wanted)
	}
	if len(piece) > 4 && strings.EqualFold(piece[:4], "GPU-") {
		var fits []int
		for i := range m.GPUs {
			if uuid := m.GPUs[i].UUID; len(uuid) >= len(piece) && strings.EqualFold(uuid[:len(piece)], piece) {
				fits = append(fits, i)
			}
		}
		switch len(fits) {
		case 1:
			return fits, nil
		case 0:
			return nil, fmt.Errorf("no GPU has that UUID: %w", wanted)
		}
		return nil, fmt.Errorf("%d GPUs have a UUID that begins so: want more of it", len(fits))
	}
	indices, err := idset.Parse(piece)
	if err != nil || indices.Empty() || indices.Max() >= len(m.GPUs) {
		return nil, wanted
	}
	return slices.Collect(indices.All()), nil
}
