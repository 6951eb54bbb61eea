package option

import (
	"fmt"
	"strings"
)

// MemlockName is the name of the option that Memlock is the value of.
const MemlockName = "gpu-memlock"

// MemlockForms lists the accepted values, for messages.
const MemlockForms = "unlimited, inherit, or SIZE with M, G or T behind it"

// Memlock is the value of --gpu-memlock: how much memory the tasks may lock, as
// pinned host memory does. The zero value is inherit: what Slurm gives them.
type Memlock struct {
	Unlimited bool
	Bytes     uint64 // a multiple of 1 MiB, 0: not given
}

// ParseMemlock reads the value of --gpu-memlock.
func ParseMemlock(value string) (Memlock, error) {
	switch value {
	case "unlimited":
		return Memlock{Unlimited: true}, nil
	case "inherit":
		return Memlock{}, nil
	}
	bytes, ok := readSize(value)
	if !ok {
		return Memlock{}, fmt.Errorf("--%s: %s: want %s, %dT at most", MemlockName, Shown(value), MemlockForms, maxPinned>>20)
	}
	return Memlock{Bytes: bytes}, nil
}

// readSize reads a number with M, G or T behind it and returns bytes; the units
// are powers of 1024.
func readSize(text string) (bytes uint64, ok bool) {
	for _, size := range sizes {
		digits, found := strings.CutSuffix(strings.ToUpper(text), size.unit)
		if !found {
			continue
		}
		if n, err := parseUnsigned(digits, uint32(maxPinned/size.mib)); err == nil {
			return uint64(n) * size.mib << 20, true
		}
	}
	return 0, false
}

// writeSize is the reverse of readSize.
func writeSize(bytes uint64) string {
	mib := bytes >> 20
	for _, size := range sizes {
		if mib%size.mib == 0 {
			return fmt.Sprintf("%d%s", mib/size.mib, size.unit)
		}
	}
	return "" // a multiple of 1 MiB it always is
}

// String writes the value as the user could have given it.
func (m Memlock) String() string {
	switch {
	case m.Unlimited:
		return "unlimited"
	case m.Bytes == 0:
		return "inherit"
	default:
		return writeSize(m.Bytes)
	}
}
