package setting

import (
	"context"
	"fmt"
	"strings"
)

// ApplicationClocksName is the last part of the key.
const ApplicationClocksName = "clocks.application"

func init() {
	register(kind{
		Kind: Kind{Pattern: "gpu/*/" + ApplicationClocksName, Doc: "memory and graphics clock in MHz that applications run at: MEMORY,GRAPHICS"},
		open: func(env *Environment, key string, wild []string) (Setting, error) {
			g, err := newGPU(env, key, wild[0])
			return applicationClocks{g}, err
		},
	})
}

// applicationClocks sets the clocks of applications, the older mechanism that
// GPUs before Ampere have for the memory clock.
//
// nvmlDeviceGetApplicationsClock reads both, nvmlDeviceSetApplicationsClocks
// sets both, so the value is the pair and comes back exactly. NVIDIA deprecates
// the calls; a driver without them answers ErrUnsupported. The driver forgets
// them when it unloads.
type applicationClocks struct{ gpu }

// Traits implements Setting.
func (applicationClocks) Traits() Traits {
	return Traits{Needs: WholeGPU, Lifetime: UntilReboot}
}

// Check implements Setting. It takes "877,1380", and "877" for a memory clock
// beside the graphics clock that is set.
func (s applicationClocks) Check(_ context.Context, value string) (string, error) {
	device, err := s.device()
	if err != nil {
		return "", err
	}
	memoryClocks, err := device.MemoryClocks()
	if err != nil {
		return "", err
	}
	_, present, err := device.ApplicationClocks()
	if err != nil {
		return "", err
	}
	memory, graphics, err := parsePair(value, present)
	fail := &ValueError{Of: of(device), Value: "application clocks " + shown(value), Accepts: "supported MEMORY,GRAPHICS in MHz"}
	if err != nil {
		return "", fail
	}
	// Unlike a lock, the pair has to be one of those that the GPU lists.
	if nearest := memoryClocks.Nearest(memory); nearest != memory {
		fail.Value = fmt.Sprintf("memory clocks %d MHz", memory)
		fail.Accepts = "supported " + memoryClocks.String()
		fail.Nearest = pairValue(nearest, graphics)
		return "", fail
	}
	graphicsClocks, err := device.SMClocks()
	if err != nil {
		return "", err
	}
	nearest := graphicsClocks.Nearest(graphics)
	if graphics < graphicsClocks.Low || graphics > graphicsClocks.High {
		fail.Value = fmt.Sprintf("graphics clocks %d MHz", graphics)
		fail.Accepts = "supported " + graphicsClocks.String()
		fail.Nearest = pairValue(memory, nearest)
		return "", fail
	}
	return pairValue(memory, nearest), nil
}

// Read implements Setting.
func (s applicationClocks) Read(context.Context) (string, error) {
	device, err := s.device()
	if err != nil {
		return "", err
	}
	memory, graphics, err := device.ApplicationClocks()
	if err != nil {
		return "", err
	}
	return pairValue(memory, graphics), nil
}

// Write implements Setting.
func (s applicationClocks) Write(ctx context.Context, value string) error {
	device, err := s.device()
	if err != nil {
		return err
	}
	memory, graphics, err := parsePair(value, 0)
	if err != nil {
		return fmt.Errorf("%s: value %q: %w", s.key, value, err)
	}
	if err := device.SetApplicationClocks(memory, graphics); err != nil {
		return err
	}
	return readBack(ctx, s, of(device)+": application clocks", value)
}

// parsePair reads "877,1380", or "877" with the given graphics clock.
func parsePair(value string, graphics uint32) (uint32, uint32, error) {
	first, second, isPair := strings.Cut(value, ",")
	memory, err := parseNumber(first)
	if err == nil && isPair {
		graphics, err = parseNumber(second)
	}
	return memory, graphics, err
}

func pairValue(memory, graphics uint32) string { return fmt.Sprintf("%d,%d", memory, graphics) }

// readBack reads a setting after a write.
func readBack(ctx context.Context, s Setting, of, wrote string) error {
	read, err := s.Read(ctx)
	if err != nil {
		return err
	}
	if read != wrote {
		return &ReadBackError{Of: of, Wrote: wrote, Read: read}
	}
	return nil
}
