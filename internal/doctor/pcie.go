package doctor

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// links: PCIe links of GPUs and NICs have the width and the speed that both ends
// can have.
func links(_ context.Context, h *Host) []Finding {
	var found []Finding
	named := h.devices()
	seen := 0
	for _, pci := range slices.Sorted(maps.Keys(named)) {
		folder := "/sys/bus/pci/devices/" + pci + "/"
		width, most := h.number(folder+"current_link_width"), h.number(folder+"max_link_width")
		speed, fastest := h.number(folder+"current_link_speed"), h.number(folder+"max_link_speed")
		if width <= 0 || most <= 0 {
			continue // a virtual function, or a machine without
		}
		seen++
		switch {
		case width < most:
			found = append(found, bad("reseat the card, look at the slot and the BIOS", "%s: PCIe link of %g lanes, it can have %g", named[pci], width, most))
		case speed < fastest:
			found = append(found, warn("look again under load: an idle link slows down", "%s: PCIe link at %g GT/s, it can have %g", named[pci], speed, fastest))
		}
	}
	switch {
	case seen == 0:
		found = append(found, ok("no device here states the width of its link"))
	case len(found) == 0:
		found = append(found, ok("%d PCIe links at full width and speed", seen))
	}
	return found
}

// number reads the number that a file begins with, "16.0 GT/s PCIe", 0 none.
func (h *Host) number(path string) float64 {
	text, err := h.text(path)
	if err != nil {
		return 0
	}
	word, _, _ := strings.Cut(text, " ")
	n, err := strconv.ParseFloat(word, 64)
	if err != nil {
		return 0
	}
	return n
}
