package template

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestFill(t *testing.T) {
	here := Place{NIC: "mlx5_2", NICs: []string{"mlx5_2", "mlx5_3"}, Nodes: "1"}
	for text, want := range map[string]string{
		"":                               "",
		"={nic}":                         "=mlx5_2",
		"{nic}:1":                        "mlx5_2:1",
		"{nics}":                         "mlx5_2,mlx5_3",
		"node{node}-{nic}":               "node1-mlx5_2",
		"narenas:4,{{x}}":                "narenas:4,{x}",
		"background_thread:true,a\u00e9": "background_thread:true,a\u00e9",
	} {
		parsed, err := Parse(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got, err := parsed.Fill(here); got != want || err != nil {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"{gpu}": "a brace with none of the words", "{nic": "a brace with none", "nic}": "a brace that nothing opens", "{}": "a brace with",
		"a\nb": "control characters", strings.Repeat("x", 1001): "longer than 1000 bytes", "{{nic}": "nothing opens",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestFillAll(t *testing.T) {
	templates := map[string]Template{}
	for name, text := range map[string]string{"NCCL_IB_HCA": "={nic}", "UCX_NET_DEVICES": "{nic}:1", "MALLOC_CONF": "narenas:8", "NODE": "{node}"} {
		parsed, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		templates[name] = parsed
	}
	got := Fill(templates, Place{NIC: "mlx5_0"}, func(name string) bool { return name == "UCX_NET_DEVICES" })
	if !maps.Equal(got.Set, map[string]string{"NCCL_IB_HCA": "=mlx5_0", "MALLOC_CONF": "narenas:8"}) ||
		!slices.Equal(got.Kept, []string{"UCX_NET_DEVICES"}) || len(got.Left) != 1 || !errors.Is(got.Left["NODE"], ErrUnknown) {
		t.Errorf("%+v", got)
	}
}

func TestCheckName(t *testing.T) {
	for _, name := range []string{"NCCL_IB_HCA", "_x", "MALLOC_CONF", "a1"} {
		if err := CheckName(name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"", "1A", "A B", "A=B", "LD_PRELOAD", "SLURM_JOB_ID", "PATH", "CUDA_VISIBLE_DEVICES", "a\x00", strings.Repeat("A", 129)} {
		if CheckName(name) == nil {
			t.Errorf("%q is accepted", name)
		}
	}
}

// What is accepted is filled in to no more than its text and the place's.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"", "{nic}", "{nics}:{node}", "{{}}", "}{", "={nic", "\x00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := Parse(text)
		if err != nil {
			return
		}
		got, err := parsed.Fill(Place{NIC: "{nics}", NICs: []string{"{nic}"}, Nodes: "0"})
		if err != nil || strings.ContainsAny(got, "\x00\n\x1b") || len(got) > 2*len(text) {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	})
}

func TestNeedsNIC(t *testing.T) {
	for text, want := range map[string]bool{"": false, "{node}": false, "nic": false, "{{nic}}": false, "{nic}": true, "{node}:{nics}": true} {
		parsed, err := Parse(text)
		if err != nil || parsed.NeedsNIC() != want {
			t.Errorf("%q: %v, %v", text, parsed.NeedsNIC(), err)
		}
	}
}
