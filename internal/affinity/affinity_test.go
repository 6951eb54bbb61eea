package affinity

import (
	"errors"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gputune/internal/idset"
)

// own pins the test to its thread and puts its affinity back.
func own(t *testing.T) idset.Set {
	t.Helper()
	runtime.LockOSThread()
	before, err := Get(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Set(0, before); err != nil {
			t.Error(err)
		}
		runtime.UnlockOSThread()
	})
	return before
}

func TestGetIsWhatTheKernelShows(t *testing.T) {
	cpus := own(t)
	text, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(`Cpus_allowed_list:\s*(\S+)`).FindSubmatch(text)
	if match == nil || string(match[1]) != cpus.String() {
		t.Errorf("got %s, the kernel shows %q", cpus, match)
	}
}

func TestSet(t *testing.T) {
	cpus := own(t)
	want := idset.Of(cpus.Max())
	if err := Set(0, want); err != nil {
		t.Fatal(err)
	}
	if got, err := Get(0); err != nil || !got.Equal(want) {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
	// CPUs that are not there are left out.
	if err := Set(0, want.Or(idset.Of(idset.Limit-1))); err != nil {
		t.Error(err)
	}
}

func TestSetRefuses(t *testing.T) {
	own(t)
	if err := Set(0, idset.Set{}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("no CPU: %v", err)
	}
	if err := Set(0, idset.Of(idset.Limit-1)); !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "8191") {
		t.Errorf("a CPU that is not there: %v", err)
	}
	if err := Set(1<<22+1, idset.Of(0)); !errors.Is(err, unix.ESRCH) {
		t.Errorf("a process that is not there: %v", err)
	}
	if _, err := Get(1<<22 + 1); !errors.Is(err, unix.ESRCH) {
		t.Errorf("a process that is not there: %v", err)
	}
}
