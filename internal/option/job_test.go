package option

import (
	"strings"
	"testing"
)

func TestJobOptions(t *testing.T) {
	want := map[string]string{
		"gpu-clocks": "SPANK_GPUTUNE_GPU_CLOCKS", "gpu-power": "SPANK_GPUTUNE_GPU_POWER",
		"gpu-compute-mode": "SPANK_GPUTUNE_GPU_COMPUTE_MODE", "gpu-mps": "SPANK_GPUTUNE_GPU_MPS", "gpu-memlock": "SPANK_GPUTUNE_GPU_MEMLOCK", "gpu-mig": "SPANK_GPUTUNE_GPU_MIG",
		"node-profile": "SPANK_GPUTUNE_NODE_PROFILE", "thp": "SPANK_GPUTUNE_THP", "hugepages": "SPANK_GPUTUNE_HUGEPAGES",
		"drop-caches": "SPANK_GPUTUNE_DROP_CACHES",
	}
	for _, o := range JobOptions() {
		name, ours := JobOptionName(o.Variable())
		if want[o.Name] != o.Variable() || name != o.Name || !ours || o.Forms == "" {
			t.Errorf("%+v has the variable %s", o, o.Variable())
		}
		delete(want, o.Name)
	}
	if _, ours := JobOptionName("SPANK__SLURM_SPANK_OPTION_gputune_gpu_power"); ours {
		t.Error("Slurm's own variable counts as gputune's")
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}

func TestParseClocks(t *testing.T) {
	for value, want := range map[string]Clocks{
		"1200":                   {SM: Clock{Min: 1200, Max: 1200}},
		"345-1980":               {SM: Clock{Min: 345, Max: 1980}},
		"high":                   {SM: Clock{Word: "high"}},
		"low,memory=highm1":      {SM: Clock{Word: "low"}, Memory: Clock{Word: "highm1"}},
		"memory=2201-3201":       {Memory: Clock{Min: 2201, Max: 3201}},
		"memory=medium,900-1200": {SM: Clock{Min: 900, Max: 1200}, Memory: Clock{Word: "medium"}},
	} {
		got, err := ParseClocks(value)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", value, got, err, want)
		}
	}
	for value, want := range map[string]string{
		"":                  `--gpu-clocks: "": want low|medium|high|highm1|MHZ|MIN-MAX`,
		"0":                 `--gpu-clocks: "0": want`,
		"1500-1200":         `--gpu-clocks: "1500-1200": the lower clock comes first: 1200-1500`,
		"100001":            "(clocks up to 100000 MHz)",
		"1200MHz":           `"1200MHz": want`,
		"memory=":           `"memory=": want`,
		"1200,900":          `"900": given twice`,
		"1200,memory=1,":    `"": given twice`,
		"mem=1":             `"mem=1": want`,
		"a\x00\n\u202e\xff": `"a\x00\n\u202e\xff": want`,
	} {
		if _, err := ParseClocks(value); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", value, err, want)
		}
	}
	long := strings.Repeat("9", MaxLength+1)
	if _, err := ParseClocks(long); err == nil || err.Error() != "--gpu-clocks: 1001 bytes long: at most 1000 are accepted" {
		t.Errorf("%v", err)
	}
}

func TestParsePower(t *testing.T) {
	for value, want := range map[string]Power{"500": {Watts: 500}, "max": {Word: "max"}, "default": {Word: "default"}} {
		if got, err := ParsePower(value); err != nil || got != want {
			t.Errorf("%q: %+v, %v", value, got, err)
		}
	}
	for _, value := range []string{"", "0", "500W", "500.5", "-1", "+1", "max,max", "MAX", "100001", " 500"} {
		if got, err := ParsePower(value); err == nil || !strings.HasPrefix(err.Error(), "--gpu-power: ") {
			t.Errorf("%q: %+v, %v", value, got, err)
		}
	}
}

func TestParseComputeMode(t *testing.T) {
	for _, want := range []ComputeMode{ComputeShared, ComputeExclusive, ComputeProhibited} {
		if got, err := ParseComputeMode(string(want)); err != nil || got != want {
			t.Errorf("%q: %q, %v", want, got, err)
		}
	}
	for _, value := range []string{"", "default", "exclusive-thread", "shared,shared", "Shared"} {
		if got, err := ParseComputeMode(value); err == nil || !strings.Contains(err.Error(), "shared|exclusive|prohibited") && !strings.Contains(err.Error(), "given twice") {
			t.Errorf("%q: %q, %v", value, got, err)
		}
	}
}

// What is accepted is the same value when it is written out again, and made of
// nothing but letters, digits and the grammar's own signs.
func FuzzJobOptions(f *testing.F) {
	for _, value := range []string{"1200", "345-1980,memory=high", "memory=low", "max", "default", "exclusive", "auto,mem=4G", "1g.18gb+me:1+3g.71gb", "2M:512,64K:8", "my_profile", "madvise", "slab", "", "(null)", "1-", "../", "$(x)", "\x00"} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		bare := value == "(null)" // as Slurm writes it
		plain := strings.Trim(value, "abcdefghijklmnopqrstuvwxyz0123456789,-=MGTK.:+_") == "" || bare
		for _, o := range JobOptions() {
			if err := o.Check(value); err == nil && (!plain || len(value) > MaxLength) {
				t.Errorf("--%s=%q is accepted", o.Name, value)
			} else if err != nil && strings.ContainsAny(err.Error(), "\n\r\x00\x1b") {
				t.Errorf("--%s=%q: %q", o.Name, value, err)
			}
		}
		if clocks, err := ParseClocks(value); err == nil {
			if again, err := ParseClocks(clocks.String()); err != nil || again != clocks {
				t.Errorf("%q is %+v, written %q, which is %+v, %v", value, clocks, clocks, again, err)
			}
		}
		if mps, err := ParseMPS(value); err == nil {
			if again, err := ParseMPS(mps.String()); err != nil || again != mps {
				t.Errorf("%q is %+v, written %q, which is %+v, %v", value, mps, mps, again, err)
			}
		}
		if power, err := ParsePower(value); err == nil {
			if again, err := ParsePower(power.String()); err != nil || again != power {
				t.Errorf("%q is %+v, written %q, which is %+v, %v", value, power, power, again, err)
			}
		}
	})
}
