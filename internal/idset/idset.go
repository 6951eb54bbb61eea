// Package idset holds sets of small non-negative ids (CPUs, NUMA nodes, GPU
// ordinals) and the kernel's list form of them, "0-3,8,10-11", described in
// the kernel's Documentation/admin-guide/cputopology.rst.
package idset

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math/bits"
	"strconv"
	"strings"
)

// Limit is one more than the largest id a Set takes. The kernel's largest
// NR_CPUS is 8192 and its largest MAX_NUMNODES 1024.
const Limit = 8192

const wordBits = 64

// Set is a set of ids. The zero value is the empty set. All methods but Add
// and Remove leave their receiver and arguments unchanged and return new sets,
// so a Set can be shared as long as nobody calls those two on it.
type Set struct {
	words []uint64 // no trailing zero word, so that equal sets have equal words
}

// Of returns the set of the given ids. It panics on an id outside [0, Limit):
// ids that come from outside go through Parse.
func Of(ids ...int) Set {
	var s Set
	for _, id := range ids {
		s.Add(id)
	}
	return s
}

// Range returns the set {first, …, last}; it is empty if last < first.
func Range(first, last int) Set {
	var s Set
	if first <= last {
		s.addRange(first, last)
	}
	return s
}

// Parse reads the kernel's list form. The empty string, blanks and a newline
// around the list are accepted; anything else than ids and ascending ranges
// below Limit is an error that names the piece.
func Parse(list string) (Set, error) {
	var s Set
	list = strings.TrimSpace(list)
	if list == "" {
		return s, nil
	}
	for piece := range strings.SplitSeq(list, ",") {
		piece = strings.TrimSpace(piece)
		low, high, isRange := strings.Cut(piece, "-")
		first, err := parseID(low)
		if err != nil {
			return Set{}, fmt.Errorf("list %q: %q: %w", list, piece, err)
		}
		last := first
		if isRange {
			if last, err = parseID(high); err != nil {
				return Set{}, fmt.Errorf("list %q: %q: %w", list, piece, err)
			}
		}
		if last < first {
			return Set{}, fmt.Errorf("list %q: %q: range runs backwards", list, piece)
		}
		s.addRange(first, last)
	}
	return s, nil
}

func parseID(text string) (int, error) {
	// ParseUint accepts no sign and no blanks; 16 bits bound the value.
	id, err := strconv.ParseUint(text, 10, 16)
	if err != nil || id >= Limit {
		return 0, fmt.Errorf("want ids from 0 to %d and ranges such as 0-3", Limit-1)
	}
	return int(id), nil
}

// MustParse is Parse for lists written in source code; it panics on an error.
func MustParse(list string) Set {
	s, err := Parse(list)
	if err != nil {
		panic(err)
	}
	return s
}

// String returns the kernel's list form, "" for the empty set.
func (s Set) String() string {
	var b strings.Builder
	for first, last := range s.ranges() {
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(first))
		if last > first {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(last))
		}
	}
	return b.String()
}

func (s Set) ranges() iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		first, last := -1, -1
		for id := range s.All() {
			if first >= 0 && id == last+1 {
				last = id
				continue
			}
			if first >= 0 && !yield(first, last) {
				return
			}
			first, last = id, id
		}
		if first >= 0 {
			yield(first, last)
		}
	}
}

// MarshalText writes the list form.
func (s Set) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the list form.
func (s *Set) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err != nil {
		return err
	}
	*s = parsed
	return nil
}

// Add puts id into the set. It panics on an id outside [0, Limit).
func (s *Set) Add(id int) {
	if id < 0 || id >= Limit {
		panic(fmt.Sprintf("idset: id %d: want 0 to %d", id, Limit-1))
	}
	for len(s.words) <= id/wordBits {
		s.words = append(s.words, 0)
	}
	s.words[id/wordBits] |= 1 << (id % wordBits)
}

// addRange adds first to last, word by word: a file can be full of lists of all
// ids.
func (s *Set) addRange(first, last int) {
	s.Add(first)
	s.Add(last)
	for word := first / wordBits; word <= last/wordBits; word++ {
		mask := ^uint64(0)
		if word == first/wordBits {
			mask &= ^uint64(0) << (first % wordBits)
		}
		if word == last/wordBits {
			mask &= ^uint64(0) >> (wordBits - 1 - last%wordBits)
		}
		s.words[word] |= mask
	}
}

// Remove takes id out of the set.
func (s *Set) Remove(id int) {
	if s.Has(id) {
		s.words[id/wordBits] &^= 1 << (id % wordBits)
		s.trim()
	}
}

func (s *Set) trim() {
	for len(s.words) > 0 && s.words[len(s.words)-1] == 0 {
		s.words = s.words[:len(s.words)-1]
	}
}

// Has tells whether id is in the set.
func (s Set) Has(id int) bool {
	return id >= 0 && id/wordBits < len(s.words) && s.words[id/wordBits]&(1<<(id%wordBits)) != 0
}

// Len returns the number of ids in the set.
func (s Set) Len() int {
	n := 0
	for _, word := range s.words {
		n += bits.OnesCount64(word)
	}
	return n
}

// Empty tells whether the set has no id.
func (s Set) Empty() bool { return len(s.words) == 0 }

// Equal tells whether both sets have the same ids.
func (s Set) Equal(other Set) bool {
	if len(s.words) != len(other.words) {
		return false
	}
	for i, word := range s.words {
		if word != other.words[i] {
			return false
		}
	}
	return true
}

// SubsetOf tells whether every id of s is in other.
func (s Set) SubsetOf(other Set) bool { return s.AndNot(other).Empty() }

// And returns the intersection.
func (s Set) And(other Set) Set {
	r := Set{words: make([]uint64, min(len(s.words), len(other.words)))}
	for i := range r.words {
		r.words[i] = s.words[i] & other.words[i]
	}
	r.trim()
	return r
}

// Or returns the union.
func (s Set) Or(other Set) Set {
	long, short := s.words, other.words
	if len(long) < len(short) {
		long, short = short, long
	}
	r := Set{words: append([]uint64(nil), long...)}
	for i, word := range short {
		r.words[i] |= word
	}
	return r
}

// AndNot returns the ids of s that are not in other.
func (s Set) AndNot(other Set) Set {
	r := Set{words: append([]uint64(nil), s.words...)}
	for i := range min(len(r.words), len(other.words)) {
		r.words[i] &^= other.words[i]
	}
	r.trim()
	return r
}

// Min returns the smallest id, -1 for the empty set.
func (s Set) Min() int {
	for i, word := range s.words {
		if word != 0 {
			return i*wordBits + bits.TrailingZeros64(word)
		}
	}
	return -1
}

// Max returns the largest id, -1 for the empty set.
func (s Set) Max() int {
	if s.Empty() {
		return -1
	}
	last := len(s.words) - 1
	return last*wordBits + bits.Len64(s.words[last]) - 1
}

// All ranges over the ids in ascending order.
func (s Set) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i, word := range s.words {
			for ; word != 0; word &= word - 1 {
				if !yield(i*wordBits + bits.TrailingZeros64(word)) {
					return
				}
			}
		}
	}
}

// Words returns the set as a bit mask, least significant word first, the form
// that sched_setaffinity(2) and set_mempolicy(2) take on 64-bit machines.
func (s Set) Words() []uint64 { return append([]uint64(nil), s.words...) }

// FromWords returns the set that a bit mask in the form of Words describes.
// Bits from Limit on are left out.
func FromWords(words []uint64) Set {
	s := Set{words: append([]uint64(nil), words[:min(len(words), Limit/wordBits)]...)}
	s.trim()
	return s
}

// FromBytes returns the set that a little-endian bit mask describes, the form
// that sched_getaffinity(2) fills.
func FromBytes(mask []byte) Set {
	padded := make([]byte, (len(mask)+7)/8*8)
	copy(padded, mask)
	words := make([]uint64, len(padded)/8)
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(padded[i*8:])
	}
	return FromWords(words)
}
