package nccl

import (
	"fmt"
	"strings"

	"gputune/internal/idset"
	"gputune/internal/topology"
)

// mask is an affinity attribute: CPUs as a set, and how it was written.
type mask struct {
	cpus   idset.Set
	digits int  // hexadecimal ones; 0: it is a list
	padded bool // begins with zeros, so that all masks of its machine have as many digits
}

// ParseMask reads the affinity of NCCL's files: the kernel's mask form, words
// of 32 bits with commas between, most significant first, each of up to eight
// digits ("3,ffff0000"); one long number; either with 0x before it, or before
// each word; or, since people write it, a list with ranges ("0-23,48-71").
func ParseMask(text string) (idset.Set, error) {
	m, err := parseMask(text)
	return m.cpus, err
}

func parseMask(text string) (mask, error) {
	text = strings.TrimSpace(text)
	if strings.Contains(text, "-") {
		cpus, err := topology.ParseList(text)
		return mask{cpus: cpus}, err
	}
	words := strings.Split(text, ",")
	for i, word := range words {
		word = strings.TrimSpace(word)
		word = strings.TrimPrefix(strings.TrimPrefix(word, "0x"), "0X")
		if word == "" {
			return mask{}, fmt.Errorf("affinity %q: an empty word", clip(text))
		}
		words[i] = word
	}
	if len(words) == 1 {
		words = split(words[0])
	}
	cpus, err := topology.ParseMask(strings.Join(words, ","))
	if err != nil {
		return mask{}, err
	}
	digits := len(strings.Join(words, ""))
	for _, word := range words[1:] {
		digits += 8 - len(word)
	}
	return mask{cpus: cpus, digits: digits, padded: words[0][0] == '0'}, nil
}

// split cuts a long number into words of eight digits.
func split(number string) []string {
	var words []string
	for len(number) > 8 {
		first := (len(number)-1)%8 + 1
		words = append(words, number[:first])
		number = number[first:]
	}
	return append(words, number)
}

func clip(text string) string {
	const longest = 80
	if len(text) <= longest {
		return text
	}
	return text[:longest] + "…"
}
