package setting

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// minFree is the sysctl that writing thp/enabled changes as well.
const minFree = "vm.min_free_kbytes"

// THP returns what to set, in this order, for transparent hugepages with the
// word of thp/enabled.
//
// Whenever that file is written, the kernel raises vm.min_free_kbytes to what it
// recommends for transparent hugepages (mm/khugepaged.c,
// set_recommended_min_free_kbytes) and never takes a value of the site's that
// was lower back. So where it is lower it is a setting of its own, raised
// before and put back after the other. (Of several jobs at once on a node with
// such a value, the one that came first has to end last for it to come back.)
func THP(env *Environment, word string) ([]Wish, error) {
	enabled := Wish{"thp/enabled", word}
	f := kernelFile{env: env, of: "sysctl " + minFree, path: "/proc/sys/vm/min_free_kbytes"}
	text, err := f.read()
	if err != nil {
		return nil, err
	}
	present, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.of, err)
	}
	recommended, err := recommendedMinFree(env)
	if err != nil {
		return nil, err
	}
	if present >= recommended {
		return []Wish{enabled}, nil
	}
	return []Wish{Sysctl(minFree, strconv.FormatUint(recommended, 10)), enabled}, nil
}

// recommendedMinFree is the kernel's own arithmetic, in KiB: for each zone that
// has pages, 2 blocks of the size of a hugepage, and 9 for the kinds of pages
// that are kept apart; no more than a twentieth of the memory.
func recommendedMinFree(env *Environment) (uint64, error) {
	size, err := kernelFile{env: env, of: "transparent hugepages", path: thpFolder + "/hpage_pmd_size"}.read()
	if err != nil {
		return 0, err
	}
	block, err := strconv.ParseUint(size, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("transparent hugepages: %w", err)
	}
	text, err := os.ReadFile(env.Path("/proc/zoneinfo"))
	if err != nil {
		return 0, err
	}
	var zones, managed uint64
	movable := false
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 4 && fields[0] == "Node":
			movable = fields[3] == "Movable" || fields[3] == "Device"
		case len(fields) == 2 && fields[0] == "managed" && !movable:
			pages, err := strconv.ParseUint(fields[1], 10, 63)
			if err != nil {
				return 0, fmt.Errorf("/proc/zoneinfo: managed: %w", err)
			}
			if pages > 0 {
				zones++
				managed += pages
			}
		}
	}
	page := uint64(os.Getpagesize())
	return min(block*zones*(2+9), managed*page/20) >> 10, nil
}
