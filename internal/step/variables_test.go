package step

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gputune/conf"
	"gputune/internal/idset"
	"gputune/internal/topology"
	"gputune/tests/machines"
)

const environment = `[environment]
NCCL_IB_HCA = "={nic}"
UCX_NET_DEVICES = "{nics}"
NODE = "{node}"
MALLOC_CONF = "narenas:8"
`

// withNICs is laidOut for a site that has templates, on a machine with two network
// devices of node 0, one at each GPU's root port, and two of node 1 at ports of
// their own. A third one of node 0 is nearest to GPU 0 and its link is down.
func withNICs(t *testing.T, cgroupConf, environment string) Request {
	t.Helper()
	request := laidOut(t, cgroupConf)
	description, err := machines.Get("demo-dual")
	if err != nil {
		t.Fatal(err)
	}
	for i, nic := range []struct {
		pci     string
		bridges []string
		node    int
	}{
		{"0000:18:00.0", description.GPUs[0].Bridges, 0},
		{"0000:3e:00.0", description.GPUs[1].Bridges, 0},
		{"0000:a1:00.0", []string{"0000:a0:01.0"}, 1},
		{"0000:a2:00.0", []string{"0000:a0:02.0"}, 1},
		{"0000:19:00.0", description.GPUs[0].Bridges, 0},
	} {
		description.NICs = append(description.NICs, machines.NIC{
			PCI: nic.pci, Bridges: nic.bridges, Node: nic.node, InfiniBand: []string{fmt.Sprintf("mlx5_%d", i)},
		})
	}
	root := filepath.Join(filepath.Dir(request.Config), "machine-with-nics")
	if err := description.Render(root); err != nil {
		t.Fatal(err)
	}
	for i := range description.NICs {
		port := filepath.Join(root, "sys/class/infiniband", fmt.Sprintf("mlx5_%d", i), "ports/1")
		if err := os.MkdirAll(port, 0o755); err != nil {
			t.Fatal(err)
		}
		state := []string{"4: ACTIVE\n", "1: DOWN\n"}[i/4]
		if err := os.WriteFile(filepath.Join(port, "state"), []byte(state), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text := fmt.Sprintf("[paths]\nmachine = %q\nsnapshot = %q\n%s", root, filepath.Join(root, "none.json"), environment)
	if err := os.WriteFile(request.Config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return request
}

// bind binds sleepers that may open these GPUs.
func bind(t *testing.T, s *Step, access ...string) Result {
	t.Helper()
	tasks := sleepers(t, len(access))
	if err := s.Locate(tasks); err != nil {
		t.Fatal(err)
	}
	for i, gpus := range access {
		tasks[i].Access, tasks[i].Probed = idset.MustParse(gpus), nil
	}
	result, err := s.Bind(tasks)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// Each task has the devices nearest to its GPUs, those of one node in turn.
func TestVariables(t *testing.T) {
	s := open(t, withNICs(t, "ConstrainDevices=yes\n", environment))
	result := bind(t, s, "1", "0", "3", "2", "2-3", "0-1")
	set := func(nic, nics, node string) string {
		return strings.Join([]string{"MALLOC_CONF=narenas:8", "NCCL_IB_HCA==" + nic, "NODE=" + node, "UCX_NET_DEVICES=" + nics}, " ")
	}
	for i, want := range []string{
		set("mlx5_1", "mlx5_1", "0"), set("mlx5_0", "mlx5_0", "0"),
		set("mlx5_2", "mlx5_2,mlx5_3", "1"), set("mlx5_3", "mlx5_3,mlx5_2", "1"), set("mlx5_2", "mlx5_2,mlx5_3", "1"),
		set("mlx5_0", "mlx5_0,mlx5_1", "0"),
	} {
		got := result.Tasks[i]
		if strings.Join(got.Variables.Set, " ") != want || len(got.Variables.Left) > 0 || !got.Variables.GPUs.Equal(got.Sees) {
			t.Errorf("task %d: %+v, want %s", i, got.Variables, want)
		}
	}
	if got := result.Anywhere; strings.Join(got.Set, " ") != "MALLOC_CONF=narenas:8" || strings.Join(got.Left, " ") != "NCCL_IB_HCA NODE UCX_NET_DEVICES" {
		t.Errorf("a task anywhere: %+v", got)
	}
	for i, nic := range []string{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"} {
		if got := result.OfGPU[i]; !got.GPUs.Equal(idset.Of(i)) || !slices.Contains(got.Set, "NCCL_IB_HCA=="+nic) {
			t.Errorf("GPU %d: %+v, want %s", i, got, nic)
		}
	}
}

// Tasks whose environment decides are taken to see all GPUs of the step, and to be
// paired with them.
func TestVariablesWhereTheEnvironmentDecides(t *testing.T) {
	for option, want := range map[string]string{
		"":         "0-1 mlx5_0, 2-3 mlx5_2",
		"gpus=all": "0-3 mlx5_0, 0-3 mlx5_1",
	} {
		request := withNICs(t, "", environment)
		request.Option = option
		var got []string
		for _, task := range bind(t, open(t, request), "0-3", "0-3").Tasks {
			for _, variable := range task.Variables.Set {
				if nic, is := strings.CutPrefix(variable, "NCCL_IB_HCA=="); is {
					got = append(got, task.Variables.GPUs.String()+" "+nic)
				}
			}
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s: %v, want %s", option, got, want)
		}
	}
}

func TestNoVariables(t *testing.T) {
	// Off, for steps with MIG devices alone.
	request := withNICs(t, "ConstrainDevices=yes\n", environment)
	request.Option = "off"
	off := bind(t, open(t, request), "0")
	// No template.
	none := bind(t, open(t, withNICs(t, "ConstrainDevices=yes\n", "")), "0")
	for _, result := range []Result{off, none} {
		if v := result.Tasks[0].Variables; len(v.Set)+len(v.Left)+len(result.OfGPU) > 0 {
			t.Errorf("%+v, %+v", v, result.OfGPU)
		}
	}
	// The bus is looked at for those that need it alone.
	for text, nics := range map[string]int{"A = \"{node}\"\n": 0, "A = \"x\"\n": 0, "A = \"{nics}\"\n": 4, "A = \"{node} {nic}\"\n": 4} {
		s := open(t, withNICs(t, "", "[environment]\n"+text))
		if len(s.templates.nics) != nics {
			t.Errorf("%q: %d network devices, want %d", text, len(s.templates.nics), nics)
		}
	}
	// A machine that has none: what needs none is set.
	request = laidOut(t, "ConstrainDevices=yes\n")
	text, err := os.ReadFile(request.Config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(request.Config, append(text, environment...), 0o644); err != nil {
		t.Fatal(err)
	}
	if v := bind(t, open(t, request), "3").Tasks[0].Variables; strings.Join(v.Set, " ") != "MALLOC_CONF=narenas:8 NODE=1" || strings.Join(v.Left, " ") != "NCCL_IB_HCA UCX_NET_DEVICES" {
		t.Errorf("without network devices: %+v", v)
	}
}

// A snapshot's devices are taken from it, with nothing read from the bus.
func TestVariablesFromASnapshot(t *testing.T) {
	request := withNICs(t, "ConstrainDevices=yes\n", environment)
	config, err := conf.Load(request.Config)
	if err != nil {
		t.Fatal(err)
	}
	root := string(config.Paths.Machine)
	machine, err := topology.Read(root, topology.Options{NICs: true})
	if err != nil {
		t.Fatal(err)
	}
	machine.NICs = machine.NICs[3:4]
	if err := os.MkdirAll(filepath.Join(root, "proc/sys/kernel/random"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "proc/sys/kernel/random/boot_id"), []byte("b\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := topology.WriteSnapshot(root, string(config.Paths.Snapshot), machine); err != nil {
		t.Fatal(err)
	}
	if s := open(t, request); len(s.templates.nics) != 1 || s.templates.nics[0].PCI != machine.NICs[0].PCI {
		t.Errorf("%+v, log %v", s.templates.nics, s.Log)
	}
}

func TestPack(t *testing.T) {
	v := Variables{Set: []string{"A=1", "LONG=" + strings.Repeat("x", 20), "Z=2"}, Left: []string{"NIC"}}
	got, err := v.Pack(14)
	if got != "A=1\x00Z=2\x00NIC\x00\x00" || !errors.Is(err, ErrNoRoom) || !strings.Contains(err.Error(), "LONG=xxx") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := v.Pack(100); strings.Count(got, "\x00") != 5 || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := (Variables{}).Pack(1); got != "\x00" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}
