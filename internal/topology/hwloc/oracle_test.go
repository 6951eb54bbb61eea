package hwloc_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"gputune/internal/topology/hwloc"
	"gputune/tests/lstopo"
	"gputune/tests/published"
)

// lstopoKnowsMore names what lstopo makes of a file that is not what it says.
var lstopoKnowsMore = map[string]map[string]string{}

// TestAgreesWithLstopo reads published files and compares what is found with
// what lstopo says about the same file. hwloc before 3 refuses files of version
// 3, so it is shown them as version 2, which is the same in all that counts.
func TestAgreesWithLstopo(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(published.Folder(t), "hwloc/*/*.xml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d files, %v", len(paths), err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			m, _, err := hwloc.Parse(content)
			if err != nil {
				t.Fatal(err)
			}
			shown := filepath.Join(t.TempDir(), "shown.xml")
			content = bytes.Replace(content, []byte(`<topology version="3.0">`), []byte(`<topology version="2.0">`), 1)
			if err := os.WriteFile(shown, content, 0o600); err != nil {
				t.Fatal(err)
			}
			for _, text := range m.Warnings {
				t.Log("warning:", text)
			}
			lstopo.Compare(t, m, lstopo.Ask(t, shown, "xml"), lstopoKnowsMore[filepath.Base(path)], lstopo.Locality)
		})
	}
	t.Logf("read %d files", len(paths))
}
