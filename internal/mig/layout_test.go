package mig_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"gputune/internal/mig"
)

func TestParseLayout(t *testing.T) {
	for _, text := range []string{
		"off", "on", "off>on", "on>off", "on:1g.18gb@0:1", "on:1g.18gb+me@0:1,3g.71gb@4:4[]",
		"on:3g.71gb@0:4[1c.3g.71gb@0:1/2c.3g.71gb@1:2],3g.71gb@4:4", "on:1g.24gb+me.all@0:1,2g.48gb-me@2:2", "on>off:7g.141gb@0:8",
	} {
		if l, err := mig.ParseLayout(text); err != nil || l.String() != text {
			t.Errorf("%q: %q, %v", text, l, err)
		}
	}
	for text, want := range map[string]string{
		"":                                `MIG mode ""`,
		"ON":                              `MIG mode "ON"`,
		"on>on":                           `MIG mode "on>on"`,
		"on:":                             `"": want PROFILE@START:SIZE`,
		"on:1g.18gb":                      `"1g.18gb": want`,
		"on:1g.18gb@0":                    "want PROFILE@START:SIZE",
		"on:1g.18gb@00:1":                 "want PROFILE@START:SIZE",
		"on:1g.18gb@0:0":                  "want PROFILE@START:SIZE",
		"on:1g.18gb@60:8":                 "slices up to 68: at most 64",
		"on:../../x@0:1":                  "want PROFILE@START:SIZE",
		"on:3g.71gb@0:4[":                 "no ] at its end",
		"on:3g.71gb@0:4[/]":               "want PROFILE@START:SIZE",
		"on:3g.71gb@4:4,1g.18gb@0:1":      `want "on:1g.18gb@0:1,3g.71gb@4:4"`,
		"off:1g.18gb@0:1":                 "instances without MIG mode",
		"on:" + strings.Repeat("x", 5000): "5003 bytes: at most 4096",
	} {
		if l, err := mig.ParseLayout(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %q, %v, want %q", text, l, err, want)
		}
	}
}

func FuzzParseLayout(f *testing.F) {
	for _, text := range []string{"off", "on>off", "on:1g.18gb@0:1,3g.71gb@4:4[1c.3g.71gb@0:1/2c.3g.71gb@1:2]", "on:3g.71gb@0:4[]", ":", "on:@:"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := mig.ParseLayout(text)
		if err == nil && l.String() != text {
			t.Errorf("%q is read as %q", text, l)
		}
	})
}

func TestPlace(t *testing.T) {
	for want, fits := range map[string]string{
		"1g.18gb:7":               "1g.18gb@0:1 1g.18gb@1:1 1g.18gb@2:1 1g.18gb@3:1 1g.18gb@4:1 1g.18gb@5:1 1g.18gb@6:1",
		"3g.71gb:2":               "3g.71gb@0:4 3g.71gb@4:4",
		"7g.141gb":                "7g.141gb@0:8",
		"1g.18gb:3+4g.71gb":       "1g.18gb@4:1 1g.18gb@5:1 1g.18gb@6:1 4g.71gb@0:4",
		"1g.18gb+4g.71gb+1g.18gb": "1g.18gb@4:1 4g.71gb@0:4 1g.18gb@5:1",
		"3g.71gb+4g.71gb":         "3g.71gb@4:4 4g.71gb@0:4",
		"1g.18gb+me+1g.18gb:6":    "1g.18gb+me@0:1 1g.18gb@1:1 1g.18gb@2:1 1g.18gb@3:1 1g.18gb@4:1 1g.18gb@5:1 1g.18gb@6:1",
		"1g.35gb:4":               "1g.35gb@0:2 1g.35gb@2:2 1g.35gb@4:2 1g.35gb@6:2",
		"1g.18gb+2g.35gb:3":       "1g.18gb@6:1 2g.35gb@0:2 2g.35gb@2:2 2g.35gb@4:2",
		"1g.18gb+1g.35gb+3g.71gb": "1g.18gb@0:1 1g.35gb@2:2 3g.71gb@4:4",
	} {
		placed, err := mig.Place(h200(), wants(want))
		if got := fmt.Sprint(placed); err != nil || got != "["+fits+"]" {
			t.Errorf("%s: %s, %v, want %s", want, got, err, fits)
		}
	}
	for want, fails := range map[string]string{
		"4g.71gb:2":                    "has room for 1; would fit: 4g.71gb",
		"1g.18gb:8":                    "has room for 7; would fit: 1g.18gb:7",
		"1g.18gb+me:2":                 "has room for 1; would fit: 1g.18gb+me",
		"3g.71gb+4g.71gb+1g.18gb":      "has room for 2 of the 3 instances; would fit: 3g.71gb+4g.71gb",
		"7g.141gb+1g.18gb:3":           "has room for 1 of the 4 instances; would fit: 7g.141gb",
		"1g.18gb:3+7g.141gb+2g.35gb:9": "has room for 5 of the 13 instances; would fit: 1g.18gb:3+2g.35gb:2",
		"1g.5gb":                       "the GPU has 1g.18gb:7, 2g.35gb:3, 3g.71gb:2, 4g.71gb:1, 7g.141gb:1, 1g.18gb+me:1, 1g.35gb:4",
	} {
		var fit *mig.FitError
		placed, err := mig.Place(h200(), wants(want))
		if placed != nil || !errors.As(err, &fit) || err.Error() != fails {
			t.Errorf("%s: %v, %v, want %s", want, placed, err, fails)
		} else if len(fit.Fits) > 0 {
			if _, err := mig.Place(h200(), fit.Fits); err != nil {
				t.Errorf("%s: what would fit does not: %v", want, err)
			}
		}
	}
}

// wants reads "1g.18gb:3+4g.71gb".
func wants(text string) (list []mig.Want) {
	for item := range strings.SplitSeq(strings.ReplaceAll(text, "+me", "_me"), "+") {
		name, number, counted := strings.Cut(strings.ReplaceAll(item, "_me", "+me"), ":")
		want := mig.Want{Profile: name, Count: 1}
		if counted {
			if _, err := fmt.Sscan(number, &want.Count); err != nil {
				panic(err)
			}
		}
		list = append(list, want)
	}
	return list
}

// Every combination of profiles that fits by the rules (no more than there can
// be, no two in one place) is placed, and nothing else is: checked against a
// search that knows nothing of order.
func TestPlaceIsComplete(t *testing.T) {
	profiles := h200()
	fitting := map[string]bool{}
	counts := make([]int, len(profiles))
	var fill func(slice int)
	fill = func(slice int) {
		fitting[fmt.Sprint(counts)] = true
		if slice >= 8 {
			return
		}
		fill(slice + 1)
		for i, p := range profiles {
			for _, at := range p.Places {
				if at.Start == slice && counts[i] < p.Count {
					counts[i]++
					fill(slice + at.Size)
					counts[i]--
				}
			}
		}
	}
	fill(0)
	tried := 0
	var try func(i int)
	try = func(i int) {
		if i < len(profiles) {
			for counts[i] = 0; counts[i] <= profiles[i].Count; counts[i]++ {
				try(i + 1)
			}
			counts[i] = 0
			return
		}
		var list []mig.Want
		for n, count := range counts {
			if count > 0 {
				list = append(list, mig.Want{Profile: profiles[n].Name, Count: count})
			}
		}
		if list == nil {
			return
		}
		tried++
		if placed, err := mig.Place(profiles, list); (err == nil) != fitting[fmt.Sprint(counts)] {
			t.Errorf("%s: %v, %v", mig.Text(list), placed, err)
		} else if err == nil {
			l := mig.Layout{Mode: mig.Mode{Now: true, Next: true}, Instances: placed}
			if err := l.Fits(profiles); err != nil {
				t.Errorf("%s: %v", mig.Text(list), err)
			}
		}
	}
	try(0)
	t.Logf("%d combinations, %d fit", tried, len(fitting)-1)
	if len(fitting) < 50 || tried < 1000 {
		t.Error("too few to say anything")
	}
}

func TestFits(t *testing.T) {
	for text, want := range map[string]string{
		"on:1g.18gb@0:1,3g.71gb@4:4":       "",
		"on:1g.5gb@0:1":                    "1g.5gb: the GPU has 1g.18gb:7",
		"on:3g.71gb@0:3":                   "3g.71gb@0:3: 3g.71gb can be at 0:4, 4:4",
		"on:1g.18gb@0:1,3g.71gb@0:4":       "3g.71gb@0:4 is in the place of 1g.18gb@0:1",
		"on:1g.18gb+me@0:1,1g.18gb+me@1:1": "1g.18gb+me@1:1: 1g.18gb+me has room for 1",
	} {
		l, err := mig.ParseLayout(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Fits(h200()); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestBetween(t *testing.T) {
	const from, to = "on:3g.71gb@0:4[1c.3g.71gb@0:1/2c.3g.71gb@1:2],3g.71gb@4:4", "on:3g.71gb@0:4,1g.18gb@4:1,1g.18gb@5:1"
	for is, want := range map[string]bool{
		from: true, to: true, "on": true,
		"on:3g.71gb@0:4[],3g.71gb@4:4[]": true,
		"on:3g.71gb@0:4[2c.3g.71gb@1:2]": true,
		"on:3g.71gb@0:4,1g.18gb@5:1[]":   true,
		"on:1g.18gb@6:1":                 false, // nobody's place
		"on:1g.35gb@4:2":                 false,
		"on:3g.71gb@0:4[1c.3g.71gb@0:1/1c.3g.71gb@1:1/1c.3g.71gb@2:1]": false, // parts that neither has
		"on:2g.35gb@0:2,1g.18gb@4:1,1g.18gb@5:1":                       false,
		"off":                                                          false, "on>off": false,
	} {
		if got := mig.Between(parsed(t, from), parsed(t, to), parsed(t, is)); got != want {
			t.Errorf("%s: %v", is, got)
		}
	}
	for is, want := range map[string]bool{"off": true, "on": true, "off>on": true, "on>off": true, "on:1g.18gb@0:1[]": true, "on:1g.18gb@1:1": false} {
		if got := mig.Between(parsed(t, "off"), parsed(t, "on:1g.18gb@0:1"), parsed(t, is)); got != want {
			t.Errorf("from off, %s: %v", is, got)
		}
	}
}

func parsed(t *testing.T, text string) mig.Layout {
	t.Helper()
	l, err := mig.ParseLayout(text)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
