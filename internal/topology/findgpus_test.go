package topology_test

import (
	"fmt"
	"strings"
	"testing"
)

func TestFindGPUs(t *testing.T) {
	m := machineCalled(t, "demo-dual")
	for list, want := range map[string]string{
		"0":               "[0]",
		"3,0-1":           "[3 0 1]",
		"0000:97:00.0, 0": "[2 0]",
		"97:00.0":         "[2]",
		"GPU-77046bf4":    "[3]",
		"gpu-832fce0d-5678-17af,00000000:17:00.0": "[2 0]",

		"":             `GPU list "": "": want GPU-<uuid>, a PCI address or an index from 0 to 3`,
		"0,":           `"": want`,
		"4":            `"4": want GPU-<uuid>, a PCI address or an index from 0 to 3`,
		"1-0":          `"1-0": want`,
		"0,0":          "GPU 0 is named twice",
		"0,17:00.0":    "GPU 0 is named twice",
		"0000:99:00.0": "no GPU is there",
		"GPU-0":        "no GPU has that UUID",
		"all":          `"all": want`,
	} {
		gpus, err := m.FindGPUs(list)
		got := fmt.Sprint(gpus)
		if err != nil {
			got = err.Error()
		}
		if got != want && (err == nil || !strings.Contains(got, want)) {
			t.Errorf("%q: %s, want %s", list, got, want)
		}
	}
	m.GPUs[0].UUID, m.GPUs[1].UUID = "GPU-aa1", "GPU-aa2"
	if _, err := m.FindGPUs("GPU-aa"); err == nil || !strings.Contains(err.Error(), "2 GPUs have") {
		t.Errorf("a UUID that fits two: %v", err)
	}
	m.GPUs = nil
	if _, err := m.FindGPUs("0"); err == nil || !strings.Contains(err.Error(), "there are no GPUs") {
		t.Errorf("no GPUs: %v", err)
	}
}
