package option

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ClocksName is the name of the option that Clocks is the value of.
const ClocksName = "gpu-clocks"

// ClocksForms lists the accepted values, for messages.
const ClocksForms = "low|medium|high|highm1|MHZ|MIN-MAX, memory=…, or both with a comma between them"

// maxMHz is beyond every clock there is; it keeps nonsense out of messages.
const maxMHz = 100_000

// Clock is one clock that a user asks for: a word, or a range in MHz. The zero
// value is none.
type Clock struct {
	Word     string // low, medium, high or highm1, with the meaning of Slurm's --gpu-freq; "" a range
	Min, Max uint32 // MHz; the same for a single clock
}

// IsZero tells whether nothing is asked for.
func (c Clock) IsZero() bool { return c == Clock{} }

// String writes the clock as the user could have given it.
func (c Clock) String() string {
	switch {
	case c.Word != "":
		return c.Word
	case c.Min == c.Max:
		return strconv.FormatUint(uint64(c.Min), 10)
	default:
		return fmt.Sprintf("%d-%d", c.Min, c.Max)
	}
}

// Clocks is the value of --gpu-clocks: what to lock the clocks of a job's GPUs
// to. At least one of the two is set.
type Clocks struct {
	SM     Clock
	Memory Clock
}

// ParseClocks reads the value of --gpu-clocks. An error names the item and the
// accepted values.
func ParseClocks(value string) (Clocks, error) {
	var clocks Clocks
	err := parseItems(ClocksName, value, func(item string) error {
		text, memory := strings.CutPrefix(item, "memory=")
		target := &clocks.SM
		if memory {
			target = &clocks.Memory
		}
		if !target.IsZero() {
			return errors.New("given twice")
		}
		var err error
		*target, err = parseClock(text)
		return err
	})
	return clocks, err
}

func parseClock(text string) (Clock, error) {
	switch text {
	case "low", "medium", "high", "highm1":
		return Clock{Word: text}, nil
	}
	first, second, isRange := strings.Cut(text, "-")
	low, err := parseUnsigned(first, maxMHz)
	high := low
	if err == nil && isRange {
		high, err = parseUnsigned(second, maxMHz)
	}
	switch {
	case err != nil:
		return Clock{}, fmt.Errorf("want %s (clocks up to %d MHz)", ClocksForms, maxMHz)
	case low > high:
		return Clock{}, fmt.Errorf("the lower clock comes first: %d-%d", high, low)
	}
	return Clock{Min: low, Max: high}, nil
}

// parseUnsigned reads a number of digits alone, from 1 to most.
func parseUnsigned(text string, most uint32) (uint32, error) {
	if strings.TrimLeft(text, "0123456789") != "" { // ParseUint would take a sign
		return 0, strconv.ErrSyntax
	}
	number, err := strconv.ParseUint(text, 10, 32)
	if err == nil && (number == 0 || number > uint64(most)) {
		err = strconv.ErrRange
	}
	return uint32(number), err
}

// String writes the value as the user could have given it.
func (c Clocks) String() string {
	var items []string
	if !c.SM.IsZero() {
		items = append(items, c.SM.String())
	}
	if !c.Memory.IsZero() {
		items = append(items, "memory="+c.Memory.String())
	}
	return strings.Join(items, ",")
}
