package slurm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gputune/internal/topology"
)

// machine returns n GPUs whose minor numbers run against their PCI order, as on
// nodes where the driver found them in another order than the bus has them.
func machine(n int) *topology.Machine {
	m := &topology.Machine{}
	for i := range n {
		m.GPUs = append(m.GPUs, topology.GPU{
			Index: i, PCI: fmt.Sprintf("0000:%02x:00.0", 16*(i+1)), UUID: fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i),
			Minor: n - 1 - i, Model: "NVIDIA A100-SXM4-80GB",
		})
	}
	return m
}

// shape writes an order as "device>gpu", with the UUID of a MIG device behind it
// and a question mark if it is in doubt.
func shape(entries []Entry) string {
	var words []string
	for i, entry := range entries {
		if entry.Index != i {
			return fmt.Sprintf("entry %d has index %d", i, entry.Index)
		}
		word := fmt.Sprintf("%s>%d", strings.TrimPrefix(entry.Device, "/dev/nvidia"), entry.GPU)
		if entry.MIG != "" {
			word += "/" + entry.MIG
		}
		if entry.Doubt != "" {
			word += "?"
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// The orders of cases marked "22.05" are those of slurmd -G of that release, with
// device nodes of the driver's major number and, for AutoDetect, Slurm's own file
// of made up GPUs (fake_gpus.conf).
func TestGPUOrder(t *testing.T) {
	gpu := func(typ string, count int) DeclaredGPU { return DeclaredGPU{Type: typ, Count: count} }
	// Four GPUs; by PCI address their device files are nvidia 3, 2, 1, 0.
	for _, test := range []struct {
		name, text string
		declared   []DeclaredGPU
		want       string
	}{
		{"one line", "Name=gpu File=/dev/nvidia[0-3]", nil, "0>3 1>2 2>1 3>0"},
		{"lines as they come, 22.05", "Name=gpu File=/dev/nvidia[2-3]\nName=gpu File=/dev/nvidia[0-1]", []DeclaredGPU{gpu("", 4)}, "2>1 3>0 0>3 1>2"},
		{"files as they come, 22.05", "NodeName=n1 Name=gpu File=/dev/nvidia3,/dev/nvidia[0-1]\nNodeName=other Name=gpu File=/dev/nvidia[0-3]", []DeclaredGPU{gpu("", 3)}, "3>0 0>3 1>2"},
		{"types of slurm.conf first, 22.05", "NodeName=n1 Name=gpu Type=v100 File=/dev/nvidia[2-3]\nNodeName=n1 Name=gpu Type=a100 File=/dev/nvidia[0-1]", []DeclaredGPU{gpu("a100", 2), gpu("v100", 2)}, "0>3 1>2 2>1 3>0"},
		{"types that slurm.conf does not have, 22.05", "Name=gpu Type=v100 File=/dev/nvidia[2-3]\nName=gpu Type=a100 File=/dev/nvidia[0-1]", []DeclaredGPU{gpu("", 4)}, "2>1 3>0 0>3 1>2"},
		{"more than slurm.conf has, 22.05", "Name=gpu File=/dev/nvidia[0-3]", []DeclaredGPU{gpu("", 2)}, "0>3 1>2"},
		{"less than slurm.conf has", "Name=gpu File=/dev/nvidia1", []DeclaredGPU{gpu("", 2)}, "1>2 >-1?"},
		{"a type that slurm.conf lacks, 22.05", "Name=gpu Type=v100 File=/dev/nvidia0\nName=gpu Type=a100 File=/dev/nvidia1", []DeclaredGPU{gpu("a100", 1)}, "1>2"},
		{"names and nodes, 22.05", "NodeName=n[0-1] Name=gpu File=/dev/nvidia1\nnodename=n1 name=GPU file=\"/dev/nvidia2\"\nNodeName=n2 Name=gpu File=/dev/nvidia0\nName=mps Count=100 File=/dev/nvidia3", []DeclaredGPU{gpu("", 2)}, "1>2 2>1"},
		{"MultipleFiles are one, 22.05", "Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[21-22]\nName=gpu MultipleFiles=/dev/nvidia-caps/nvidia-cap[30-31],/dev/nvidia1", []DeclaredGPU{gpu("", 2)}, "0>3 1>2"},
		{"none of MultipleFiles is a GPU's", "Name=gpu MultipleFiles=/dev/nvidia8,/dev/nvidia-caps/nvidia-cap21", nil, "8>-1?"},
		{"a file that is no GPU's", "Name=gpu File=/dev/nvidia[0,9]", nil, "0>3 9>-1?"},
		{"counted without files", "Name=gpu Count=2", nil, ">-1? >-1?"},
		{"the node has none", "Name=gpu File=/dev/nvidia0", []DeclaredGPU{}, ""},
		{"nothing said", "", nil, "0>3? 1>2? 2>1? 3>0?"},
		{"nothing for this node", "NodeName=n2 Name=gpu File=/dev/nvidia0", nil, "0>3? 1>2? 2>1? 3>0?"},
		{"nothing said but a count", "", []DeclaredGPU{gpu("", 2)}, ">-1? >-1?"},

		{"nvml, 22.05", "AutoDetect=nvml", []DeclaredGPU{gpu("", 4)}, "3>0 2>1 1>2 0>3"},
		{"nvml without slurm.conf", "AutoDetect=nvml", nil, "3>0 2>1 1>2 0>3"},
		{"nvml and all listed, 22.05", "AutoDetect=nvml\nName=gpu File=/dev/nvidia[0-3]", []DeclaredGPU{gpu("", 4)}, "3>0 2>1 1>2 0>3"},
		{"nvml and some listed, 22.05", "AutoDetect=nvml\nName=gpu File=/dev/nvidia[0,2]", []DeclaredGPU{gpu("", 2)}, "2>1 0>3"},
		{"nvml and one not found, 22.05", "AutoDetect=nvml\nName=gpu File=/dev/nvidia[0-1,5]", []DeclaredGPU{gpu("", 3)}, "1>2 0>3 5>-1?"},
		{"nvml and fewer declared, 22.05", "AutoDetect=nvml", []DeclaredGPU{gpu("", 2)}, "1>2 0>3"}, // the first two files are taken
		{"nvml and more declared, 22.05", "AutoDetect=nvml", []DeclaredGPU{gpu("", 6)}, "3>0 2>1 1>2 0>3"},
		{"nvml and none declared", "AutoDetect=nvml", []DeclaredGPU{}, ""},
		{"nvml and a type, 22.05", "AutoDetect=nvml", []DeclaredGPU{gpu("a100", 4)}, "3>0 2>1 1>2 0>3"},
		{"nvml and another type, 22.05", "AutoDetect=nvml", []DeclaredGPU{gpu("h100", 4)}, ""},
		{"nvml and a file of another type, 22.05", "AutoDetect=nvml\nName=gpu Type=k80 File=/dev/nvidia3", []DeclaredGPU{gpu("k80", 1)}, "3>0"},
		{"nvml and types that nobody declares, 22.05", "AutoDetect=nvml\nName=gpu Type=k80 File=/dev/nvidia[0,3]", []DeclaredGPU{gpu("", 2)}, "3>0 0>3"},
		{"nvml and types that it does not find, 22.05", "AutoDetect=nvml\nName=gpu Type=k80 File=/dev/nvidia[0,3]", []DeclaredGPU{gpu("k80", 2)}, "0>3 3>0"},
		{"nvml, types and files", "AutoDetect=nvml\nName=gpu Type=k80 File=/dev/nvidia3\nName=gpu Type=a100 File=/dev/nvidia[0-2]", nil, "2>1 1>2 0>3 3>0"},
		{"nvml and some without files, 22.05", "AutoDetect=nvml\nName=gpu File=/dev/nvidia[0,2]", []DeclaredGPU{gpu("", 3)}, "2>1 1>2 0>3"},
		{"nvml for this node", "NodeName=n1 AutoDetect=nvml\nNodeName=n2 AutoDetect=off", nil, "3>0 2>1 1>2 0>3"},
		{"off for this node", "AutoDetect=nvml\nNodeName=n1 AutoDetect=off Name=gpu File=/dev/nvidia[0-3]", nil, "0>3 1>2 2>1 3>0"},
		{"in a line without a node it does not count", "Name=gpu AutoDetect=nvml File=/dev/nvidia[0-3]", nil, "0>3 1>2 2>1 3>0"},
		{"nvidia", "AutoDetect=nvidia", []DeclaredGPU{gpu("", 4)}, "0>3 1>2 2>1 3>0"},
		{"nvidia and listed", "AutoDetect=nvidia\nName=gpu File=/dev/nvidia3,/dev/nvidia1,/dev/nvidia7", nil, "1>2 3>0 7>-1?"},
		{"another vendor's", "AutoDetect=rsmi\nName=gpu File=/dev/nvidia[2,0]", nil, "2>1 0>3"},
	} {
		t.Run(test.name, func(t *testing.T) {
			gres, err := ReadGres(filepath.Join(write(t, map[string]string{"gres.conf": test.text}), "gres.conf"))
			if err != nil {
				t.Fatal(err)
			}
			gres.Declared = test.declared
			if got := shape(GPUOrder(gres, "n1", machine(4), nil)); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestGPUOrderManyFiles(t *testing.T) {
	gres := Gres{AutoDetect: "nvidia"}
	if got, want := shape(GPUOrder(gres, "n1", machine(12), nil)), "0>11 1>10 2>9 3>8 4>7 5>6 6>5 7>4 8>3 9>2 10>1 11>0"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestGPUOrderTypes(t *testing.T) {
	m := machine(4)
	m.GPUs[0].Model, m.GPUs[2].Model = "Tesla K20m1", "Tesla K20m"
	m.GPUs[1].Model, m.GPUs[3].Model = "Tesla K20m1", "Tesla K20m"
	gres := Gres{AutoDetect: "nvml", Declared: []DeclaredGPU{{"k20m", 2}, {"k20m1", 1}}}
	// As slurmd -G of 22.05 has it: the longer type goes to the first of its files.
	if got, want := shape(GPUOrder(gres, "n1", m, nil)), "3>0 2>1 0>3"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	m.GPUs[0].Model = "" // sysfs does not tell names
	if got := GPUOrder(gres, "n1", m, nil); len(got) != 3 {
		t.Errorf("got %q", shape(got))
	}
}

func TestGPUOrderMIG(t *testing.T) {
	m := machine(3)
	m.GPUs[0].MIG = []string{"MIG-a", "MIG-b"}
	for _, test := range []struct {
		text, want string
	}{
		{"AutoDetect=nvml", "1>1 0>2 2>0/MIG-a? 2>0/MIG-b?"},
		{"AutoDetect=nvml\nName=gpu MultipleFiles=/dev/nvidia2,/dev/nvidia-caps/nvidia-cap[1-2]", "2>0/MIG-a?"},
		{"Name=gpu MultipleFiles=/dev/nvidia2,/dev/nvidia-caps/nvidia-cap[1-2]\nName=gpu File=/dev/nvidia1", "2>0 1>1"},
	} {
		gres, err := ReadGres(filepath.Join(write(t, map[string]string{"gres.conf": test.text}), "gres.conf"))
		if err != nil {
			t.Fatal(err)
		}
		if got := shape(GPUOrder(gres, "n1", m, nil)); got != test.want {
			t.Errorf("%s: got %q, want %q", test.text, got, test.want)
		}
	}
}

// The device node's own number counts, not that in its name.
func TestGPUOrderDeviceNumbers(t *testing.T) {
	devices := func(path string) (int, int, error) {
		switch path {
		case "/fake/gpu-a":
			return 195, 2, nil
		case "/fake/nvidia0":
			return 195, 1, nil
		case "/fake/nvidia1": // stands for a GPU but is none
			return 1, 3, nil
		default:
			return 0, 0, errors.New("no such device")
		}
	}
	record := GresRecord{Name: "gpu", Count: 4, Files: []string{"/fake/gpu-a", "/fake/nvidia0", "/fake/nvidia1", "/fake/nvidia3"}}
	got := shape(GPUOrder(Gres{Records: []GresRecord{record}}, "n1", machine(4), devices))
	if want := "/fake/gpu-a>1 /fake/nvidia0>2 /fake/nvidia1>2 /fake/nvidia3>0"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	// A detected GPU keeps the name that the file gives it.
	record.Files, record.Count = []string{"/fake/gpu-a"}, 1
	got = shape(GPUOrder(Gres{AutoDetect: "nvml", Records: []GresRecord{record}}, "n1", machine(4), devices))
	if want := "/fake/gpu-a>1"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	// Without known minor numbers a file is nobody's.
	m := machine(1)
	m.GPUs[0].Minor = -1
	if got, want := shape(GPUOrder(Gres{Records: []GresRecord{record}}, "n1", m, nil)), "/fake/gpu-a>-1?"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := shape(GPUOrder(Gres{AutoDetect: "nvml"}, "n1", m, nil)), ">0"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestDevices(t *testing.T) {
	major, minor, err := Devices("/")("/dev/null")
	if err != nil || major != 1 || minor != 3 {
		t.Errorf("/dev/null is %d:%d, %v, want 1:3", major, minor, err)
	}
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "dev/nvidia0"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Devices(root)("/dev/nvidia0"); err == nil || !strings.Contains(err.Error(), "not a character device") {
		t.Errorf("plain file: %v", err)
	}
	if _, _, err := Devices(root)("/dev/nvidia1"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	// Numbers of 12 bits and of 20, as glibc's makedev packs them.
	for device, want := range map[uint64][2]int{
		0xc303:           {195, 3},
		0xc3ff:           {195, 255},
		0x1000c300:       {195, 0x10000},
		0xffff_ffff:      {0xfff, 0xfffff},
		0x12345_00000000: {0x12000, 0x34500000},
	} {
		if major, minor := splitDevice(device); [2]int{major, minor} != want {
			t.Errorf("device %#x is %d:%d, want %d:%d", device, major, minor, want[0], want[1])
		}
	}
}

func TestCompareNatural(t *testing.T) {
	ordered := []string{"", "/dev/nvidia", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia1,/dev/nvidia-caps/nvidia-cap3", "/dev/nvidia2", "/dev/nvidia10", "/dev/nvidia10x", "a01b2", "a1b10", "b"}
	for i, a := range ordered {
		for j, b := range ordered {
			if got := compareNatural(a, b); got < 0 != (i < j) || got > 0 != (i > j) {
				t.Errorf("compareNatural(%q, %q) = %d", a, b, got)
			}
		}
	}
	if compareNatural("n01", "n1") != 0 {
		t.Error("zeros in front of a number count")
	}
}
