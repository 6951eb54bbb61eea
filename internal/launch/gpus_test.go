package launch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gputune/internal/topology"
)

func fourGPUs() *topology.Machine {
	m := &topology.Machine{}
	for i := range 4 {
		m.GPUs = append(m.GPUs, topology.GPU{
			Index: i, PCI: fmt.Sprintf("0000:d%d:00.0", i+1), UUID: fmt.Sprintf("GPU-%d%d", i, i), Minor: 3 - i, Model: "H100", MIG: []string{fmt.Sprintf("MIG-%d", i)},
		})
	}
	return m
}

func TestVisible(t *testing.T) {
	m := fourGPUs()
	root := t.TempDir()
	if got := fmt.Sprint(Visible(m, root)); got != "[0 1 2 3]" {
		t.Errorf("no device files at all: %s", got)
	}
	if err := os.Mkdir(filepath.Join(root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, minor := range []int{0, 2} { // those of GPUs 3 and 1
		if err := os.WriteFile(filepath.Join(root, "dev", fmt.Sprintf("nvidia%d", minor)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := fmt.Sprint(Visible(m, root)); got != "[1 3]" {
		t.Errorf("two of four: %s", got)
	}
}

func TestUses(t *testing.T) {
	m := fourGPUs()
	for environment, want := range map[string]string{
		"":                                  "[1 3]",
		"CUDA_VISIBLE_DEVICES=1":            "[3]",
		"CUDA_VISIBLE_DEVICES=1,0":          "[3 1]",
		"CUDA_VISIBLE_DEVICES=GPU-2":        "[2]",
		"CUDA_VISIBLE_DEVICES=MIG-0":        "[0]",
		"CUDA_VISIBLE_DEVICES=":             "[]",
		"CUDA_VISIBLE_DEVICES=0,-1,1":       "[1]",
		"CUDA_VISIBLE_DEVICES=1,GPU-2":      "[3]", // CUDA stops where numbers change to UUIDs
		"CUDA_VISIBLE_DEVICES=1,0,1":        "names gpu 0000:d4:00.0 twice",
		"CUDA_VISIBLE_DEVICES=GPU-9":        "no device of this node has that UUID",
		"CUDA_VISIBLE_DEVICES=first,second": "want an index",
	} {
		gpus, note, err := Uses(m, []int{1, 3}, lookup(environment))
		got := fmt.Sprint(gpus)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) || note != "" {
			t.Errorf("%q: %s, note %q, want %s", environment, got, note, want)
		}
	}
	m.GPUs[3].Model = "T4"
	for environment, noted := range map[string]bool{
		"":                                true,
		"CUDA_VISIBLE_DEVICES=0":          true,
		"CUDA_VISIBLE_DEVICES=GPU-2":      false,
		"CUDA_DEVICE_ORDER=PCI_BUS_ID":    false,
		"CUDA_DEVICE_ORDER=FASTEST_FIRST": true,
	} {
		if _, note, err := Uses(m, []int{1, 3}, lookup(environment)); err != nil || (note != "") != noted {
			t.Errorf("GPUs that differ, %q: %q, %v", environment, note, err)
		}
	}
}
