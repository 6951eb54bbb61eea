package topology

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// NormalizePCI returns the address of a PCI function the way sysfs names it:
// lower-case, a domain of four digits, or of more where it needs them
// ("0000:47:00.0", "10000:e1:00.0"). It accepts what NVML and nvidia-smi
// print (a domain of eight digits, "00000000:47:00.0") and what lspci prints
// (no domain, "47:00.0"). Anything else is an error that names the address.
func NormalizePCI(address string) (string, error) {
	invalid := func() error {
		return fmt.Errorf("PCI address %q: want DOMAIN:BUS:DEVICE.FUNCTION in hexadecimal, such as 0000:47:00.0", clip(address))
	}
	rest, function, ok := strings.Cut(address, ".")
	if !ok {
		return "", invalid()
	}
	parts := strings.Split(rest, ":")
	if len(parts) == 2 {
		parts = append([]string{"0"}, parts...)
	}
	if len(parts) != 3 {
		return "", invalid()
	}
	domain, okDomain := parseHex(parts[0], 8, 0xffffffff)
	bus, okBus := parseHex(parts[1], 2, 0xff)
	device, okDevice := parseHex(parts[2], 2, 0x1f)
	fn, okFunction := parseHex(function, 1, 7)
	if !okDomain || !okBus || !okDevice || !okFunction {
		return "", invalid()
	}
	return fmt.Sprintf("%04x:%02x:%02x.%x", domain, bus, device, fn), nil
}

func parseHex(text string, digits int, most uint64) (uint64, bool) {
	if len(text) > digits {
		return 0, false
	}
	value, err := strconv.ParseUint(text, 16, 32)
	return value, err == nil && value <= most
}

// comparePCI orders normalized addresses by their numbers. A longer domain is
// a larger one, since domains have no more than four leading digits' zeros.
func comparePCI(a, b string) int {
	if c := cmp.Compare(len(a), len(b)); c != 0 {
		return c
	}
	return cmp.Compare(a, b)
}
