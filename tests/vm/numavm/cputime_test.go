package numavm

import (
	"errors"
	"os"
	"os/exec"
	"testing"
)

func TestCPUTime(t *testing.T) {
	before, err := cpuTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	x := uint32(1)
	eventually(t, "a process that computes uses CPU time", func() bool {
		for range 1 << 22 {
			x = x*1664525 + 1013904223
		}
		now, err := cpuTime(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		return now > before
	})
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if used, err := cpuTime(cmd.Process.Pid); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of a process that is gone: %s, %v (%d)", used, err, x)
	}
}
