package option

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// HugepagesName is the name of the option that Hugepages is the value of.
const HugepagesName = "hugepages"

// HugepagesForms lists the accepted values, for messages.
const HugepagesForms = "SIZE:COUNT, such as 2M:512, several with commas between them; SIZE as the kernel has it, in K, M or G"

const (
	maxHugepages     = 1 << 30 // pages of one size
	maxHugepageSizes = 8
)

// Hugepages are pages of one size.
type Hugepages struct {
	KiB   uint64 // the size of one
	Count uint64 // 1 or more
}

// ParseHugepages reads the value of --hugepages: how many pages of which sizes
// the job gets, all of them on each node that has GPUs of its. Which sizes there
// are the node's kernel tells.
func ParseHugepages(value string) ([]Hugepages, error) {
	var list []Hugepages
	err := parseItems(HugepagesName, value, func(item string) error {
		sizeText, countText, _ := strings.Cut(item, ":")
		size, okSize := readPageSize(sizeText)
		count, err := parseUnsigned(countText, maxHugepages)
		switch {
		case !okSize || err != nil:
			return fmt.Errorf("want %s (%d pages at most)", HugepagesForms, maxHugepages)
		case slices.ContainsFunc(list, func(h Hugepages) bool { return h.KiB == size }):
			return errors.New("given twice")
		case len(list) == maxHugepageSizes:
			return fmt.Errorf("want %d sizes at most", maxHugepageSizes)
		}
		list = append(list, Hugepages{KiB: size, Count: uint64(count)})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// pageUnits has the units of page sizes in KiB.
var pageUnits = []struct {
	unit string
	kib  uint64
}{{"G", 1 << 20}, {"M", 1 << 10}, {"K", 1}}

// maxPageSize is beyond every page, in KiB: 16 GiB is the largest there is.
const maxPageSize = 64 << 20

// readPageSize reads "2M", "1G" and "64K" in KiB. A page's size is a power of two.
func readPageSize(text string) (kib uint64, ok bool) {
	for _, unit := range pageUnits {
		digits, found := strings.CutSuffix(strings.ToUpper(text), unit.unit)
		if !found {
			continue
		}
		n, err := parseUnsigned(digits, uint32(maxPageSize/unit.kib))
		kib = uint64(n) * unit.kib
		return kib, err == nil && kib&(kib-1) == 0
	}
	return 0, false
}

// HugepagesString writes a value of --hugepages as the user could have given it.
func HugepagesString(list []Hugepages) string {
	items := make([]string, len(list))
	for i, h := range list {
		for _, unit := range pageUnits {
			if h.KiB%unit.kib == 0 {
				items[i] = strconv.FormatUint(h.KiB/unit.kib, 10) + unit.unit + ":" + strconv.FormatUint(h.Count, 10)
				break
			}
		}
	}
	return strings.Join(items, ",")
}
