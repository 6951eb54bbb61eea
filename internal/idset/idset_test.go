package idset

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for list, want := range map[string][]int{
		"":                 nil,
		"\n":               nil,
		"0":                {0},
		"0-3":              {0, 1, 2, 3},
		"3,1":              {1, 3},
		"0-1,8,10-11\n":    {0, 1, 8, 10, 11},
		"63-65":            {63, 64, 65},
		"8191":             {8191},
		" 1 , 2 ":          {1, 2},
		"1-2,2-3":          {1, 2, 3},
		"0-0":              {0},
		"0000000000000000": {0},
	} {
		got, err := Parse(list)
		if err != nil {
			t.Errorf("Parse(%q): %v", list, err)
			continue
		}
		if ids := slices.Collect(got.All()); !slices.Equal(ids, want) {
			t.Errorf("Parse(%q) = %v, want %v", list, ids, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, list := range []string{
		"-1", "1-", "-", ",", "0,", "a", "3-1", "8192", "0-99999999999999999999", "1 2", "0x1", "+1", "0-3:1/2", "1--2", "\x00",
	} {
		got, err := Parse(list)
		if err == nil {
			t.Errorf("Parse(%q) = %v, want an error", list, got)
		} else if !got.Empty() {
			t.Errorf("Parse(%q) returned %v beside its error", list, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "0-3,8", "1,1,1", "8191", "0-8191", "9-8", "-", ",,"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, list string) {
		set, err := Parse(list)
		if err != nil {
			return
		}
		again, err := Parse(set.String())
		if err != nil || !again.Equal(set) {
			t.Errorf("Parse(%q) = %q, which reads back as %q, %v", list, set, again, err)
		}
	})
}

// TestAgainstMap compares every operation with the same one over maps.
func TestAgainstMap(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	draw := func() (Set, map[int]bool) {
		var s Set
		m := map[int]bool{}
		limit := []int{1, 10, 64, 65, 300, Limit}[random.IntN(6)]
		for range random.IntN(20) {
			id := random.IntN(limit)
			s.Add(id)
			m[id] = true
			if random.IntN(3) == 0 {
				id = random.IntN(limit)
				s.Remove(id)
				delete(m, id)
			}
		}
		return s, m
	}
	check := func(name string, got Set, want func(id int) bool) {
		t.Helper()
		n, lowest, highest := 0, -1, -1
		for id := range Limit {
			if got.Has(id) != want(id) {
				t.Fatalf("%s: id %d: got %v in %s", name, id, got.Has(id), got)
			}
			if want(id) {
				if n++; lowest < 0 {
					lowest = id
				}
				highest = id
			}
		}
		if got.Len() != n || got.Empty() != (n == 0) || got.Min() != lowest || got.Max() != highest {
			t.Fatalf("%s: %s: Len %d Empty %v Min %d Max %d, want %d %v %d %d",
				name, got, got.Len(), got.Empty(), got.Min(), got.Max(), n, n == 0, lowest, highest)
		}
		if !FromWords(got.Words()).Equal(got) {
			t.Fatalf("%s: %s does not survive Words", name, got)
		}
	}
	for range 300 {
		a, am := draw()
		b, bm := draw()
		beforeA, beforeB := a.String(), b.String()
		check("set", a, func(id int) bool { return am[id] })
		check("And", a.And(b), func(id int) bool { return am[id] && bm[id] })
		check("Or", a.Or(b), func(id int) bool { return am[id] || bm[id] })
		check("AndNot", a.AndNot(b), func(id int) bool { return am[id] && !bm[id] })
		if got, want := a.SubsetOf(b), a.And(b).Equal(a); got != want {
			t.Fatalf("%s subset of %s: %v, want %v", a, b, got, want)
		}
		if a.String() != beforeA || b.String() != beforeB {
			t.Fatalf("an operation changed its operands")
		}
	}
}

func TestFromBytes(t *testing.T) {
	if got := FromBytes([]byte{0x03, 0x80, 0, 0, 0, 0, 0, 0, 0x01}); got.String() != "0-1,15,64" {
		t.Errorf("got %s", got)
	}
	if got := FromBytes(nil); !got.Empty() {
		t.Errorf("got %s", got)
	}
}

func TestJSON(t *testing.T) {
	text, err := json.Marshal(map[string]Set{"cpus": Range(0, 3), "none": {}})
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != `{"cpus":"0-3","none":""}` {
		t.Errorf("got %s", text)
	}
	var back map[string]Set
	if err := json.Unmarshal(text, &back); err != nil || !back["cpus"].Equal(Of(0, 1, 2, 3)) {
		t.Errorf("read back %v, %v", back, err)
	}
	if err := json.Unmarshal([]byte(`{"cpus":"9-1"}`), &back); err == nil || !strings.Contains(err.Error(), "9-1") {
		t.Errorf("error %v, want one that names the piece", err)
	}
}
