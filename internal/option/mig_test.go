package option

import (
	"reflect"
	"strings"
	"testing"
)

func TestParseMIG(t *testing.T) {
	for value, want := range map[string][]MIGInstances{
		"1g.18gb":                      {{"1g.18gb", 1}},
		"1g.18gb:7":                    {{"1g.18gb", 7}},
		"1g.18gb+me":                   {{"1g.18gb+me", 1}},
		"1g.18gb+me:1+1g.18gb:6":       {{"1g.18gb+me", 1}, {"1g.18gb", 6}},
		"1g.18gb+1g.18gb+me":           {{"1g.18gb", 1}, {"1g.18gb+me", 1}},
		"3g.71gb+1g.18gb+me+1g.18gb:2": {{"3g.71gb", 1}, {"1g.18gb+me", 1}, {"1g.18gb", 2}},
		"1g.24gb+me.all+2g.48gb-me":    {{"1g.24gb+me.all", 1}, {"2g.48gb-me", 1}},
		"4g.96gb+gfx":                  {{"4g.96gb+gfx", 1}},
		"1g.5gb+1g.5gb:2+1g.5gb":       {{"1g.5gb", 1}, {"1g.5gb", 2}, {"1g.5gb", 1}},
		"99g.9999gb:16":                {{"99g.9999gb", 16}},
	} {
		if got, err := ParseMIG(value); err != nil || !reflect.DeepEqual(got.Instances, want) || got.String() != strings.ReplaceAll(value, ":1+", "+") {
			t.Errorf("%q: %+v, %v, written %q, want %+v", value, got, err, got, want)
		}
	}
	for value, want := range map[string]string{
		"":                       `--gpu-mig: "": want PROFILE[:N] with + between them`,
		"(null)":                 `"(null)": want PROFILE`,
		"+":                      `"+": want`,
		"+1g.18gb":               `"+1g.18gb": want`,
		"1g.18gb+":               `"1g.18gb+": want`,
		"1g.18gb++1g.18gb":       `"1g.18gb+": want`,
		"1g.18gb+me+me":          `"1g.18gb+me+me": want`,
		"1g.18gb+foo":            `"1g.18gb+foo": want`,
		"1g.18gb+ME":             `"1g.18gb+ME": want`,
		"1g.18gb,1g.18gb":        `"1g.18gb,1g.18gb": want`,
		"1g.18GB":                `"1g.18GB": want`,
		"1G.18gb":                `"1G.18gb": want`,
		"1g18gb":                 `"1g18gb": want`,
		"1g.gb":                  `"1g.gb": want`,
		"g.18gb":                 `"g.18gb": want`,
		"0g.18gb":                `"0g.18gb": want`,
		"01g.18gb":               `"01g.18gb": want`,
		"100g.18gb":              `"100g.18gb": want`,
		"1g.10000gb":             `"1g.10000gb": want`,
		"1g.-18gb":               `"1g.-18gb": want`,
		"1c.1g.18gb":             `"1c.1g.18gb": want`,
		"1g.18gb:":               `"1g.18gb:": want a number from 1 to 16 behind the colon`,
		"1g.18gb:0":              `"1g.18gb:0": want a number`,
		"1g.18gb:02":             `"1g.18gb:02": want a number`,
		"1g.18gb:17":             `"1g.18gb:17": want a number`,
		"1g.18gb:-1":             `"1g.18gb:-1": want a number`,
		"1g.18gb:2:2":            `"1g.18gb:2:2": want a number`,
		"1g.18gb:2+me":           `"1g.18gb:2+me": the number comes last: 1g.18gb+me:N`,
		"1g.18gb:9+2g.35gb:8":    `"2g.35gb:8": 17 instances: no GPU has more than 16`,
		"1g.18gb+\x1b[31m":       `"1g.18gb+\x1b[31m": want`,
		"1g.18gb+../../etc":      `"1g.18gb+../../etc": want`,
		"1g.18gb+$(reboot)":      `"1g.18gb+$(reboot)": want`,
		"1g.18gb\n":              `"1g.18gb\n": want`,
		strings.Repeat("1+", 99): `want`,
	} {
		if got, err := ParseMIG(value); err == nil || got.Instances != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v, want %q", value, got, err, want)
		}
	}
	if _, err := ParseMIG(strings.Repeat("1", MaxLength+1)); err == nil || err.Error() != "--gpu-mig: 1001 bytes long: at most 1000 are accepted" {
		t.Errorf("%v", err)
	}
}

// What is accepted is the same value when it is written out again, and made of
// nothing but the grammar's own signs.
func FuzzParseMIG(f *testing.F) {
	for _, value := range []string{
		"", "1g.18gb", "1g.18gb:7", "1g.18gb+me:1+3g.71gb", "1g.24gb+me.all", "2g.48gb-me", "4g.96gb+gfx+1g.5gb", "+", "1g.5gb:2+me", "$(x)", "\x00",
	} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		m, err := ParseMIG(value)
		if err != nil {
			if m.Instances != nil || strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' || r == 0x7f }) {
				t.Errorf("%q: %+v, %q", value, m, err)
			}
			return
		}
		if strings.Trim(value, "abefglmx.0123456789:+-") != "" || len(value) > MaxLength || len(m.Instances) > maxMIGInstances {
			t.Errorf("%q is accepted", value)
		}
		if again, err := ParseMIG(m.String()); err != nil || !reflect.DeepEqual(again, m) {
			t.Errorf("%q is %+v, written %q, which is %+v, %v", value, m, m, again, err)
		}
	})
}
