package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gputune/internal/idset"
)

// state reads the leaf as "cpus/mems effective cpus/effective mems".
func state(t *testing.T, leaf string) string {
	t.Helper()
	set, err := readCpuset(filepath.Join(leaf, cpusFile), filepath.Join(leaf, memsFile))
	if err != nil {
		t.Fatal(err)
	}
	effective, err := effectiveV2(leaf)
	if err != nil {
		t.Fatal(err)
	}
	return set.String() + " " + effective.String()
}

func TestSet(t *testing.T) {
	for _, test := range []struct {
		name         string
		want         Cpuset
		after, log   string
		restored     string
		restoreWrote string
	}{
		{"both", sets("0-3", "0"), "0-3/0 0-3/0", "cpuset.mems=0 cpuset.cpus=0-3", "0-7/0-1 0-7/0-1", "cpuset.mems=0-1 cpuset.cpus=0-7"},
		{"cpus alone", sets("4-5", ""), "4-5/ 4-5/0-1", "cpuset.cpus=4-5", "0-7/ 0-7/0-1", "cpuset.cpus=0-7"},
		{"nodes alone", sets("", "1"), "/1 0-7/1", "cpuset.mems=1", "/0-1 0-7/0-1", "cpuset.mems=0-1"},
		{"nothing", Cpuset{}, "/ 0-7/0-1", "", "/ 0-7/0-1", ""},
		{"all", sets("0-7", "0-1"), "0-7/0-1 0-7/0-1", "cpuset.mems=0-1 cpuset.cpus=0-7", "0-7/0-1 0-7/0-1", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, leaf := slurmV2(t)
			fake := &fakeKernel{t: t}
			confined, err := set(fake, leaf, test.want)
			if err != nil {
				t.Fatal(err)
			}
			if got := state(t, leaf); got != test.after {
				t.Errorf("after Set: %s, want %s", got, test.after)
			}
			if got := strings.Join(fake.log, " "); got != test.log {
				t.Errorf("wrote %s, want %s", got, test.log)
			}
			fake.log = nil
			for range 2 {
				if err := confined.restore(fake); err != nil {
					t.Fatal(err)
				}
				if got := state(t, leaf); got != test.restored {
					t.Errorf("after Restore: %s, want %s", got, test.restored)
				}
			}
			if got := strings.Join(fake.log, " "); got != test.restoreWrote {
				t.Errorf("Restore wrote %s, want %s", got, test.restoreWrote)
			}
		})
	}
}

// What was there before Set comes back, not all that the parent has.
func TestRestoreEarlierSet(t *testing.T) {
	_, leaf := slurmV2(t)
	fake := &fakeKernel{t: t}
	if _, err := set(fake, leaf, sets("2-5", "0-1")); err != nil {
		t.Fatal(err)
	}
	confined, err := set(fake, leaf, sets("2", "1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := confined.restore(fake); err != nil {
		t.Fatal(err)
	}
	if got := state(t, leaf); got != "2-5/0-1 2-5/0-1" {
		t.Errorf("restored to %s", got)
	}
}

func TestSetNotTaken(t *testing.T) {
	for _, test := range []struct {
		name     string
		want     Cpuset
		file     string
		wrote    string
		uses     string
		restored string
	}{
		{"CPUs outside", sets("8-9", "0"), cpusFile, "8-9", "0-7", "0-7/0-1 0-7/0-1"},
		{"some CPUs outside", sets("6-9", ""), cpusFile, "6-9", "6-7", "0-7/ 0-7/0-1"},
		{"nodes outside", sets("0-3", "2"), memsFile, "2", "0-1", "/0-1 0-7/0-1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, leaf := slurmV2(t)
			_, err := set(&fakeKernel{t: t}, leaf, test.want)
			var bad *NotTakenError
			if !errors.As(err, &bad) {
				t.Fatalf("error %v, want a NotTakenError", err)
			}
			if bad.File != filepath.Join(leaf, test.file) || bad.Wrote.String() != test.wrote || bad.Effective.String() != test.uses {
				t.Errorf("got %+v", bad)
			}
			if text := err.Error(); !strings.Contains(text, "wrote "+test.wrote) || !strings.Contains(text, "uses "+test.uses) {
				t.Errorf("error text %s", text)
			}
			if got := state(t, leaf); got != test.restored {
				t.Errorf("left at %s, want %s", got, test.restored)
			}
		})
	}
}

func TestSetFails(t *testing.T) {
	_, leaf := slurmV2(t)
	_, err := set(&fakeKernel{t: t, fail: map[string]error{cpusFile: syscall.EBUSY}}, leaf, sets("0-3", "0"))
	if !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "write 0-3 to "+filepath.Join(leaf, cpusFile)) {
		t.Errorf("error %v", err)
	}
	if got := state(t, leaf); got != "/0-1 0-7/0-1" {
		t.Errorf("left at %s: the nodes should be put back", got)
	}
	// A restore that fails is told beside the reason for it.
	_, leaf = slurmV2(t)
	fake := &fakeKernel{t: t}
	confined, err := set(fake, leaf, sets("0-3", "0"))
	if err != nil {
		t.Fatal(err)
	}
	fake.fail = map[string]error{memsFile: syscall.EIO}
	if err := confined.restore(fake); !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "write 0-1 to "+filepath.Join(leaf, memsFile)) {
		t.Errorf("restore: %v", err)
	}
	if got := state(t, leaf); got != "0-7/0 0-7/0" {
		t.Errorf("left at %s: the CPUs should be put back", got)
	}
}

func TestRestoreTakenOver(t *testing.T) {
	_, leaf := slurmV2(t)
	fake := &fakeKernel{t: t}
	confined, err := set(fake, leaf, sets("0-3", "0"))
	if err != nil {
		t.Fatal(err)
	}
	if err := fake.write(filepath.Join(leaf, cpusFile), "1"); err != nil {
		t.Fatal(err)
	}
	err = confined.restore(fake)
	var taken *TakenOverError
	if !errors.As(err, &taken) || taken.Found.String() != "1" || taken.Wrote.String() != "0-3" {
		t.Errorf("error %v", err)
	}
	if got := state(t, leaf); got != "1/0-1 1/0-1" {
		t.Errorf("left at %s", got)
	}
}

func TestRestoreGone(t *testing.T) {
	_, leaf := slurmV2(t)
	confined, err := set(&fakeKernel{t: t}, leaf, sets("0-3", "0"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(leaf); err != nil {
		t.Fatal(err)
	}
	if err := confined.Restore(); err != nil {
		t.Errorf("error %v", err)
	}
	if err := (Confined{}).Restore(); err != nil {
		t.Errorf("nothing done: %v", err)
	}
}

// Set and Restore over the plain files, which take every value: the effective
// files have to be those that are asked for.
func TestSetThroughFiles(t *testing.T) {
	root, leaf := slurmV2(t)
	paths, err := Of(root, 100)
	if err != nil {
		t.Fatal(err)
	}
	if err := paths.Confine(100, idset.MustParse("0-7"), idset.MustParse("0-1")); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(leaf, cpusFile))
	if err != nil || string(text) != "0-7" {
		t.Errorf("cpuset.cpus has %q, %v", text, err)
	}
	err = paths.Confine(100, idset.MustParse("0-3"), idset.Set{})
	var bad *NotTakenError
	if !errors.As(err, &bad) {
		t.Errorf("error %v, want a NotTakenError: nothing changes effective files here", err)
	}
}

func TestSetRefuses(t *testing.T) {
	root, leaf := slurmV2(t)
	own, err := Of(root, 100)
	if err != nil {
		t.Fatal(err)
	}
	shared := own
	shared.V2.Path = filepath.Join(filepath.Dir(taskPath), "task_special")
	foreign := own
	foreign.V2.Path = "/user.slice"
	v1 := own
	v1.Cpuset = Place{Dir: leaf, Path: "/slurm/uid_0/job_1/step_0"}
	for _, test := range []struct {
		name   string
		paths  Paths
		pid    int
		reason string
	}{
		{"shared", shared, 100, "task_special"},
		{"foreign", foreign, 100, "not one of Slurm's cgroups"},
		{"another process", own, 7, "process 7 is not in"},
		{"v1", v1, 100, "cgroup v1"},
		{"none", Paths{}, 100, "no such cgroup"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := test.paths.Set(test.pid, sets("0", "0"))
			var refused *NotOwnError
			if !errors.As(err, &refused) || !strings.Contains(refused.Reason, test.reason) {
				t.Errorf("error %v, want a NotOwnError with %q", err, test.reason)
			}
			if got := state(t, leaf); got != "/ 0-7/0-1" {
				t.Errorf("left at %s", got)
			}
		})
	}
	// The controller is not there: nothing may be created in its place.
	if err := os.Remove(filepath.Join(leaf, cpusFile)); err != nil {
		t.Fatal(err)
	}
	_, err = own.Set(100, sets("0", "0"))
	var refused *NotOwnError
	if !errors.As(err, &refused) || !strings.Contains(refused.Reason, "controller is not enabled") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(filepath.Join(leaf, cpusFile)); !os.IsNotExist(err) {
		t.Errorf("the file was made: %v", err)
	}
}
