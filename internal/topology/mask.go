package topology

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"gputune/internal/idset"
)

// ParseMask reads the kernel's mask form of a set, hexadecimal words of 32
// bits with the most significant first ("3,ffff0000"), as the *_cpus, *_map
// and *_siblings files of sysfs print it. Bits from idset.Limit on are refused.
func ParseMask(text string) (idset.Set, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return idset.Set{}, nil
	}
	words := strings.Split(text, ",")
	bits := make([]uint64, (len(words)+1)/2)
	for i, word := range words {
		value, err := strconv.ParseUint(word, 16, 32)
		if err != nil || len(word) > 8 {
			return idset.Set{}, fmt.Errorf("mask %q: %q: want up to 8 hexadecimal digits between commas", clip(text), clip(word))
		}
		place := len(words) - 1 - i
		bits[place/2] |= value << (place % 2 * 32)
		if value != 0 && place*32 >= idset.Limit {
			return idset.Set{}, fmt.Errorf("mask %q: %w", clip(text), errMaskTooWide)
		}
	}
	return idset.FromWords(bits), nil
}

var errMaskTooWide = errors.New("want ids from 0 to " + strconv.Itoa(idset.Limit-1))
