package setting

import (
	"os"
	"strconv"
	"strings"
)

// FreeBlocks returns how many pieces of a size in KiB the free memory of a NUMA
// node has in one piece each; 0 where the kernel does not tell, as for sizes larger
// than it keeps lists of.
//
// Documentation/filesystems/proc.rst, buddyinfo: "Node 0, zone Normal 4 2 …" counts
// free blocks of 1, 2, 4, … pages.
func FreeBlocks(env *Environment, node int, size uint64) (count uint64) {
	text, err := os.ReadFile(env.Path("/proc/buddyinfo"))
	if err != nil || size == 0 {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 5 || fields[0] != "Node" || fields[1] != strconv.Itoa(node)+"," {
			continue
		}
		block := uint64(os.Getpagesize()) >> 10
		for _, field := range fields[4:] {
			if free, err := strconv.ParseUint(field, 10, 40); err == nil {
				count += free * (block / size)
			}
			block *= 2
		}
	}
	return count
}
