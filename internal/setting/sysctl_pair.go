package setting

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// The forms of a pair's value.
const (
	pairRatio = "ratio"
	pairBytes = "bytes"
)

// isPair tells whether a name stands for two sysctls, NAME_ratio and NAME_bytes.
func isPair(name string) bool {
	return slices.Contains([]string{"vm.dirty", "vm.dirty_background"}, name)
}

// pairOf returns the pair that a sysctl is one of, and which; "" if none.
func pairOf(name string) (pair, form string) {
	for _, form := range []string{pairRatio, pairBytes} {
		if pair, found := strings.CutSuffix(name, "_"+form); found && isPair(pair) {
			return pair, form
		}
	}
	return "", ""
}

// sysctlPair is how much written memory may wait for the disk, as a percentage
// of what is available or in bytes.
//
// Documentation/admin-guide/sysctl/vm.rst: of dirty_ratio and dirty_bytes only
// one counts; writing one makes the other read 0. As two settings the one that
// is put back last would undo the other, so they are one: ratio=20, or
// bytes=1073741824.
type sysctlPair struct{ kernelFile }

// Traits implements Setting. The way from bytes to a ratio of 0 has two steps.
func (sysctlPair) Traits() Traits {
	return Traits{Needs: WholeNode, Lifetime: UntilReboot, Loose: true}
}

// Check implements Setting.
func (s sysctlPair) Check(ctx context.Context, value string) (string, error) {
	if _, err := s.Read(ctx); err != nil {
		return "", err
	}
	fail := &ValueError{Of: s.of, Value: shown(value), Accepts: "want ratio=0 to ratio=100, or bytes= and two pages or more"}
	form, number, err := parsePairValue(value)
	if err != nil || form == pairRatio && number > 100 || form == pairBytes && number < 2*uint64(os.Getpagesize()) {
		return "", fail
	}
	return fmt.Sprintf("%s=%d", form, number), nil
}

func parsePairValue(value string) (form string, number uint64, err error) {
	form, digits, _ := strings.Cut(value, "=")
	if form != pairRatio && form != pairBytes || strings.TrimLeft(digits, "0123456789") != "" {
		return "", 0, strconv.ErrSyntax
	}
	number, err = strconv.ParseUint(digits, 10, 63)
	return form, number, err
}

// Read implements Setting.
func (s sysctlPair) Read(context.Context) (string, error) {
	number, err := s.readFile(s.path + "_" + pairBytes)
	if err != nil || number != "0" {
		return pairBytes + "=" + number, err
	}
	number, err = s.readFile(s.path + "_" + pairRatio)
	return pairRatio + "=" + number, err
}

// Write implements Setting.
func (s sysctlPair) Write(ctx context.Context, value string) error {
	form, number, err := parsePairValue(value)
	if err != nil {
		return fmt.Errorf("%s: value %q: %w", s.key, value, err)
	}
	if form == pairRatio && number == 0 {
		// The kernel resets the bytes only when the ratio changes.
		if err := s.writeFile(s.path+"_"+pairRatio, "1"); err != nil {
			return err
		}
	}
	if err := s.writeFile(s.path+"_"+form, strconv.FormatUint(number, 10)); err != nil {
		return err
	}
	return readBack(ctx, s, s.of, value)
}
