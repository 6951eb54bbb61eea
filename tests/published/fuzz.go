package published

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"gputune/internal/topology"
)

var lineError = regexp.MustCompile(`^(line [0-9]+: .|no matrix)`)

// FuzzParse shows that whatever the text is, it is read or refused with a line
// and a reason, and that what is read holds together. It begins with the samples
// and with the published files that match the pattern.
func FuzzParse(f *testing.F, samples map[string]string, pattern string, parse func(text []byte) (*topology.Machine, []string, error)) {
	f.Helper()
	for _, text := range samples {
		f.Add([]byte(text))
	}
	Seed(f, pattern)
	f.Fuzz(func(t *testing.T, text []byte) {
		m, unknown, err := parse(text)
		if err != nil {
			if m != nil || unknown != nil || !lineError.MatchString(err.Error()) || len(err.Error()) > 1000 {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		if err := Check(m); err != nil {
			t.Fatal(err)
		}
	})
}

// Seed adds the published files that match the pattern, "nccl/*.xml", to a fuzz
// test's corpus, where the folder is; up to 8 KiB each.
func Seed(f *testing.F, pattern string) {
	f.Helper()
	folder, ok := find()
	if !ok {
		return
	}
	paths, err := filepath.Glob(filepath.Join(folder, pattern))
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		if len(content) <= 8<<10 {
			f.Add(content)
		}
	}
}

// Check tells what is wrong with a machine that a reader returned: whatever the
// file was, later code relies on it.
func Check(m *topology.Machine) error {
	nodes := make(map[int]bool)
	last := -1
	for _, node := range m.Nodes {
		if node.ID <= last {
			return errors.New("nodes are not in order")
		}
		last = node.ID
		nodes[node.ID] = true
		if !node.CPUs.SubsetOf(m.CPUs.Or(m.Offline)) {
			return errors.New("a node has CPUs that the machine has not")
		}
	}
	for i, gpu := range m.GPUs {
		if gpu.Index != i {
			return errors.New("a GPU's index is not its position")
		}
		for id := range gpu.Nodes.All() {
			if !nodes[id] {
				return errors.New("a GPU is on a node that the machine has not")
			}
		}
		if !gpu.CPUs.SubsetOf(m.CPUs) {
			return errors.New("a GPU has CPUs that the machine has not")
		}
	}
	for _, group := range m.Cores {
		if group.CPUs.Empty() {
			return errors.New("a core has no CPUs")
		}
	}
	for _, group := range m.L3 {
		if group.CPUs.Empty() {
			return errors.New("an L3 group has no CPUs")
		}
	}
	return nil
}
