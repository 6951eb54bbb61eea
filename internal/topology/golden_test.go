package topology_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"gputune/internal/topology"
	"gputune/tests/machines"
)

var update = flag.Bool("update", false, "write testdata/*.json anew")

// TestGolden reads every described machine, with NVML where it has it, and
// compares all that was found out with the reviewed testdata/NAME.json.
func TestGolden(t *testing.T) {
	for _, d := range machines.All() {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			m, err := d.Machine(scratch(t))
			if err != nil {
				t.Fatal(err)
			}
			got := readableJSON(t, m)
			path := filepath.Join("testdata", d.Name+".json")
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s differs (go test -update writes it anew); now:\n%s", path, got)
			}
			var back topology.Machine
			if err := json.Unmarshal(want, &back); err != nil {
				t.Fatal(err)
			}
			if again := readableJSON(t, &back); !bytes.Equal(again, want) {
				t.Errorf("JSON does not come back as it went; now:\n%s", again)
			}
		})
	}
}

// readableJSON puts each member of the machine's lists on a line of its own.
func readableJSON(t *testing.T, m *topology.Machine) []byte {
	t.Helper()
	plain, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	depth, inString := 0, false
	for i, c := range plain {
		if c == '"' && (i == 0 || plain[i-1] != '\\') {
			inString = !inString
		}
		if !inString {
			switch c {
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
		}
		out.WriteByte(c)
		breaks := c == ',' && depth <= 2 || c == '[' && depth == 2 && plain[i+1] != ']'
		if !inString && breaks {
			out.WriteByte('\n')
			for range depth {
				out.WriteString("  ")
			}
		}
	}
	out.WriteByte('\n')
	return out.Bytes()
}

// TestLaunchReadsTheSame shows that what the launch of a task reads differs
// from the whole in the NICs only.
func TestLaunchReadsTheSame(t *testing.T) {
	for _, d := range machines.All() {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			root := scratch(t)
			if err := d.Render(root); err != nil {
				t.Fatal(err)
			}
			whole, err := topology.Read(root, topology.Options{NICs: true})
			if err != nil {
				t.Fatal(err)
			}
			launch, err := topology.Read(root, topology.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if len(whole.NICs) != len(d.NICs) || len(launch.NICs) != 0 {
				t.Errorf("%d and %d NICs, want %d and none", len(whole.NICs), len(launch.NICs), len(d.NICs))
			}
			whole.NICs = launch.NICs
			if a, b := readableJSON(t, whole), readableJSON(t, launch); !bytes.Equal(a, b) {
				t.Errorf("whole:\n%s\nlaunch:\n%s", a, b)
			}
		})
	}
}
