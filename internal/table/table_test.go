package table

import (
	"strings"
	"testing"
)

func TestWrite(t *testing.T) {
	table := Table{Head: []string{"NODE", "CPUS", "WHY"}}
	table.Add(Text("0"), Text("0-3"), Text(""))
	table.Add(Cell{"1", Bad}, Text(strings.Repeat("100,", 40)+"100"), Text("a reason in several words"))
	var b strings.Builder
	if err := table.Write(&b, false); err != nil {
		t.Fatal(err)
	}
	want := "NODE  CPUS" + strings.Repeat(" ", 63) + "  WHY\n" +
		"0     0-3" + strings.Repeat(" ", 64) + "  -\n"
	if !strings.HasPrefix(b.String(), want) {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
	joined := ""
	for line := range strings.Lines(b.String()) {
		if len(line) > Width+1 || strings.HasSuffix(line, " \n") {
			t.Errorf("%d columns: %q", len(line)-1, line)
		}
		joined += line
	}
	if strings.Count(joined, "100") != 41 || strings.Contains(joined, "\x1b") {
		t.Errorf("got\n%s", joined)
	}
	b.Reset()
	if err := table.Write(&b, true); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "\x1b[31m1\x1b[0m     100,") || !strings.Contains(b.String(), "\x1b[1mNODE\x1b[0m") {
		t.Errorf("got\n%q", b.String())
	}
}

func TestWrap(t *testing.T) {
	for _, c := range []struct {
		text  string
		width int
		want  string
	}{
		{"", 5, ""},
		{"0-3,8", 9, "0-3,8"},
		{"0-3,8-11,16", 5, "0-3,|8-11,|16"},
		{"one two three", 7, "one two|three"},
		{"unbreakable", 3, "unbreakable"},
	} {
		if got := strings.Join(Wrap(c.text, c.width), "|"); got != c.want {
			t.Errorf("%q in %d: %q, want %q", c.text, c.width, got, c.want)
		}
	}
}
