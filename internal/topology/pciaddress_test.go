package topology_test

import (
	"slices"
	"testing"

	"gputune/internal/topology"
)

func TestNormalizePCI(t *testing.T) {
	for _, test := range []struct{ address, want string }{
		{"0000:47:00.0", "0000:47:00.0"},
		{"00000000:47:00.0", "0000:47:00.0"}, // NVML, nvidia-smi
		{"00000000:BD:00.0", "0000:bd:00.0"},
		{"47:00.0", "0000:47:00.0"}, // lspci
		{"0:7:0.0", "0000:07:00.0"},
		{"10000:e1:00.0", "10000:e1:00.0"},
		{"00010000:E1:00.0", "10000:e1:00.0"},
		{"ffffffff:ff:1f.7", "ffffffff:ff:1f.7"},
		{"0019:01:00.0", "0019:01:00.0"},

		{"", ""},
		{"GPU-4b0480b4", ""},
		{"0000:47:00", ""},
		{"0000:47:00.8", ""},
		{"0000:47:20.0", ""},
		{"0000:147:00.0", ""},
		{"100000000:47:00.0", ""},
		{"0000:47:00.0.0", ""},
		{"0000:0000:47:00.0", ""},
		{"-1:47:00.0", ""},
		{"+0:47:00.0", ""},
		{"0x0:47:00.0", ""},
		{"0000:4 :00.0", ""},
		{"0000:47:00.0\n", ""},
		{"../../etc:47:00.0", ""},
		{"pci0000:40", ""},
	} {
		got, err := topology.NormalizePCI(test.address)
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%q: %q, %v, want %q", test.address, got, err, test.want)
		}
	}
}

func TestComparePCI(t *testing.T) {
	want := []string{"0000:07:00.0", "0000:07:00.1", "0000:47:00.0", "0001:01:00.0", "ffff:00:00.0", "10000:00:00.0", "10000:01:00.0"}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, topology.ComparePCI)
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
