package slurm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gputune/internal/topology"
)

func TestParseGPUList(t *testing.T) {
	for list, want := range map[string]string{"0": "0", "0,2-3": "0,2-3", "3,1": "1,3", "": "", "0-7": "0-7"} {
		got, err := ParseGPUList(list)
		if err != nil || got.String() != want {
			t.Errorf("ParseGPUList(%q) = %s, %v, want %s", list, got, err, want)
		}
	}
	for _, list := range []string{"a", "0,x", "2-1", "-1", "0,,1", "99999", "GPU-1"} {
		if got, err := ParseGPUList(list); err == nil || !strings.Contains(err.Error(), list) {
			t.Errorf("ParseGPUList(%q) = %s, error %v", list, got, err)
		}
	}
}

func node() *topology.Machine {
	return &topology.Machine{GPUs: []topology.GPU{
		{UUID: "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", Minor: 0},
		{UUID: "GPU-8932a000-d72c-4106-c12f-20bd9faed9f6", Minor: 1, MIG: []string{"MIG-41b35fbb-1111-5555-8888-000000000000", "MIG-41b35fcc-1111-5555-8888-000000000000"}},
		{UUID: "GPU-01234567-d72c-4106-c12f-20bd9faed9f6", Minor: 2, MIG: []string{"MIG-aa000000-1111-5555-8888-000000000000"}},
		{Minor: 3}, // its UUID is not known
	}}
}

func TestVisible(t *testing.T) {
	order := []int{2, 0, -1, 1}
	for _, test := range []struct {
		value string
		want  []int
	}{
		{"", nil},
		{" ", nil},
		{"NoDevFiles", nil},
		{"-1", nil},
		{"0", []int{2}},
		{"1,0", []int{0, 2}},
		{" 1 , 0 ", []int{0, 2}},
		{"1,0,", []int{0, 2}},
		{"0,0", []int{2}},
		{"0,-1,1", []int{2}},
		{"0,-2147483648,1", []int{2}},
		{"0,4,1", []int{2}}, // 4 is none: what is behind it is hidden
		{"2,3", []int{1}},   // 2 is not known
		{"GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", []int{0}},
		{"GPU-8932f,GPU-0", []int{0, 2}},
		{"gpu-8932F", []int{0}},
		{"MIG-41b35fbb-1111-5555-8888-000000000000", []int{1}},
		{"MIG-41b35fbb,MIG-41b35fcc,MIG-a", []int{1, 2}},
		{"MIG-GPU-01234567-d72c-4106-c12f-20bd9faed9f6/1/0", []int{2}},
		{"GPU-0,1", []int{2, 0}},
	} {
		visible, err := ParseVisible(test.value, true)
		if err != nil || visible.All {
			t.Errorf("ParseVisible(%q) = %+v, %v", test.value, visible, err)
			continue
		}
		if got, err := visible.GPUs(node(), order); err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%q: GPUs %v, %v, want %v", test.value, got, err, test.want)
		}
	}
	all, err := ParseVisible("", false)
	if err != nil || !all.All {
		t.Errorf("not set: %+v, %v", all, err)
	}
	if got, err := all.GPUs(node(), order); err != nil || !slices.Equal(got, []int{2, 0, 1}) {
		t.Errorf("not set: GPUs %v, %v", got, err)
	}
}

// What a CUDA program's devices were on two H200 (driver 580), device 0 first.
func TestCounted(t *testing.T) {
	machine := &topology.Machine{}
	for i := range 4 {
		machine.GPUs = append(machine.GPUs, topology.GPU{
			PCI: fmt.Sprintf("0000:0%d:00.0", i), UUID: fmt.Sprintf("GPU-%d0", i), MIG: []string{fmt.Sprintf("MIG-%d0", i), fmt.Sprintf("MIG-%d1", i)},
		})
	}
	for value, want := range map[string]string{
		"0,1":                  "[0 2]",
		"1,0":                  "[2 0]",
		" 1, 0":                "[2 0]",
		"1,0,":                 "[2 0]",
		"1,9,0":                "[2]",
		"2,0":                  "[]",
		"1,-1,0":               "[2]",
		"0,0":                  "gpu 0000:00:00.0 twice",
		"1,0,01":               "gpu 0000:02:00.0 twice",
		"1,0,0,9":              "gpu 0000:00:00.0 twice",
		"1,9,1":                "[2]",
		"GPU-20,GPU-00":        "[2 0]",
		"GPU-2,GPU-0":          "[2 0]",
		"GPU-20,GPU-2":         "gpu 0000:02:00.0 twice",
		"GPU-20,0":             "[2]",
		"1,GPU-00":             "[2]",
		"GPU-20,GPU-9,GPU-00":  "[2] device GPU-9: no device",
		"GPU-":                 "want",
		"MIG-20,MIG-21,MIG-00": "[2 0]",
		"MIG-20,1":             "[2]",
		"":                     "[]",
	} {
		visible, err := ParseVisible(value, true)
		got := ""
		if err == nil {
			var gpus []int
			gpus, err = visible.Counted(machine, []int{0, 2})
			got = fmt.Sprint(gpus)
		}
		if err != nil {
			got += " " + err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
	}
	var repeated *RepeatedError
	visible, err := ParseVisible("1,1", true)
	if err != nil {
		t.Fatal(err)
	}
	if gpus, err := visible.Counted(machine, []int{0, 1}); !errors.As(err, &repeated) || repeated.GPU != "0000:01:00.0" || gpus != nil {
		t.Errorf("%v, %v", gpus, err)
	}
	if gpus, err := (Visible{All: true}).Counted(machine, []int{3, 1}); err != nil || fmt.Sprint(gpus) != "[3 1]" {
		t.Errorf("not set: %v, %v", gpus, err)
	}
}

func TestVisibleKinds(t *testing.T) {
	visible, err := ParseVisible("2,GPU-AB,MIG-c0,MIG-GPU-Ef/7/1", true)
	want := []Device{{Kind: ByIndex, Index: 2}, {Kind: ByGPU, UUID: "GPU-ab"}, {Kind: ByMIG, UUID: "MIG-c0"}, {Kind: ByInstance, UUID: "GPU-ef", Instance: [2]int{7, 1}}}
	if err != nil || !slices.Equal(visible.Devices, want) {
		t.Errorf("got %+v, %v, want %+v", visible.Devices, err, want)
	}
}

func TestVisibleErrors(t *testing.T) {
	for value, piece := range map[string]string{
		"0,all":                    `"all"`,
		"0,,1":                     `""`,
		"0 1":                      `"0 1"`,
		"0x1":                      `"0x1"`,
		"1.5":                      `"1.5"`,
		"99999999999":              `"99999999999"`,
		"GPU-":                     `"GPU-"`,
		"GPU-xyz":                  `"GPU-xyz"`,
		"GPU--1":                   `"GPU--1"`,
		"MIG-GPU-01/1":             `"MIG-GPU-01/1"`,
		"MIG-GPU-01/a/0":           `"MIG-GPU-01/a/0"`,
		"MIG-GPU-01/1/0/3":         `"MIG-GPU-01/1/0/3"`,
		"MIG-GPU-/1/0":             `"MIG-GPU-/1/0"`,
		"GPU-" + ten("0123456789"): "hexadecimal",
		strings.Repeat("1,", 1025): "at most 1024",
	} {
		visible, err := ParseVisible(value, true)
		var bad *ValueError
		if !errors.As(err, &bad) || bad.Value != value || !strings.Contains(err.Error(), piece) {
			t.Errorf("ParseVisible(%.40q): error %v, want a ValueError with %s", value, err, piece)
		}
		if strings.HasPrefix(value, "0,") && len(visible.Devices) != 1 {
			t.Errorf("ParseVisible(%q): %+v, want what came before", value, visible)
		}
	}
	for value, text := range map[string]string{
		"GPU-8932":  "fits GPU-8932f937-d72c-4106-c12f-20bd9faed9f6 and GPU-8932a000-",
		"MIG-41b35": "want more of the UUID",
		"GPU-ff":    "device GPU-ff: no device of this node",
		"MIG-8932f": "device MIG-8932f: no device",
	} {
		visible, err := ParseVisible(value, true)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := visible.GPUs(node(), nil); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%q: GPUs %v, error %v, want %q", value, got, err, text)
		}
	}
}

func ten(text string) string { return strings.Repeat(text, 10) }

func FuzzVisible(f *testing.F) {
	for _, value := range []string{"", "0,1", "-1", "NoDevFiles", "GPU-8932f937", "MIG-GPU-01234567/1/0", "MIG-41b3,0,", "0,,1", "GPU-"} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		visible, err := ParseVisible(value, true)
		if visible.All || len(visible.Devices) > maxVisibleDevices {
			t.Fatalf("%+v", visible)
		}
		var bad *ValueError
		if err != nil && (!errors.As(err, &bad) || bad.Value != value) {
			t.Fatalf("error %v", err)
		}
		for _, device := range visible.Devices {
			if device.Index < 0 || device.Kind == ByIndex != (device.UUID == "") {
				t.Fatalf("device %+v", device)
			}
		}
		gpus, _ := visible.GPUs(node(), []int{2, 0, -1, 1})
		for i, gpu := range gpus {
			if gpu < 0 || gpu > 3 || slices.Contains(gpus[:i], gpu) {
				t.Fatalf("GPUs %v", gpus)
			}
		}
	})
}

func FuzzGPUList(f *testing.F) {
	f.Add("0,2-3")
	f.Add("-1")
	f.Fuzz(func(t *testing.T, list string) {
		set, err := ParseGPUList(list)
		if err != nil {
			if !set.Empty() {
				t.Fatalf("%s beside an error", set)
			}
			return
		}
		again, err := ParseGPUList(set.String())
		if err != nil || !again.Equal(set) {
			t.Fatalf("%q: %s, again %s, %v", list, set, again, err)
		}
	})
}
