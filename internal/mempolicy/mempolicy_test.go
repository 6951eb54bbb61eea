package mempolicy

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gputune/internal/cgroup"
	"gputune/internal/idset"
	"gputune/internal/placement"
)

// The kernel shows in numa_maps what policy memory of the thread is under.
func TestSet(t *testing.T) {
	if _, err := os.Stat("/proc/self/numa_maps"); err != nil {
		t.Skip("a kernel without NUMA")
	}
	mems, err := cgroup.MemsAllowed("/", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	node := idset.Of(mems.Min())
	for mode, shown := range map[placement.MemMode]string{
		placement.MemNone: "default", placement.MemPrefer: "prefer:", placement.MemBind: "bind:", placement.MemInterleave: "interleave:",
	} {
		if shown != "default" {
			shown += node.String()
		}
		done := make(chan error)
		go func() { // a thread of its own, which ends with it: the policy is no other test's
			runtime.LockOSThread()
			done <- func() error {
				got, err := Set(mode, node)
				if err != nil || !got.Equal(node) {
					return fmt.Errorf("nodes %s: %w", got, err)
				}
				maps, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/numa_maps", unix.Gettid()))
				if err != nil {
					return err
				}
				if !strings.Contains(string(maps), " "+shown+" ") {
					return fmt.Errorf("%s is not in\n%.300s", shown, maps)
				}
				return nil
			}()
		}()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", mode, err)
		}
	}
	for _, nodes := range []idset.Set{{}, idset.Of(maxNodes), idset.Of(maxNodes - 1)} {
		if _, err := Set(placement.MemBind, nodes); !errors.Is(err, unix.EINVAL) {
			t.Errorf("nodes %q: %v, want EINVAL", nodes, err)
		}
	}
}
