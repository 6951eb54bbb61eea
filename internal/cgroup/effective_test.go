package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEffective(t *testing.T) {
	v1 := put(t, map[string]string{
		"new/cpuset.effective_cpus": "0-3\n", "new/cpuset.effective_mems": "0\n",
		"new/cpuset.cpus": "0-5\n", "new/cpuset.mems": "0-1\n",
		"old/cpuset.cpus": "0-5\n", "old/cpuset.mems": "0-1\n",
		"bad/cpuset.cpus": "0-x\n", "bad/cpuset.mems": "0\n",
		"empty/": "",
	})
	for folder, want := range map[string]string{"new": "0-3/0", "old": "0-5/0-1", "bad": "", "empty": ""} {
		paths := Paths{Cpuset: Place{Dir: filepath.Join(v1, folder), Path: "/" + folder}, V2: Place{Dir: v1, Path: "/"}}
		set, err := paths.Effective()
		if want == "" {
			if err == nil || !strings.Contains(err.Error(), filepath.Join(v1, folder)) {
				t.Errorf("v1 %s: %s, error %v", folder, set, err)
			}
			continue
		}
		if err != nil || set.String() != want {
			t.Errorf("v1 %s: %s, %v, want %s", folder, set, err, want)
		}
	}

	root, leaf := slurmV2(t)
	paths, err := Of(root, 100)
	if err != nil {
		t.Fatal(err)
	}
	if set, err := paths.Effective(); err != nil || set.String() != "0-7/0-1" {
		t.Errorf("v2: %s, %v", set, err)
	}
	if cpus, err := paths.CPUs(); err != nil || cpus.String() != "0-7" {
		t.Errorf("v2: CPUs %s, %v", cpus, err)
	}
	// The controller is not enabled in the leaf, nor above it up to the root.
	for _, dir := range []string{leaf, filepath.Dir(leaf)} {
		for _, file := range []string{effectiveCPUs, effectiveMems} {
			if err := os.Remove(filepath.Join(dir, file)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if set, err := paths.Effective(); err != nil || set.String() != "0-15/0-3" {
		t.Errorf("v2, of the root: %s, %v", set, err)
	}
	// No hierarchy has it.
	if err := os.Remove(filepath.Join(root, "sys/fs/cgroup", effectiveCPUs)); err != nil {
		t.Fatal(err)
	}
	if set, err := paths.Effective(); !errors.Is(err, ErrNoCpuset) {
		t.Errorf("no controller: %s, %v", set, err)
	}
	if _, err := (Paths{}).Effective(); !errors.Is(err, ErrNoCpuset) {
		t.Errorf("no cgroup: %v", err)
	}
}

func TestMemsAllowed(t *testing.T) {
	root, _ := slurmV2(t)
	if mems, err := MemsAllowed(root, 100); err != nil || mems.String() != "0-1" {
		t.Errorf("MemsAllowed = %s, %v", mems, err)
	}
	if _, err := MemsAllowed(root, 7); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no process: %v", err)
	}
	for text, want := range map[string]string{"Name:\tx\n": "no Mems_allowed_list", "Mems_allowed_list:\tall\n": `"all"`} {
		root := put(t, map[string]string{"proc/7/status": text})
		if _, err := MemsAllowed(root, 7); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}
