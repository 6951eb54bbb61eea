package setting

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Unlocked is the value of a clock setting that holds nothing.
const Unlocked = "unlocked"

// Clocks are the values that a clock can have, in MHz.
type Clocks struct {
	Low, High uint32
	// Steps are the possible values in ascending order, nil where the driver
	// tells the range alone.
	Steps []uint32
}

// NewClocks returns the clocks with these values, in any order.
func NewClocks(steps []uint32) Clocks {
	if len(steps) == 0 {
		return Clocks{}
	}
	sorted := slices.Compact(slices.Sorted(slices.Values(steps)))
	return Clocks{Low: sorted[0], High: sorted[len(sorted)-1], Steps: sorted}
}

// Between returns those of the clocks that are at least low and at most high, in
// MHz; a high of 0 is no bound. None is the zero value.
func (c Clocks) Between(low, high uint32) Clocks {
	if high == 0 {
		high = c.High
	}
	if c.Steps != nil {
		return NewClocks(slices.DeleteFunc(slices.Clone(c.Steps), func(mhz uint32) bool { return mhz < low || mhz > high }))
	}
	low, high = max(low, c.Low), min(high, c.High)
	if low > high {
		return Clocks{}
	}
	return Clocks{Low: low, High: high}
}

// String returns the range for people: "345–1980 MHz", or all values where
// they are few.
func (c Clocks) String() string {
	const few = 4
	switch {
	case c.Low == c.High:
		return fmt.Sprintf("%d MHz", c.Low)
	case len(c.Steps) > 0 && len(c.Steps) <= few:
		texts := make([]string, len(c.Steps))
		for i, step := range c.Steps {
			texts[i] = strconv.FormatUint(uint64(step), 10)
		}
		return strings.Join(texts, ", ") + " MHz"
	default:
		return fmt.Sprintf("%d–%d MHz", c.Low, c.High)
	}
}

// Nearest returns the possible value nearest to mhz, the lower of two that are
// equally near.
func (c Clocks) Nearest(mhz uint32) uint32 {
	mhz = min(max(mhz, c.Low), c.High)
	above, found := slices.BinarySearch(c.Steps, mhz)
	if found || above == 0 || above == len(c.Steps) {
		return mhz
	}
	if low, high := c.Steps[above-1], c.Steps[above]; mhz-low > high-mhz {
		return high
	}
	return c.Steps[above-1]
}

// Named returns the clock that one of the words of Slurm's --gpu-freq stands
// for: low, medium, high, and highm1, which is the second highest. Source:
// srun(1); the words' places in the list are those of Slurm's
// src/interfaces/gpu.c.
func (c Clocks) Named(word string) (mhz uint32, ok bool) {
	last := len(c.Steps) - 1
	switch {
	case word == "low":
		return c.Low, c.Low > 0
	case word == "high":
		return c.High, c.High > 0
	case word == "medium" && last >= 0:
		return c.Steps[last-last/2], true
	case word == "highm1" && last >= 0:
		return c.Steps[max(last-1, 0)], true
	default:
		return 0, false
	}
}

// lock turns "1200", "1200-1500" or "unlocked" into a canonical value. A value
// between two possible ones becomes the nearest, which the result shows; one
// outside of the range is refused.
func (c Clocks) lock(of, what, value string) (string, error) {
	if value == Unlocked {
		return value, nil
	}
	fail := &ValueError{
		Of: of, Value: what + " " + shown(strings.TrimSuffix(value, "MHz")),
		Accepts: "supported MHZ, MIN-MAX or " + Unlocked,
	}
	low, high, err := parseLock(value)
	if err != nil {
		return "", fail
	}
	if low == high {
		fail.Value = fmt.Sprintf("%s %d MHz", what, low)
	} else {
		fail.Value = fmt.Sprintf("%s %d–%d MHz", what, low, high)
	}
	if low > high {
		fail.Accepts = "the lower one comes first"
		fail.Nearest = lockValue(c.Nearest(high), c.Nearest(low))
		return "", fail
	}
	nearest := lockValue(c.Nearest(low), c.Nearest(high))
	if low < c.Low || high > c.High {
		fail.Accepts = "supported " + c.String()
		fail.Nearest = nearest
		return "", fail
	}
	return nearest, nil
}

// parseLock reads "1200" or "1200-1500".
func parseLock(value string) (low, high uint32, err error) {
	first, second, isRange := strings.Cut(value, "-")
	if low, err = parseNumber(first); err != nil {
		return 0, 0, err
	}
	if !isRange {
		return low, low, nil
	}
	high, err = parseNumber(second)
	return low, high, err
}

func parseNumber(text string) (uint32, error) {
	if text == "" || text[0] < '0' || text[0] > '9' { // ParseUint would take a sign
		return 0, strconv.ErrSyntax
	}
	mhz, err := strconv.ParseUint(text, 10, 32)
	return uint32(mhz), err
}

func lockValue(low, high uint32) string { return fmt.Sprintf("%d-%d", low, high) }
