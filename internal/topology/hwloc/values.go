package hwloc

import (
	"fmt"
	"strconv"
	"strings"

	"gputune/internal/idset"
	"gputune/internal/topology/xmltree"
)

// parseBitmap reads hwloc's form of a set: words of 32 bits, most significant
// first, with 0x before each; a word that is zero can be empty
// ("0x0000ffff,,0x1"). Sets without end ("0xf...f") are refused: nothing that is
// read here has one.
func parseBitmap(text string) (idset.Set, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return idset.Set{}, nil
	}
	words := strings.Split(text, ",")
	bits := make([]uint64, (len(words)+1)/2)
	for i, word := range words {
		if word == "" {
			continue
		}
		value, err := strconv.ParseUint(strings.TrimPrefix(word, "0x"), 16, 32)
		if err != nil {
			return idset.Set{}, fmt.Errorf("%q: %q: want words such as 0x0000ffff", clip(text), clip(word))
		}
		place := len(words) - 1 - i
		if value != 0 && place*32 >= idset.Limit {
			return idset.Set{}, fmt.Errorf("%q: want ids from 0 to %d", clip(text), idset.Limit-1)
		}
		bits[place/2] |= value << (place % 2 * 32)
	}
	return idset.FromWords(bits), nil
}

// number reads an attribute that is a number from 0 to most, or hwloc's -1 for
// "unknown", written as the largest unsigned one. -1 stands for all that is
// unknown, a missing attribute too.
func number(e *xmltree.Element, name string, most int64) (int64, error) {
	text, ok := e.Attribute(name)
	if !ok || text == "-1" || text == "4294967295" {
		return -1, nil
	}
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil || value < 0 || value > most {
		return 0, e.Errorf("%s %q: want a number from 0 to %d", name, clip(text), most)
	}
	return value, nil
}

func clip(text string) string {
	const longest = 80
	if len(text) <= longest {
		return text
	}
	return text[:longest] + "…"
}
