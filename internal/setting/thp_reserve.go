package setting

import (
	"context"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
)

// minFree is the sysctl that writing thp/enabled changes, too.
const minFree = "vm.min_free_kbytes"

// THP returns what to set, in this order, for transparent hugepages with the
// word of thp/enabled.
//
// Whenever that file is written, the kernel changes vm.min_free_kbytes as well
// (mm/khugepaged.c, set_recommended_min_free_kbytes). With "always" and "madvise" it
// raises it to what it recommends for transparent hugepages, with "never", from
// 5.16 on, to what it computes from the memory, over a lower value of the site's
// too; and it never takes that back. So where it is lower than any of these it is
// a setting of its own, raised before and put back after the other. (Of several
// jobs at once on a node with such a value, the one that came first has to end last
// for it to come back.)
func THP(env *Environment, word string) ([]Wish, error) {
	enabled := Wish{"thp/enabled", word}
	s, err := Parse(env, enabled.Key)
	if err != nil {
		return nil, err
	}
	now, err := s.Read(context.Background())
	if err != nil {
		return nil, err
	}
	if now == word {
		return []Wish{enabled}, nil // nothing will be written
	}
	f := kernelFile{env: env, of: "sysctl " + minFree, path: "/proc/sys/vm/min_free_kbytes"}
	text, err := f.read()
	if err != nil {
		return nil, err
	}
	present, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.of, err)
	}
	most, err := minFreeOfKernel(env, now == thpNever || word == thpNever)
	if err != nil {
		return nil, err
	}
	if present >= most {
		return []Wish{enabled}, nil
	}
	return []Wish{Sysctl(minFree, strconv.FormatUint(most, 10)), enabled}, nil
}

// thpNever is the word of thp/enabled for none.
const thpNever = "never"

// minFreeOfKernel is the most that the kernel makes of vm.min_free_kbytes, in KiB.
// What it recommends is, for each zone that has pages, 2 blocks of the size of a
// hugepage, and 9 for the kinds of pages that are kept apart; no more than a
// twentieth of the memory. What it computes, where there are none, is 4 times the
// root of the memory (mm/page_alloc.c, calculate_min_free_kbytes).
func minFreeOfKernel(env *Environment, none bool) (uint64, error) {
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
	most := min(block*zones*(2+9), managed*page/20) >> 10
	if none {
		kib := managed * page >> 10
		most = max(most, min(uint64(math.Sqrt(float64(kib*16))), 256<<10))
	}
	return most, nil
}
