package option

import (
	"strings"
	"testing"
)

func TestParseMPS(t *testing.T) {
	const gib = 1 << 30
	for value, want := range map[string]MPS{
		"":             {},
		"(null)":       {},
		"1":            {Percent: 1},
		"100":          {Percent: 100},
		"auto":         {Auto: true},
		"off":          {Off: true},
		"mem=4G":       {PinnedMemory: 4 * gib},
		"mem=4096m":    {PinnedMemory: 4 * gib},
		"50,mem=1536M": {Percent: 50, PinnedMemory: 3 * gib / 2},
		"mem=1T,auto":  {Auto: true, PinnedMemory: 1024 * gib},
		"mem=1024T":    {PinnedMemory: 1 << 50},
	} {
		if got, err := ParseMPS(value); err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", value, got, err, want)
		}
	}
	for value, want := range map[string]string{
		"0":               `--gpu-mps: "0": want PERCENT|auto|off, mem=SIZE`,
		"101":             "(percentages from 1 to 100)",
		"50%":             `"50%": want`,
		"-1":              `"-1": want`,
		"+1":              `"+1": want`,
		"1.5":             `"1.5": want`,
		"on":              `"on": want`,
		"AUTO":            `"AUTO": want`,
		"50,60":           `"60": given twice`,
		"auto,off":        `"off": given twice`,
		"50,":             `"": given twice`,
		",":               `"": want`,
		"mem=":            `"mem=": want mem=SIZE, such as mem=4G`,
		"mem=4":           `"mem=4": want mem=SIZE`,
		"mem=0G":          `"mem=0G": want mem=SIZE`,
		"mem=4K":          `"mem=4K": want mem=SIZE`,
		"mem=1025T":       "1024T at most",
		"mem=99999999T":   "1024T at most",
		"mem=1G,mem=2G":   `"mem=2G": given twice`,
		"off,mem=1G":      `"off,mem=1G": off has no mem=`,
		"a\x00\n\u202e":   `"a\x00\n\u202e": want`,
		"mem=\x1b[31m1G":  `"mem=\x1b[31m1G": want mem=SIZE`,
		"Memory=1G":       `"Memory=1G": want`,
		"mem=1G,mem=1G,1": `"mem=1G": given twice`,
	} {
		if got, err := ParseMPS(value); err == nil || got != (MPS{}) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v, want %q", value, got, err, want)
		}
	}
	if _, err := ParseMPS(strings.Repeat("1", MaxLength+1)); err == nil || err.Error() != "--gpu-mps: 1001 bytes long: at most 1000 are accepted" {
		t.Errorf("%v", err)
	}
}

// What is accepted is the same value when it is written out again, and made of
// nothing but letters, digits and the grammar's own signs.
func FuzzParseMPS(f *testing.F) {
	for _, value := range []string{"", "(null)", "50", "auto,mem=4G", "off", "mem=1536M,7", "mem=1T", "100,mem=", "$(x)", "\x00"} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		mps, err := ParseMPS(value)
		if err != nil {
			if mps != (MPS{}) || strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' || r == 0x7f }) {
				t.Errorf("%q: %+v, %q", value, mps, err)
			}
			return
		}
		if value != "(null)" && strings.Trim(value, "abcdefghijklmnopqrstuvwxyzGMT0123456789,=") != "" {
			t.Errorf("%q is accepted", value)
		}
		if again, err := ParseMPS(mps.String()); err != nil || again != mps {
			t.Errorf("%q is %+v, written %q, which is %+v, %v", value, mps, mps, again, err)
		}
	})
}
