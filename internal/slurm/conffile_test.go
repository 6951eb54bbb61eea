package slurm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// write makes the files in a new folder and returns it. Names with a slash at
// their end are folders.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	folder := t.TempDir()
	for name, text := range files {
		path := filepath.Join(folder, name)
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func (l confLine) String() string {
	var words []string
	for _, pair := range l.pairs {
		words = append(words, pair.key+"="+pair.value)
	}
	return strings.Join(words, "|")
}

func TestConfSyntax(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"plain", "TaskPlugin=task/none\n", "taskplugin=task/none"},
		{"no newline at the end", "A=1", "a=1"},
		{"dos lines", "A=1\r\nB=2\r\n", "a=1;b=2"},
		{"blanks around =", " A = 1\tB= 2 C =3", "a=1|b=2|c=3"},
		{"comment", "A=1 # B=2\n#C=3\nD=4#5", "a=1;d=4"},
		{"escaped comment", `A=x\#y # z`, "a=x#y"},
		{"two backslashes and a comment", `A=x\\#y`, `a=x\`},
		{"quotes", `A="x y" B="" C="#"`, `a=x y|b=|c="`}, // a comment starts inside quotes, too
		{"quote that does not end", `A="x y`, `a="x`},
		{"quote inside a value", `A="x"y B=1`, `a="x"y|b=1`},
		{"continuation", "A=1 \\\n  B=2\nC=3", "a=1|b=2;c=3"},
		{"continuation and blanks", "A=1 \\  \n B=2", "a=1|b=2"},
		{"continuation in a word", "A=1\\\n2", "a=12"},
		{"even backslashes continue nothing", "A=1 \\\\\nB=2", `a=1;b=2`},
		{"three backslashes", "A=1\\\\\\\nB=2", `a=1\B=2`},
		{"continuation at the end of the file", "A=1 \\", "a=1"},
		{"comment before a continuation", "A=1 # \\\nB=2", "a=1;b=2"},
		{"operators", "A+=1 B-=2 C*=3 D/=4", "a=1|b=2|c=3|d=4"},
		{"words that are no pair", "foo A=1 =x bar= ", "a=1"},
		{"keys with dots and lines", "Switch.Type_1=x", "switch.type_1=x"},
		{"value with =", "A=b=c", "a=b=c"},
		{"empty lines", "\n \n\t\nA=1\n\n", "a=1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			lines, err := readConf(filepath.Join(write(t, map[string]string{"f.conf": test.text}), "f.conf"))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, line := range lines {
				got = append(got, line.String())
			}
			if strings.Join(got, ";") != test.want {
				t.Errorf("got %q, want %q", strings.Join(got, ";"), test.want)
			}
		})
	}
}

func TestConfInclude(t *testing.T) {
	folder := write(t, map[string]string{
		"slurm.conf":      "ClusterName=Tux\nInclude nodes/all.conf # all\n  include\tplugins.conf-%c\nZ=9",
		"nodes/all.conf":  "N=1\nInclude more.conf\nN=3",
		"nodes/more.conf": "N=2",
		"plugins.conf-tux": fmt.Sprintf("P=4\nInclude %s\n",
			filepath.Join(write(t, map[string]string{"abs.conf": "A=5"}), "abs.conf")),
	})
	lines, err := readConf(filepath.Join(folder, "slurm.conf"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, line := range lines {
		got = append(got, line.String())
	}
	const want = "clustername=Tux n=1 n=2 n=3 p=4 a=5 z=9"
	if strings.Join(got, " ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if lines[2].path != filepath.Join(folder, "nodes/more.conf") || lines[2].line != 1 {
		t.Errorf("third line is from %s:%d", lines[2].path, lines[2].line)
	}
}

func TestConfErrors(t *testing.T) {
	folder := write(t, map[string]string{
		"gone.conf":   "A=1\nInclude missing.conf\nB=2",
		"loop.conf":   "A=1\nInclude loop.conf",
		"folder/":     "",
		"reached.end": "A=1 \\\n\\\nInclude missing.conf",
	})
	for _, test := range []struct {
		file     string
		lines    int
		missing  bool
		contains string
	}{
		{"none.conf", 0, true, "none.conf: no such file"},
		{"gone.conf", 2, true, "gone.conf:2: include: " + folder + "/missing.conf: no such file"},
		{"loop.conf", 17, false, "more than 16 levels"},
		{"folder", 0, false, "not a regular file"},
		{"reached.end", 1, false, ""},
	} {
		lines, err := readConf(filepath.Join(folder, test.file))
		if len(lines) != test.lines {
			t.Errorf("%s: %d lines, want %d", test.file, len(lines), test.lines)
		}
		if test.contains == "" {
			if err != nil {
				t.Errorf("%s: %v", test.file, err)
			}
			continue
		}
		var conf *ConfigError
		if !errors.As(err, &conf) || !strings.Contains(err.Error(), test.contains) || errors.Is(err, fs.ErrNotExist) != test.missing {
			t.Errorf("%s: error %v, want a ConfigError with %q", test.file, err, test.contains)
		}
	}
}

// A pipe in place of a file must not stop slurmstepd.
func TestConfFIFO(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "slurm.conf")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	writer, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if _, err := readConf(path); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("error %v", err)
	}
}

func TestConfSize(t *testing.T) {
	read := 0
	r := confReader{read: func(string) ([]byte, error) { read++; return make([]byte, maxConfBytes+1), nil }}
	r.file("big", 0)
	r.file("bigger", 0)
	if len(r.errs) != 1 || len(r.lines) != 0 || read != 1 {
		t.Errorf("errors %v, %d lines, %d files read", r.errs, len(r.lines), read)
	}
}

// Two files that include each other twice would be read 65536 times.
func TestConfFiles(t *testing.T) {
	read := 0
	r := confReader{read: func(string) ([]byte, error) { read++; return []byte("Include a\nInclude b\n"), nil }}
	r.file("a", 0)
	if read != maxConfFiles {
		t.Errorf("%d files read, want %d", read, maxConfFiles)
	}
	if err := errors.Join(r.errs...); !strings.Contains(err.Error(), "more than 1000 files") {
		t.Errorf("not said among %d errors", len(r.errs))
	}
}

// What a step reads must cost no more than its bytes do, whatever is in it.
// One MiB takes milliseconds; with time in the square of the length it took
// 14 seconds.
// Eight times the text takes some eight times this thread's processor time, not
// sixty-four times.
func TestConfIsReadInLinearTime(t *testing.T) {
	const size, times = 1 << 18, 8
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for name, part := range map[string]string{
		"continuations": "a=1 \\\n", "words": "a ", "pairs": "a=1 ", "blanks": " ", "quotes": `a="x `, "lines": "a=1\n",
		"backslashes": `\`, "includes": "include nothing\n",
	} {
		read := func(size int) time.Duration {
			path := filepath.Join(write(t, map[string]string{"f.conf": strings.Repeat(part, size/len(part))}), "f.conf")
			before := processorTime(t)
			if _, err := readConf(path); err != nil && name != "includes" {
				t.Errorf("%s: %v", name, err)
			}
			return processorTime(t) - before
		}
		// What a smaller one takes is lost in what the clock counts.
		small := max(read(size), 2*time.Millisecond)
		if large := read(size * times); large > 4*times*small {
			t.Errorf("%s: %s for %d bytes, %s for %d times as many", name, small, size, large, times)
		}
	}
}

func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func FuzzConf(f *testing.F) {
	f.Add("A=1 \\\n B=\"x y\" # c\nInclude other.conf\n", "C=2")
	f.Add("Include %c\n", "Include main\n")
	f.Add("ClusterName=x\nNodeName=n[1-4] Gres=gpu:a:4(S:0-1),gpu:2\nNodeName=DEFAULT", "")
	f.Add("AutoDetect=nvml\nNodeName=n1 Name=gpu MultipleFiles=, Count=1K", "Name=gpu File=[")
	f.Fuzz(func(t *testing.T, main, other string) {
		r := confReader{read: func(path string) ([]byte, error) {
			if path == "/etc/main" {
				return []byte(main), nil
			}
			return []byte(other), nil
		}}
		r.file("/etc/main", 0)
		lines := r.lines
		for _, line := range lines {
			if len(line.pairs) == 0 {
				t.Fatal("a line without pairs")
			}
			for _, pair := range line.pairs {
				if pair.key == "" || pair.key != strings.ToLower(pair.key) || strings.ContainsAny(pair.key, " \t\n=\"") {
					t.Fatalf("key %q", pair.key)
				}
			}
		}
		_, _ = parseCgroup(lines, nil)
		gres, _ := parseGres(lines, nil)
		gres.Declared = parseSlurm(lines).DeclaredGPUs("n1")
		for i, entry := range GPUOrder(gres, "n1", machine(4), nil) {
			if entry.Index != i || entry.GPU < -1 || entry.GPU > 3 || entry.GPU < 0 && entry.Doubt == "" {
				t.Fatalf("entry %d: %+v", i, entry)
			}
		}
	})
}
