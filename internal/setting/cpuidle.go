package setting

import (
	"context"
	"fmt"
	"math"
	"strconv"
)

// AnyLatency is the value of cpuidle/cpuN/latency that limits nothing, NoLatency
// the one that keeps a CPU from all idle states but polling.
const (
	AnyLatency = "0"
	NoLatency  = "n/a"
)

func init() {
	register(kind{
		Kind: Kind{
			Pattern: "cpuidle/*/latency", Example: "cpuidle/cpu0/latency",
			Doc: "longest time in µs that a CPU may take to leave an idle state (C-state): 0 is any, n/a none, by CPU: cpuidle/cpu0/latency",
		},
		open: func(env *Environment, key string, wild []string) (Setting, error) {
			cpu, ok := suffixNumber(wild[0], "cpu")
			if !ok {
				return nil, fmt.Errorf("%w: %s: want cpuidle/cpuN/latency", ErrUnknownKey, key)
			}
			return idleLatency{kernelFile{
				env: env, key: key, of: fmt.Sprintf("CPU %d: idle latency", cpu),
				path: fmt.Sprintf("/sys/devices/system/cpu/cpu%d/power/pm_qos_resume_latency_us", cpu),
			}}, nil
		},
	})
}

// idleLatency limits the idle states of one CPU.
//
// Documentation/admin-guide/pm/cpuidle.rst, "Power Management Quality of Service
// for CPUs", and Documentation/ABI/testing/sysfs-devices-power: the governor
// takes no state whose exit latency is longer. Unlike /dev/cpu_dma_latency it
// needs no open file, and is for one CPU alone. A virtual machine has the file
// and no states, where it does nothing.
type idleLatency struct{ kernelFile }

// Traits implements Setting.
func (idleLatency) Traits() Traits { return Traits{Needs: WholeNode, Lifetime: WhileThere} }

// Check implements Setting.
func (s idleLatency) Check(_ context.Context, value string) (string, error) {
	if _, err := s.read(); err != nil {
		return "", err
	}
	if value == NoLatency {
		return value, nil
	}
	us, err := strconv.ParseUint(value, 10, 32)
	if err != nil || us >= math.MaxInt32 {
		return "", &ValueError{Of: s.of, Value: shown(value), Accepts: "want µs, 0 for any, n/a for none"}
	}
	return strconv.FormatUint(us, 10), nil
}

// Read implements Setting.
func (s idleLatency) Read(context.Context) (string, error) { return s.readOfPart() }

// Write implements Setting.
func (s idleLatency) Write(ctx context.Context, value string) error {
	if err := s.write(value); err != nil {
		return err
	}
	return readBack(ctx, s, s.of, value)
}

// IdleLatencyKey returns the key of a CPU's idle latency.
func IdleLatencyKey(cpu int) string { return fmt.Sprintf("cpuidle/cpu%d/latency", cpu) }
