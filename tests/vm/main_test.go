//go:build vm

// Package vm tests the plugin in a virtual NUMA machine: on a real cgroup v2 with
// cpusets, memory policies and constrained devices, in each Slurm that Debian has.
//
// What a task should have is worked out here, from what lstopo says about the
// machine and from the rules that the README promises; what it has is what the
// kernel says (guest/look-at-task).
package vm

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gputune/tests/fakemps"
	"gputune/tests/fakenvml"
	"gputune/tests/vm/numavm"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if err := build(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// Where the guest finds what build makes.
const (
	guestBuild = "/host/tree/build"
	guestTools = guestBuild + "/vm-tools"
)

// build makes what the guests run, below build/: gputune as installed for each
// release (vm-root-<release>), and the programs of these tests (vm-tools).
func build() error {
	tree, err := numavm.FindTree()
	if err != nil {
		return err
	}
	tools := filepath.Join(tree, "build/vm-tools")
	if err := os.MkdirAll(tools, 0o755); err != nil {
		return err
	}
	commands := [][]string{
		{
			"go", "build", "-o", tools, "./tests/vm/cmd/escape", "./tests/vm/cmd/confine", "./tests/vm/cmd/hold", "./tests/vm/cmd/wander",
			"./tests/vm/cmd/listing", "./tests/vm/cmd/worker",
		},
		{"go", "test", "-c", "-o", filepath.Join(tools, "cgroup.test"), "./internal/cgroup"},
		{"go", "test", "-c", "-o", filepath.Join(tools, "kernel.test"), "./tests/kernel"},
		{"cc", "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-static", "-Wall", "-Wextra", "-Werror", "-o", filepath.Join(tools, "look-at-task"), "tests/vm/testdata/look-at-task.c"},
	}
	for _, suite := range numavm.Suites() {
		root := filepath.Join(tree, "build/vm-root-"+suite.Slurm())
		if err := os.RemoveAll(root); err != nil {
			return err
		}
		commands = append(commands,
			[]string{"make", "-s", "install", "DESTDIR=" + root, "SLURM=" + suite.Slurm()},
			[]string{
				"cc", "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror",
				"-DSLURM_RELEASE=" + releaseNumber(suite.Slurm()), "-o", filepath.Join(tools, "namespace-"+suite.Slurm()+".so"),
				"tests/vm/testdata/namespace.c",
			})
	}
	if _, err := fakenvml.Build(context.Background(), filepath.Join(tools, "nvml")); err != nil {
		return err
	}
	if _, err := fakemps.Build(context.Background(), filepath.Join(tools, "mps")); err != nil {
		return err
	}
	for _, argv := range commands {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Dir = tree
		// The guest's libc is not this machine's; and a jobserver of the make that started this is not for the one below.
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "MAKEFLAGS=", "MFLAGS=")
		if argv[0] == "make" {
			cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
		}
		if output, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), err, output)
		}
	}
	return nil
}

// releaseNumber writes a release as plugin_version has it: 22.05 is 0x160500.
func releaseNumber(release string) string {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		panic(fmt.Sprintf("release %q: %v", release, err))
	}
	return fmt.Sprintf("0x%02x%02x00", major, minor)
}
