package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gputune/internal/topology"
	"gputune/tests/machines"
)

func execute(t *testing.T, arguments ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errOut bytes.Buffer
	root := command()
	root.SetArgs(arguments)
	root.SetOut(&out)
	root.SetErr(&errOut)
	err = root.Execute()
	return out.String(), errOut.String(), err
}

func render(t *testing.T, name string) string {
	t.Helper()
	dir, remove, err := machines.Scratch()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := remove(); err != nil {
			t.Error(err)
		}
	})
	description, err := machines.Get(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := description.Render(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestCheck(t *testing.T) {
	for value, accepted := range map[string]bool{
		"": true, "on": true, "cpus=exclusive,mem=bind,strict": true, "--version": false, "cpus=sideways": false,
	} {
		_, _, err := execute(t, "check", "--gpu-numa-bind", value)
		var refused refusal
		if (err == nil) != accepted || (err != nil && !errors.As(err, &refused)) {
			t.Errorf("%q: %v", value, err)
		}
	}
	// A wrong call of the program is no judgement of a value.
	_, _, err := execute(t, "check", "--no-such-option", "x")
	var refused refusal
	if err == nil || errors.As(err, &refused) {
		t.Errorf("got %v", err)
	}
}

func TestTopoJSON(t *testing.T) {
	stdout, _, err := execute(t, "topo", "--topology", render(t, "demo-dual"), "--format", "json")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Source string
		GPUs   []struct {
			Index            int
			PCI, UUID, Nodes string
			CPUs             string
		}
		Nodes []struct {
			ID        int
			CPUs      string
			MemoryMiB int64 `json:"memory_mib"`
			Distances map[string]int
		}
		Packages []map[string]any
		NICs     []map[string]any
		Warnings []string
	}
	decoder := json.NewDecoder(strings.NewReader(stdout))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if len(got.GPUs) != 4 || got.GPUs[3].Index != 3 || got.GPUs[3].Nodes != "1" || got.GPUs[3].CPUs != "1" || !strings.HasPrefix(got.GPUs[3].UUID, "GPU-") {
		t.Errorf("gpus: %+v", got.GPUs)
	}
	if len(got.Nodes) != 2 || got.Nodes[1].CPUs != "1" || got.Nodes[1].MemoryMiB == 0 || len(got.Nodes[1].Distances) != 2 || len(got.Packages) != 2 {
		t.Errorf("nodes: %+v, packages %v", got.Nodes, got.Packages)
	}
	for _, list := range []string{`"nics": [`, `"warnings": [`} {
		if !strings.Contains(stdout, list) {
			t.Errorf("%s: want a list, also an empty one:\n%s", list, stdout)
		}
	}
}

func TestTopoText(t *testing.T) {
	stdout, _, err := execute(t, "topo", "--topology", render(t, "gpu-at-minus-one"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"0     0        0-7,16-23   62 GiB  10:0 21:1  0     -",
		"0    0000:17:00.0  0        0-7,16-23",
		"1    0000:b1:00.0  unknown",
		"warning: ",
	} {
		if !strings.Contains(stdout, line) {
			t.Errorf("want %q in\n%s", line, stdout)
		}
	}
}

func TestTopoRefuses(t *testing.T) {
	if _, _, err := execute(t, "topo", "--format", "yaml"); err == nil || !strings.Contains(err.Error(), "want text, json or svg") {
		t.Errorf("got %v", err)
	}
	if _, _, err := execute(t, "topo", "--topology", t.TempDir()); !errors.Is(err, topology.ErrNoCPUs) {
		t.Errorf("got %v", err)
	}
}

func TestSnapshot(t *testing.T) {
	machine := render(t, "demo-dual")
	folder := t.TempDir()
	config := filepath.Join(folder, "gputune.toml")
	snapshot := filepath.Join(folder, "run", "topology.json")
	text := fmt.Sprintf("[paths]\nmachine = %q\nsnapshot = %q\n", machine, snapshot)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, stderr, err := execute(t, "snapshot", "--config", config); err != nil || stderr != "" {
		t.Fatalf("%v, %q", err, stderr)
	}
	if os.Getuid() == 0 { // a snapshot of anybody else is not trusted
		got, err := topology.ReadSnapshot(machine, snapshot)
		if err != nil || len(got.GPUs) != 4 || len(got.Cores) != 2 {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if _, _, err := execute(t, "snapshot", "--config", filepath.Join(folder, "absent.toml")); err == nil {
		t.Error("a configuration that is not there was accepted")
	}
}
