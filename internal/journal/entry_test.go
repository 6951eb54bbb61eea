package journal

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestEncode(t *testing.T) {
	for name, c := range map[string]struct {
		entry   Entry
		longest int
		want    string
	}{
		"plain": {
			Entry{"put back", Info, []Field{{"GPUTUNE_JOB", "42"}}},
			0,
			"MESSAGE=put back\nPRIORITY=6\nGPUTUNE_JOB=42\n",
		},
		"newlines": {
			Entry{"one\ntwo", Error, []Field{{"A", "\n"}, {"B", "x=y"}}},
			0,
			"MESSAGE\n\x07\x00\x00\x00\x00\x00\x00\x00one\ntwo\nPRIORITY=3\nA\n\x01\x00\x00\x00\x00\x00\x00\x00\n\nB=x=y\n",
		},
		"another field in a value": {
			Entry{"x\nPRIORITY=0", Info, nil},
			0,
			"MESSAGE\n\x0c\x00\x00\x00\x00\x00\x00\x00x\nPRIORITY=0\nPRIORITY=6\n",
		},
		"another field in a name": {
			Entry{"x", Info, []Field{{"A=1\nPRIORITY", "0"}}},
			0,
			"MESSAGE=x\nPRIORITY=6\nA_1_PRIORITY=0\n",
		},
		"names": {
			Entry{"x", Info, []Field{{"GPUTUNE_x.y-z", "1"}, {"_PID", "2"}, {"9_a", "3"}, {"é", "4"}, {"", "5"}, {strings.Repeat("n", 70), "6"}}},
			0,
			"MESSAGE=x\nPRIORITY=6\nGPUTUNE_X_Y_Z=1\nPID=2\nA=3\n" + strings.Repeat("N", 64) + "=6\n",
		},
		"not printable": {
			Entry{"a\x00b\x1b[1m\tc\r\x7f\u0085é\xff", Info, nil},
			0,
			"MESSAGE=a b [1m\tc   é\ufffd\nPRIORITY=6\n",
		},
		"nothing": {Entry{"", Info, []Field{{"A", ""}}}, 0, "MESSAGE=\nPRIORITY=6\nA=\n"},
		"cut": {
			Entry{"12345678", Info, []Field{{"A", "1234567"}, {"B", "123456é8"}}},
			7,
			"MESSAGE=1234567 [cut: 8 bytes in all]\nPRIORITY=6\nA=1234567\nB=123456 [cut: 9 bytes in all]\n",
		},
		"cut to one line": {
			Entry{"123\n5678", Info, nil},
			3,
			"MESSAGE=123 [cut: 8 bytes in all]\nPRIORITY=6\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := string(encode(c.entry, c.longest)); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// Whatever a message and a field are made of, the journal reads back the fields that
// were written, and no others.
func FuzzEncode(f *testing.F) {
	f.Add("one", "JOB", "42", 0)
	f.Add("one\ntwo", "a=b\nc", "\n\n", 3)
	f.Add("\xff\xfe", "_", "é", 1)
	f.Fuzz(func(t *testing.T, message, name, value string, longest int) {
		if longest < 0 {
			longest = 0
		}
		fields, err := decode(encode(Entry{message, Info, []Field{{name, value}}}, longest))
		if err != nil {
			t.Fatal(err)
		}
		want := 2
		if fieldName(name) != "" {
			want = 3
		}
		if len(fields) != want || fields[0].Name != "MESSAGE" || fields[1] != (Field{"PRIORITY", "6"}) {
			t.Fatalf("%q", fields)
		}
		for _, f := range fields {
			if !utf8.ValidString(f.Value) || f.Name == "" || len(f.Name) > nameMax {
				t.Errorf("%q", f)
			}
		}
	})
}
