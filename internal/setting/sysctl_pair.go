package setting

import (
	"context"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
)

// pairRatio is the form of a pair's value that is a percentage; the other one is an
// amount, in the unit that the sysctl's name ends with.
const pairRatio = "ratio"

// pair is what the kernel's documentation says of two sysctls, NAME_ratio and
// NAME_AMOUNT.
type pair struct {
	amount   string
	least    uint64 // amount that the kernel takes
	leastIs  string // the same for people
	maxRatio uint64
	// lazy says that the kernel resets the amount only where the ratio changes.
	lazy bool
}

var pairs = map[string]pair{
	"vm.dirty":            {amount: "bytes", least: 2 * uint64(os.Getpagesize()), leastIs: "two pages", maxRatio: 100, lazy: true},
	"vm.dirty_background": {amount: "bytes", least: 1, leastIs: "1", maxRatio: 100},
	"vm.overcommit":       {amount: "kbytes", least: 1, leastIs: "1", maxRatio: math.MaxInt32},
}

// pairOf returns the pair that a sysctl is one of, and which; "" if none.
func pairOf(name string) (of, form string) {
	for of, p := range pairs {
		if form, found := strings.CutPrefix(name, of+"_"); found && (form == pairRatio || form == p.amount) {
			return of, form
		}
	}
	return "", ""
}

// sysctlPair is an amount of memory, as a percentage of what there is or in bytes:
// how much written memory may wait for the disk, how much may be promised.
//
// Documentation/admin-guide/sysctl/vm.rst: of dirty_ratio and dirty_bytes only
// one counts; writing one makes the other read 0. As two settings the one that
// is put back last would undo the other, so they are one: ratio=20, or
// bytes=1073741824. The same of overcommit_ratio and overcommit_kbytes, whatever is
// written to either (mm/util.c).
type sysctlPair struct {
	kernelFile
	pair
}

// Traits implements Setting. The way from bytes to a ratio of 0 has two steps.
func (sysctlPair) Traits() Traits {
	return Traits{Needs: WholeNode, Lifetime: UntilReboot, Loose: true}
}

// Check implements Setting.
func (s sysctlPair) Check(ctx context.Context, value string) (string, error) {
	if _, err := s.Read(ctx); err != nil {
		return "", err
	}
	form, number, err := s.parse(value)
	if err != nil || form == pairRatio && number > s.maxRatio || form == s.amount && number < s.least {
		return "", &ValueError{Of: s.of, Value: shown(value), Accepts: fmt.Sprintf("want ratio=0 to ratio=%d, or %s= and %s or more", s.maxRatio, s.amount, s.leastIs)}
	}
	return fmt.Sprintf("%s=%d", form, number), nil
}

func (s sysctlPair) parse(value string) (form string, number uint64, err error) {
	form, digits, _ := strings.Cut(value, "=")
	if form != pairRatio && form != s.amount || strings.TrimLeft(digits, "0123456789") != "" {
		return "", 0, strconv.ErrSyntax
	}
	number, err = strconv.ParseUint(digits, 10, 63)
	return form, number, err
}

// Read implements Setting.
func (s sysctlPair) Read(context.Context) (string, error) {
	number, err := s.readFile(s.path + "_" + s.amount)
	if err != nil || number != "0" {
		return s.amount + "=" + number, err
	}
	number, err = s.readFile(s.path + "_" + pairRatio)
	return pairRatio + "=" + number, err
}

// Write implements Setting.
func (s sysctlPair) Write(ctx context.Context, value string) error {
	form, number, err := s.parse(value)
	if err != nil {
		return fmt.Errorf("%s: value %q: %w", s.key, value, err)
	}
	if form == pairRatio && number == 0 && s.lazy {
		if err := s.writeFile(s.path+"_"+pairRatio, "1"); err != nil {
			return err
		}
	}
	if err := s.writeFile(s.path+"_"+form, strconv.FormatUint(number, 10)); err != nil {
		return err
	}
	return readBack(ctx, s, s.of, value)
}
