package slurm

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// What "scontrol show hostnames" of 22.05 answers, but for text after the last
// bracket, which it refuses.
func TestExpand(t *testing.T) {
	for _, test := range []struct{ expression, want string }{
		{"", ""},
		{"n1", "n1"},
		{"n1,n0", "n1 n0"},
		{",n1,,n2,", "n1 n2"},
		{"n[01-3]", "n01 n02 n03"},
		{"n[00-2]", "n00 n01 n02"},
		{"n[9-11]", "n9 n10 n11"},
		{"n[099-101]", "n099 n100 n101"},
		{"n[1-03]", "n1 n2 n3"},
		{"n[01,2]", "n01 n2"},
		{"n[3,1,1-2]", "n3 n1 n1 n2"},
		{"[1-3]", "1 2 3"},
		{"0[0-1]", "00 01"},
		{"a[0-1]b[0-1]", "a0b0 a0b1 a1b0 a1b1"},
		{"n[1-2][3-4]", "n13 n14 n23 n24"},
		{"n[1-2]x[1-2],y", "n1x1 n1x2 n2x1 n2x2 y"},
		{"node[01-02,20]-ib[0-1]", "node01-ib0 node01-ib1 node02-ib0 node02-ib1 node20-ib0 node20-ib1"},
		{"/dev/nvidia[0-1,3]", "/dev/nvidia0 /dev/nvidia1 /dev/nvidia3"},
		{"/dev/nvidia3,/dev/nvidia[0-1]", "/dev/nvidia3 /dev/nvidia0 /dev/nvidia1"},
		{"n[1-2]-ib, login", "n1-ib n2-ib login"},
	} {
		got, err := Expand(test.expression)
		if err != nil || strings.Join(got, " ") != test.want {
			t.Errorf("Expand(%q) = %q, %v, want %q", test.expression, got, err, test.want)
		}
	}
}

func TestExpandErrors(t *testing.T) {
	for _, test := range []struct{ expression, names string }{
		{"n[5-3]", "5-3"},
		{"n[]", "n[]"},
		{"n[a]", `"a"`},
		{"n[l-m]", "l-m"},
		{"n[1-2,]", "n[1-2,]"},
		{"n[ 1-2 ]", " 1-2 "},
		{"n[-1]", "-1"},
		{"n[1-]", "1-"},
		{"n[+1]", "+1"},
		{"n[1", "n[1"},
		{"x,n1]", "n1]"},
		{"n[1[2]]", "n[1["},
		{"n[1-2-3]", "1-2-3"},
		{"n[1-9999999999999999999]", "9999999999999999999"},
	} {
		_, err := Expand(test.expression)
		var hostlist *HostlistError
		if !errors.As(err, &hostlist) || !strings.Contains(err.Error(), test.names) {
			t.Errorf("Expand(%q): error %v, want a HostlistError naming %s", test.expression, err, test.names)
		}
		if _, err := MatchHost(test.expression, "n1"); err == nil {
			t.Errorf("MatchHost(%q): no error", test.expression)
		}
	}
}

func TestExpandLimit(t *testing.T) {
	for expression, count := range map[string]int{
		"n[0-65535]":           65536,
		"n[0-65536]":           0,
		"a[0-255]b[0-255]":     65536,
		"a[0-255]b[0-255],one": 0,
		"n[0-999999999999]":    0,
		"n[0-999999999999999999,0-999999999999999999]x[0-999999999999999999]": 0,
		// 4 times 2 to the 62nd is 0 in 64 bits.
		"[0-3][0-999999999999999999,0-999999999999999999,0-999999999999999999,0-999999999999999999,0-611686018427387903]": 0,
		strings.Repeat("[0-9]", 60):  0,
		strings.Repeat("n,", 65537):  0,
		strings.Repeat("[0-0]", 500): 1,
	} {
		got, err := Expand(expression)
		if len(got) != count || (count == 0) != errors.Is(err, ErrTooManyNames) {
			t.Errorf("Expand(%.60q): %d names, %v, want %d", expression, len(got), err, count)
		}
	}
}

func TestMatchHost(t *testing.T) {
	for _, test := range []struct {
		expression, name string
		want             bool
	}{
		{"n[01-12,20]-ib[0-1]", "n01-ib0", true},
		{"n[01-12,20]-ib[0-1]", "n20-ib1", true},
		{"n[01-12,20]-ib[0-1]", "n13-ib0", false},
		{"n[01-12,20]-ib[0-1]", "n1-ib0", false},
		{"n[01-12]", "n001", false},
		{"n[1-12]", "n01", false},
		{"n[0-9]", "n0", true},
		{"n[00-9]", "n09", true},
		{"n[1-12]", "n12x", false},
		{"n[1-12]", "", false},
		{"", "n1", false},
		{"login,n[1-2]", "login", true},
		{"n[1-2][3-4]", "n13", true},
		{"n[1-2][3-4]", "n31", false},
		{"n[1-22][3-44]", "n223", true}, // 22 and 3, where 2 and 23 fits, too
		{"n[1-2][3-4]", "N13", false},
		{"n[1-999999999999]", "n123456789012", true},
		{"n[1-999999999999]", "n0", false},
		{strings.Repeat("[0-9]", 100), strings.Repeat("7", 100), true},
		{strings.Repeat("[0-99]", 100) + "x", strings.Repeat("7", 150), false},
	} {
		got, err := MatchHost(test.expression, test.name)
		if err != nil || got != test.want {
			t.Errorf("MatchHost(%.40q, %.40q) = %v, %v, want %v", test.expression, test.name, got, err, test.want)
		}
	}
}

// Two ways to the same answer: a name is in the expansion or it is not.
func FuzzHostlist(f *testing.F) {
	f.Add("node[01-12,20]-ib[0-1]", "node07-ib1")
	f.Add("/dev/nvidia[0-3,5]", "/dev/nvidia4")
	f.Add("a[0-1]b[0-1],c", "c")
	f.Add("n[1[2]", "n1")
	f.Add("[1-2][3-44]", "23")
	f.Fuzz(func(t *testing.T, expression, name string) {
		names, err := Expand(expression)
		match, matchErr := MatchHost(expression, name)
		if errors.Is(err, ErrTooManyNames) {
			return
		}
		if (err == nil) != (matchErr == nil) {
			t.Fatalf("Expand: %v, MatchHost: %v", err, matchErr)
		}
		if match != slices.Contains(names, name) {
			t.Fatalf("MatchHost(%q, %q) = %v, expanded %q", expression, name, match, names)
		}
		for _, one := range names {
			if match, err := MatchHost(expression, one); !match || err != nil {
				t.Fatalf("MatchHost(%q, %q) = %v, %v", expression, one, match, err)
			}
		}
	})
}
