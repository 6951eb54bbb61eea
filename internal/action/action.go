// Package action does what is done to a node once and cannot be put back: dropped
// caches, compacted memory. It takes seconds on a large machine, so nothing of it
// belongs inside a lock of the ledger's.
package action

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"gputune/internal/idset"
)

// Host is the machine that is acted on.
type Host struct {
	// Root is prepended to every path of /proc and /sys, "/" outside tests.
	Root string
	// Now is the clock for how long things took.
	Now func() time.Time
	// Sync writes what waits for the disks and returns when that is done; nil is
	// SyncProgram.
	Sync Syncer
}

// ErrMissing is a kernel without what an action needs.
var ErrMissing = errors.New("this kernel has none")

const nodesFolder = "/sys/devices/system/node"

func (h Host) path(parts ...string) string {
	return filepath.Join(append([]string{h.Root}, parts...)...)
}

// trigger writes a number to a file that does something for it.
func (h Host) trigger(file, value string) error {
	f, err := os.OpenFile(h.path(file), os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", file, ErrMissing)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(value + "\n")
	return errors.Join(err, f.Close())
}

// nodes returns the NUMA nodes that have memory.
func (h Host) nodes() (idset.Set, error) {
	text, err := os.ReadFile(h.path(nodesFolder, "has_memory"))
	if err != nil {
		return idset.Set{}, err
	}
	return idset.Parse(string(text))
}

// free returns MemFree of a NUMA node in KiB: "Node 0 MemFree:  22735116 kB".
func (h Host) free(node int) (int64, error) {
	file := fmt.Sprintf("%s/node%d/meminfo", nodesFolder, node)
	text, err := os.ReadFile(h.path(file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) >= 4 && fields[2] == "MemFree:" {
			kib, err := strconv.ParseInt(fields[3], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: MemFree: %w", file, err)
			}
			return kib, nil
		}
	}
	return 0, fmt.Errorf("%s: no MemFree", file)
}
