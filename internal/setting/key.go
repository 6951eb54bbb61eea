package setting

import (
	"fmt"
	"strings"
)

// HostDomain is the domain of every key that is not a GPU's.
const HostDomain = "host"

// Limits of keys. The longest key in use has about 60 bytes.
const (
	maxKey   = 255
	maxParts = 8
)

// split returns the parts of a key, which are separated by slashes. A part has
// letters, digits, '.', '_', '-' and ':', and does not begin with '.', so that
// none can leave a folder.
func split(key string) ([]string, error) {
	if key == "" || len(key) > maxKey {
		return nil, fmt.Errorf("%w: a key of %d bytes: 1 to %d", ErrUnknownKey, len(key), maxKey)
	}
	parts := strings.Split(key, "/")
	if len(parts) > maxParts {
		return nil, fmt.Errorf("%w: %q has %d parts: at most %d", ErrUnknownKey, key, len(parts), maxParts)
	}
	for _, part := range parts {
		if part == "" || part[0] == '.' || strings.IndexFunc(part, notInKey) >= 0 {
			return nil, fmt.Errorf("%w: %q: parts have letters, digits and any of . _ - : and begin with no dot", ErrUnknownKey, key)
		}
	}
	return parts, nil
}

func notInKey(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-:", r)
}

// CheckKey returns an error unless key has the form of a key. It does not tell
// whether there is such a setting.
func CheckKey(key string) error {
	_, err := split(key)
	return err
}

// GPUDomain is what the domains of GPUs begin with; the UUID follows.
const GPUDomain = "gpu-"

// Domain returns which part of the machine a key belongs to: "gpu-" and the
// UUID for a GPU's, HostDomain for all others. Keys of different domains do
// not influence each other, so each domain has a lock of its own.
func Domain(key string) string {
	parts, err := split(key)
	if err != nil || len(parts) < 3 || parts[0] != "gpu" {
		return HostDomain
	}
	return GPUDomain + parts[1]
}
