package numavm

import (
	"fmt"
	"os"
	"path/filepath"
)

// CacheVariable is the environment variable that names the folder for images and running machines.
const CacheVariable = "GPUTUNE_VM_CACHE"

// CacheDir is the folder for images and running machines: $GPUTUNE_VM_CACHE, or /var/cache/gputune-vm for root, or
// gputune-vm in the user's cache folder ($XDG_CACHE_HOME).
func CacheDir() (string, error) {
	if dir := os.Getenv(CacheVariable); dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("%s=%s: %w", CacheVariable, dir, err)
		}
		return abs, nil
	}
	if os.Geteuid() == 0 {
		return "/var/cache/gputune-vm", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache folder: %w; set %s", err, CacheVariable)
	}
	return filepath.Join(dir, "gputune-vm"), nil
}
