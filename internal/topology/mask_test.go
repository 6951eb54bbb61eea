package topology_test

import (
	"strings"
	"testing"

	"gputune/internal/topology"
)

func TestParseMask(t *testing.T) {
	for _, test := range []struct{ mask, want string }{
		{"", ""},
		{"0", ""},
		{"3", "0-1"},
		{"ffff0000\n", "16-31"},
		{"1,00000000", "32"},
		{"ffff0000,00000000,00000000,00000000,ffff0000,00000000,00000000,00000000", "112-127,240-255"},
		{"0000,00000000,0000000c", "2-3"},
		{strings.Repeat("00000000,", 300) + "00000001", "0"},
		{"80000000" + strings.Repeat(",00000000", 255), "8191"},
	} {
		got, err := topology.ParseMask(test.mask)
		if err != nil || got.String() != test.want {
			t.Errorf("%q: %q, %v, want %q", test.mask, got, err, test.want)
		}
	}
	for _, mask := range []string{
		"x", "0x3", "-1", "1,", ",1", "1,,1", "100000000", "000000001", "1 2", "+1",
		"00000001" + strings.Repeat(",00000000", 256),
	} {
		if got, err := topology.ParseMask(mask); err == nil {
			t.Errorf("%q: %q, want an error", mask, got)
		}
	}
}
