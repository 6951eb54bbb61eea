package nccl_test

import (
	"regexp"
	"testing"

	"gputune/internal/topology/nccl"
	"gputune/tests/published"
)

var lineError = regexp.MustCompile(`^(line [0-9]+: .|no matrix)`)

// FuzzParse shows that whatever the text is, it is read or refused with a line
// and a reason, and that what is read holds together.
func FuzzParse(f *testing.F) {
	for _, text := range samples {
		f.Add([]byte(text))
	}
	published.Seed(f, "nccl/*.xml")
	f.Fuzz(func(t *testing.T, text []byte) {
		m, unknown, err := nccl.Parse(text)
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
