package smi_test

import (
	"regexp"
	"testing"

	"gputune/internal/topology/smi"
	"gputune/tests/published"
)

var lineError = regexp.MustCompile(`^(line [0-9]+: .|no matrix)`)

// FuzzParse shows that whatever the text is, it is read or refused with a line
// and a reason, and that what is read holds together.
func FuzzParse(f *testing.F) {
	for _, text := range samples {
		f.Add([]byte(text))
	}
	published.Seed(f, "topo-m/*.txt")
	f.Fuzz(func(t *testing.T, text []byte) {
		m, unknown, err := smi.Parse(text)
		if err != nil {
			if m != nil || unknown != nil || !lineError.MatchString(err.Error()) || len(err.Error()) > 1000 {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		if err := published.Check(m); err != nil {
			t.Fatal(err)
		}
	})
}
