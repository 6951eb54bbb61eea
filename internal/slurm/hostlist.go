package slurm

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// ExpandLimit is the largest number of names that Expand returns. It is Slurm's
// own limit for one range (MAX_RANGE of src/common/hostlist.c).
const ExpandLimit = 65536

// ErrTooManyNames is in the error of Expand for an expression of more than
// ExpandLimit names.
var ErrTooManyNames = fmt.Errorf("more than %d names", ExpandLimit)

// HostlistError is a hostlist expression that cannot be read.
type HostlistError struct {
	Expression string // as given
	Piece      string // what is wrong in it, "" if it is the whole
	Err        error  // why
}

func (e *HostlistError) Error() string {
	if e.Piece == "" || e.Piece == e.Expression {
		return fmt.Sprintf("hostlist %q: %v", e.Expression, e.Err)
	}
	return fmt.Sprintf("hostlist %q: %q: %v", e.Expression, e.Piece, e.Err)
}

// Unwrap returns Err.
func (e *HostlistError) Unwrap() error { return e.Err }

// Expand returns the names that a hostlist expression stands for, in order and
// with repetitions: "gpu[01-02,4]-ib[0-1],login" gives gpu01-ib0, gpu01-ib1,
// gpu02-ib0, gpu02-ib1, gpu4-ib0, gpu4-ib1, login. A number is padded with
// zeros to the width of the first number of its range. Blanks around names
// and empty names are left out. Device files are written the same way,
// "/dev/nvidia[0-3]".
//
// An error is a *HostlistError. Text after the last bracket, "n[1-2]-ib", is
// accepted although Slurm up to 26.05 refuses it.
func Expand(expression string) ([]string, error) {
	patterns, err := parseHostlist(expression)
	if err != nil {
		return nil, err
	}
	total := uint64(0)
	for _, p := range patterns {
		if total += p.count(); total > ExpandLimit {
			return nil, &HostlistError{Expression: expression, Err: ErrTooManyNames}
		}
	}
	names := make([]string, 0, total)
	for _, p := range patterns {
		names = append(names, p.expand()...)
	}
	return names, nil
}

// MatchHost tells whether a hostlist expression contains name. It expands
// nothing, so the size of the expression's ranges does not matter. Case counts,
// and so does the width of numbers: n1 is not in n[01-03].
func MatchHost(expression, name string) (bool, error) {
	patterns, err := parseHostlist(expression)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(patterns, func(p pattern) bool { return p.matches(name) }), nil
}

// pattern is one item of a hostlist expression: literal text and brackets.
type pattern []part

// part is literal text, or a bracket where spans is not nil.
type part struct {
	literal string
	spans   []span
}

// span is one range of numbers in a bracket, first to last.
type span struct {
	first, last uint64
	width       int // digits of the first number as written
}

func parseHostlist(expression string) ([]pattern, error) {
	var patterns []pattern
	items, err := splitOutsideBrackets(expression)
	if err != nil {
		return nil, err
	}
	for _, item := range items {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		p, err := parsePattern(expression, item)
		if err != nil {
			return nil, err
		}
		patterns = append(patterns, p)
	}
	return patterns, nil
}

func splitOutsideBrackets(expression string) ([]string, error) {
	var items []string
	start, inside := 0, false
	for i := range len(expression) {
		switch c := expression[i]; {
		case c == '[' && inside:
			return nil, &HostlistError{expression, expression[start : i+1], errors.New("a bracket inside a bracket")}
		case c == '[':
			inside = true
		case c == ']' && !inside:
			return nil, &HostlistError{expression, expression[start : i+1], errors.New("']' without '['")}
		case c == ']':
			inside = false
		case c == ',' && !inside:
			items = append(items, expression[start:i])
			start = i + 1
		}
	}
	if inside {
		return nil, &HostlistError{expression, expression[start:], errors.New("'[' without ']'")}
	}
	return append(items, expression[start:]), nil
}

func parsePattern(expression, item string) (pattern, error) {
	var p pattern
	for item != "" {
		literal, rest, bracket := strings.Cut(item, "[")
		if literal != "" {
			p = append(p, part{literal: literal})
		}
		if !bracket {
			break
		}
		inside, after, _ := strings.Cut(rest, "]")
		var spans []span
		for text := range strings.SplitSeq(inside, ",") {
			s, err := parseSpan(text)
			if err != nil {
				return nil, &HostlistError{expression, text, err}
			}
			spans = append(spans, s)
		}
		p = append(p, part{spans: spans})
		item = after
	}
	return p, nil
}

func parseSpan(text string) (span, error) {
	low, high, isRange := strings.Cut(text, "-")
	first, err := parseNumber(low)
	if err != nil {
		return span{}, err
	}
	last := first
	if isRange {
		if last, err = parseNumber(high); err != nil {
			return span{}, err
		}
	}
	if last < first {
		return span{}, errors.New("range runs backwards")
	}
	return span{first: first, last: last, width: len(low)}, nil
}

// maxDigits keeps numbers, and sums of a few of them, inside 64 bits.
const maxDigits = 18

func parseNumber(text string) (uint64, error) {
	// ParseUint takes no sign and no blanks.
	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil || len(text) > maxDigits {
		return 0, fmt.Errorf("want numbers of up to %d digits and ranges such as 01-12", maxDigits)
	}
	return number, nil
}

// count returns the number of names, or something above ExpandLimit.
func (p pattern) count() uint64 {
	total := uint64(1)
	for _, part := range p {
		if part.spans == nil {
			continue
		}
		choices := uint64(0)
		for _, s := range part.spans {
			if choices += s.last - s.first + 1; choices > ExpandLimit {
				return math.MaxUint32
			}
		}
		if total *= choices; total > ExpandLimit {
			return math.MaxUint32
		}
	}
	return total
}

func (p pattern) expand() []string {
	names := []string{""}
	for _, part := range p {
		if part.spans == nil {
			for i := range names {
				names[i] += part.literal
			}
			continue
		}
		var longer []string
		for _, name := range names {
			for _, s := range part.spans {
				for number := s.first; number <= s.last; number++ {
					longer = append(longer, name+s.format(number))
				}
			}
		}
		names = longer
	}
	return names
}

func (s span) format(number uint64) string {
	digits := strconv.FormatUint(number, 10)
	return strings.Repeat("0", max(0, s.width-len(digits))) + digits
}

// contains tells whether digits is how one of the span's numbers is written.
func (s span) contains(digits string) bool {
	number, err := parseNumber(digits)
	return err == nil && s.first <= number && number <= s.last && s.format(number) == digits
}

// matches follows all ways to read name at once: at[i] says that name[:i] is
// used up by the parts so far. That keeps it polynomial for any expression.
func (p pattern) matches(name string) bool {
	at := make([]bool, len(name)+1)
	at[0] = true
	for _, part := range p {
		next := make([]bool, len(name)+1)
		for i, reached := range at {
			if !reached {
				continue
			}
			if part.spans == nil {
				if strings.HasPrefix(name[i:], part.literal) {
					next[i+len(part.literal)] = true
				}
				continue
			}
			for end := i + 1; end <= len(name) && end-i <= maxDigits && isDigit(name[end-1]); end++ {
				if slices.ContainsFunc(part.spans, func(s span) bool { return s.contains(name[i:end]) }) {
					next[end] = true
				}
			}
		}
		at = next
	}
	return at[len(name)]
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
