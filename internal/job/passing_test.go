package job

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gputune/internal/ledger"
	"gputune/internal/setting"
)

// flaky is a GPU whose power limit cannot be set for some calls.
type flaky struct {
	setting.Device
	limit uint32
	fails int
	err   error
	calls int
}

func (f *flaky) PCI() string                 { return "0000:07:00.0" }
func (f *flaky) PowerLimit() (uint32, error) { return f.limit, nil }
func (f *flaky) PowerLimits() (low, high, standard uint32, err error) {
	return 200000, 700000, 700000, nil
}

func (f *flaky) SetPowerLimit(milliwatts uint32) error {
	f.calls++
	if f.fails > 0 {
		f.fails--
		return fmt.Errorf("gpu 0000:07:00.0: set power limit: %w", f.err)
	}
	f.limit = milliwatts
	return nil
}

// one is a library that has one GPU.
type one struct{ gpu setting.Device }

func (o one) Device(string) (setting.Device, error) { return o.gpu, nil }
func (o one) Close() error                          { return nil }

const flakyKey = "gpu/GPU-4b0480b4-0000-4000-8000-000000000000/power.limit"

// flakyHost is a host on which job 42 holds the power limit of a GPU.
func flakyHost(t *testing.T) (*Host, *flaky, fmt.Stringer) {
	t.Helper()
	h, output := host(t)
	boot := filepath.Join(h.Root, "proc/sys/kernel/random")
	if err := os.MkdirAll(boot, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(boot, "boot_id"), []byte("b\n"), 0o444); err != nil {
		t.Fatal(err)
	}
	gpu := &flaky{limit: 700000}
	h.NVML = func() (setting.Devices, error) { return one{gpu}, nil }
	l, env, err := h.Open()
	if err != nil {
		t.Fatal(err)
	}
	s, err := setting.Parse(env, flakyKey)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Apply(t.Context(), "42", []ledger.Change{{Setting: s, Value: "500"}}); err != nil {
		t.Fatal(err)
	}
	if err := env.Close(); err != nil {
		t.Fatal(err)
	}
	gpu.calls = 0
	return h, gpu, output
}

// What fails for the moment does not drain the node; what fails for good does, at
// once.
func TestEpilogTriesAgain(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error
		fails int
		calls int // 0: more than one
		back  bool
	}{
		{"a timeout", setting.ErrPassing, 2, 3, true},
		{"in use by a program that ends", setting.ErrInUse, 1, 2, true},
		{"for longer than there is time", setting.ErrPassing, 1 << 20, 0, false},
		{"no permission", setting.ErrDenied, 1, 1, false},
		{"not supported", setting.ErrUnsupported, 1, 1, false},
		{"lost", setting.ErrGone, 1, 1, false},
		{"an answer of no kind", errors.New("Invalid Argument"), 1, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, gpu, output := flakyHost(t)
			gpu.err, gpu.fails = c.err, c.fails
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			defer cancel()
			if c.back {
				ctx = t.Context() // the whole patience, on a busy machine
			}
			err := h.Epilog(ctx)
			if (err == nil) != c.back || (gpu.limit == 700000) != c.back || h.held("42") == c.back {
				t.Errorf("%v, limit %d, held %v\n%s", err, gpu.limit, h.held("42"), output)
			}
			if gpu.calls != c.calls && (c.calls > 0 || gpu.calls < 2) {
				t.Errorf("%d calls, want %d\n%s", gpu.calls, c.calls, output)
			}
			if again := strings.Count(output.String(), "trying again"); again != gpu.calls-1 {
				t.Errorf("%d calls, and it was said %d times\n%s", gpu.calls, again, output)
			}
			if ctx.Err() != nil {
				t.Error("nothing of the time was left")
			}
		})
	}
}
