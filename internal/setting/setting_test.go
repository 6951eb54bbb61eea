package setting

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"gputune/internal/mig"
)

// fakeDevice is a GPU that does as an H200 does.
type fakeDevice struct {
	low, high, memLow, memHigh uint32 // locks; 0: none
	power                      uint32
	persistence                bool
	mode                       ComputeMode
	appMemory, appGraphics     uint32
	cannotLockMemory           bool

	powerLandsOn uint32 // what a write of the power limit makes of it
	fails        error  // of every call that asks or changes the GPU
}

func (d *fakeDevice) PCI() string { return "0000:07:00.0" }

func (d *fakeDevice) SMClocks() (Clocks, error) {
	var steps []uint32
	for mhz := uint32(345); mhz <= 1980; mhz += 15 {
		steps = append(steps, mhz)
	}
	return NewClocks(steps), d.fails
}

func (d *fakeDevice) MemoryClocks() (Clocks, error) { return NewClocks([]uint32{3201, 2201}), d.fails }

func (d *fakeDevice) LockSMClocks(low, high uint32) error {
	d.low, d.high = low, high
	return d.fails
}
func (d *fakeDevice) UnlockSMClocks() error { return d.LockSMClocks(0, 0) }
func (d *fakeDevice) LockMemoryClocks(low, high uint32) error {
	d.memLow, d.memHigh = low, high
	return d.fails
}
func (d *fakeDevice) UnlockMemoryClocks() error          { return d.LockMemoryClocks(0, 0) }
func (d *fakeDevice) CanLockMemoryClocks() (bool, error) { return !d.cannotLockMemory, nil }

func (d *fakeDevice) ApplicationClocks() (uint32, uint32, error) {
	return d.appMemory, d.appGraphics, d.fails
}

func (d *fakeDevice) SetApplicationClocks(memory, graphics uint32) error {
	d.appMemory, d.appGraphics = memory, graphics
	return d.fails
}
func (d *fakeDevice) PowerLimit() (uint32, error) { return d.power, d.fails }
func (d *fakeDevice) PowerLimits() (low, high, standard uint32, err error) {
	return 200_000, 700_000, 650_500, d.fails
}

func (d *fakeDevice) SetPowerLimit(milliwatts uint32) error {
	if d.power = milliwatts; d.powerLandsOn != 0 {
		d.power = d.powerLandsOn
	}
	return d.fails
}
func (d *fakeDevice) Persistence() (bool, error)        { return d.persistence, d.fails }
func (d *fakeDevice) SetPersistence(on bool) error      { d.persistence = on; return d.fails }
func (d *fakeDevice) ComputeMode() (ComputeMode, error) { return d.mode, d.fails }
func (d *fakeDevice) SetComputeMode(m ComputeMode) error {
	d.mode = m
	return d.fails
}
func (d *fakeDevice) MIG() (mig.Card, error) { return nil, ErrUnsupported }

func (d *fakeDevice) Facts() (GPUFacts, error) { return GPUFacts{PCI: d.PCI()}, d.fails }

// fakeDevices counts what an environment does with the library.
type fakeDevices struct {
	device               *fakeDevice
	opened, found, close int
}

func (d *fakeDevices) Device(uuid string) (Device, error) {
	d.found++
	if uuid != "GPU-1" {
		return nil, fmt.Errorf("GPU %s: %w", uuid, ErrGone)
	}
	return d.device, nil
}
func (d *fakeDevices) Close() error { d.close++; return nil }

func environment(device *fakeDevice) (*Environment, *fakeDevices) {
	devices := &fakeDevices{device: device}
	return NewEnvironment("/", func() (Devices, error) { devices.opened++; return devices, nil }), devices
}

func h200() *fakeDevice {
	return &fakeDevice{power: 700_000, persistence: true, mode: ComputeShared, appMemory: 3201, appGraphics: 1980}
}

func parse(t *testing.T, env *Environment, key string) Setting {
	t.Helper()
	s, err := Parse(env, key)
	if err != nil {
		t.Fatal(err)
	}
	if s.Key() != key {
		t.Fatalf("key %q became %q", key, s.Key())
	}
	return s
}

func TestCheck(t *testing.T) {
	for _, test := range []struct {
		name, value    string
		canonical      string
		fails, nearest string
	}{
		{name: SMClocksName, value: "1200", canonical: "1200-1200"},
		{name: SMClocksName, value: "1200-1500", canonical: "1200-1500"},
		{name: SMClocksName, value: "345-1980", canonical: "345-1980"},
		{name: SMClocksName, value: "1207", canonical: "1200-1200"},
		{name: SMClocksName, value: "1208", canonical: "1215-1215"},
		{name: SMClocksName, value: "unlocked", canonical: "unlocked"},
		{name: SMClocksName, value: "9999", fails: "gpu 0000:07:00.0: clocks 9999 MHz: supported 345–1980 MHz", nearest: "1980-1980"},
		{name: SMClocksName, value: "1", fails: "gpu 0000:07:00.0: clocks 1 MHz: supported 345–1980 MHz", nearest: "345-345"},
		{name: SMClocksName, value: "100-1500", fails: "gpu 0000:07:00.0: clocks 100–1500 MHz: supported 345–1980 MHz", nearest: "345-1500"},
		{name: SMClocksName, value: "1500-1200", fails: "gpu 0000:07:00.0: clocks 1500–1200 MHz: the lower one comes first", nearest: "1200-1500"},
		{name: SMClocksName, value: "4294967296", fails: "gpu 0000:07:00.0: clocks 4294967296: supported MHZ, MIN-MAX or unlocked"},
		{name: SMClocksName, value: "-5", fails: "gpu 0000:07:00.0: clocks -5: supported MHZ, MIN-MAX or unlocked"},
		{name: SMClocksName, value: "+500", fails: "gpu 0000:07:00.0: clocks +500: supported MHZ, MIN-MAX or unlocked"},
		{name: SMClocksName, value: "", fails: "gpu 0000:07:00.0: clocks : supported MHZ, MIN-MAX or unlocked"},
		{name: SMClocksName, value: "1\n2\x00\xff", fails: "gpu 0000:07:00.0: clocks 1?2??: supported MHZ, MIN-MAX or unlocked"},
		{
			name: SMClocksName, value: strings.Repeat("9", 1<<20),
			fails: "gpu 0000:07:00.0: clocks " + strings.Repeat("9", 64) + "…: supported MHZ, MIN-MAX or unlocked",
		},
		{name: MemoryClocksName, value: "3201", canonical: "3201-3201"},
		{name: MemoryClocksName, value: "2201-3201", canonical: "2201-3201"},
		{name: MemoryClocksName, value: "4000", fails: "gpu 0000:07:00.0: memory clocks 4000 MHz: supported 2201, 3201 MHz", nearest: "3201-3201"},
		{name: ApplicationClocksName, value: "2201,1200", canonical: "2201,1200"},
		{name: ApplicationClocksName, value: "2201", canonical: "2201,1980"},
		{name: ApplicationClocksName, value: "2200", fails: "gpu 0000:07:00.0: memory clocks 2200 MHz: supported 2201, 3201 MHz", nearest: "2201,1980"},
		{name: ApplicationClocksName, value: "2201,5", fails: "gpu 0000:07:00.0: graphics clocks 5 MHz: supported 345–1980 MHz", nearest: "2201,345"},
		{name: ApplicationClocksName, value: "a,b", fails: "gpu 0000:07:00.0: application clocks a,b: supported MEMORY,GRAPHICS in MHz"},
		{name: PowerLimitName, value: "500", canonical: "500"},
		{name: PowerLimitName, value: "500W", canonical: "500"},
		{name: PowerLimitName, value: "512.50", canonical: "512.5"},
		{name: PowerLimitName, value: "512.001", canonical: "512.001"},
		{name: PowerLimitName, value: "max", canonical: "700"},
		{name: PowerLimitName, value: "default", canonical: "650.5"},
		{name: PowerLimitName, value: "1", fails: "gpu 0000:07:00.0: power 1 W: supported 200–700 W", nearest: "200"},
		{name: PowerLimitName, value: "701", fails: "gpu 0000:07:00.0: power 701 W: supported 200–700 W", nearest: "700"},
		{name: PowerLimitName, value: "4294967295", fails: "gpu 0000:07:00.0: power 4294967295 W: supported 200–700 W, max or default"},
		{name: PowerLimitName, value: "500.", fails: "gpu 0000:07:00.0: power 500. W: supported 200–700 W, max or default"},
		{name: PowerLimitName, value: "500.+1", fails: "gpu 0000:07:00.0: power 500.+1 W: supported 200–700 W, max or default"},
		{name: PowerLimitName, value: "500.1234", fails: "gpu 0000:07:00.0: power 500.1234 W: supported 200–700 W, max or default"},
		{name: PersistenceName, value: "on", canonical: "on"},
		{name: PersistenceName, value: "1", fails: "gpu 0000:07:00.0: persistence 1: supported on, off"},
		{name: ComputeModeName, value: "exclusive", canonical: "exclusive"},
		{name: ComputeModeName, value: "exclusive-thread", fails: "gpu 0000:07:00.0: compute mode exclusive-thread: supported shared, exclusive, prohibited"},
	} {
		t.Run(test.name+"/"+shown(test.value), func(t *testing.T) {
			device := h200()
			env, _ := environment(device)
			got, err := parse(t, env, GPUKey("GPU-1", test.name)).Check(context.Background(), test.value)
			if *device != *h200() {
				t.Error("Check changed the GPU")
			}
			if test.fails == "" {
				if err != nil || got != test.canonical {
					t.Fatalf("got %q, %v; want %q", got, err, test.canonical)
				}
				return
			}
			refused := (*ValueError)(nil)
			if !errors.As(err, &refused) || err.Error() != test.fails || refused.Nearest != test.nearest {
				t.Fatalf("got %v (nearest %+v)\nwant %s (nearest %s)", err, refused, test.fails, test.nearest)
			}
		})
	}
}

// TestWriteAndBack: what is read before a write undoes the write; a write-only
// setting says what undoes it.
func TestWriteAndBack(t *testing.T) {
	for name, value := range map[string]string{
		SMClocksName: "1200-1500", MemoryClocksName: "2201-2201", ApplicationClocksName: "2201,1200",
		PowerLimitName: "512.345", PersistenceName: "off", ComputeModeName: "exclusive",
	} {
		t.Run(name, func(t *testing.T) {
			device := h200()
			env, _ := environment(device)
			ctx := context.Background()
			s := parse(t, env, GPUKey("GPU-1", name))
			traits := s.Traits()
			if traits.Needs != WholeGPU || traits.Lifetime != UntilReboot {
				t.Errorf("traits %+v", traits)
			}
			before := traits.Neutral
			if !traits.WriteOnly {
				var err error
				if before, err = s.Read(ctx); err != nil {
					t.Fatal(err)
				}
			} else if _, err := s.Read(ctx); !errors.Is(err, ErrWriteOnly) {
				t.Errorf("Read: %v", err)
			}
			if err := s.Write(ctx, value); err != nil {
				t.Fatal(err)
			}
			if *device == *h200() {
				t.Error("nothing was changed")
			}
			if !traits.WriteOnly {
				if now, err := s.Read(ctx); err != nil || now != value {
					t.Errorf("reads %q, %v", now, err)
				}
			}
			if err := s.Write(ctx, before); err != nil {
				t.Fatal(err)
			}
			if *device != *h200() {
				t.Errorf("left %+v", *device)
			}
			if err := s.Write(ctx, "rubbish"); err == nil {
				t.Error("rubbish was written")
			}
			device.fails = ErrDenied
			if err := s.Write(ctx, value); !errors.Is(err, ErrDenied) {
				t.Errorf("no permission: %v", err)
			}
			if _, err := s.Check(ctx, value); !errors.Is(err, ErrDenied) {
				t.Errorf("Check without permission: %v", err)
			}
		})
	}
}

func TestWrongReadBack(t *testing.T) {
	device := h200()
	device.powerLandsOn = 499_000
	env, _ := environment(device)
	err := parse(t, env, GPUKey("GPU-1", PowerLimitName)).Write(context.Background(), "500")
	wrong := (*ReadBackError)(nil)
	if !errors.As(err, &wrong) || err.Error() != "gpu 0000:07:00.0: power limit in W: wrote 500, but it reads 499" {
		t.Errorf("got %v", err)
	}
}

func TestMemoryClockFallsBack(t *testing.T) {
	device := h200()
	env, _ := environment(device)
	s, err := MemoryClock(env, "GPU-1")
	if err != nil || s.Key() != "gpu/GPU-1/clocks.memory" {
		t.Errorf("got %v, %v", s, err)
	}
	device.cannotLockMemory = true
	if s, err = MemoryClock(env, "GPU-1"); err != nil || s.Key() != "gpu/GPU-1/clocks.application" {
		t.Errorf("got %v, %v", s, err)
	}
	if _, err := parse(t, env, "gpu/GPU-1/clocks.memory").Check(context.Background(), "3201"); !errors.Is(err, ErrUnsupported) {
		t.Errorf("Check where memory clocks cannot be locked: %v", err)
	}
}

// TestLazy: the library is loaded for the first GPU that is asked, once, and
// shut down once.
func TestLazy(t *testing.T) {
	env, devices := environment(h200())
	s := parse(t, env, "gpu/GPU-1/power.limit")
	if devices.opened != 0 {
		t.Error("making a setting loaded the library")
	}
	for range 3 {
		if _, err := s.Read(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := parse(t, env, "gpu/GPU-2/power.limit").Read(context.Background()); !errors.Is(err, ErrGone) {
		t.Errorf("a GPU that is not there: %v", err)
	}
	if devices.opened != 1 || devices.found != 2 {
		t.Errorf("loaded %d times, searched %d times", devices.opened, devices.found)
	}
	for range 2 {
		if err := env.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if devices.close != 1 {
		t.Errorf("closed %d times", devices.close)
	}
	if _, err := s.Read(context.Background()); err == nil {
		t.Error("a closed environment gives GPUs")
	}
	unused, devices := environment(h200())
	if err := unused.Close(); err != nil || devices.opened+devices.close != 0 {
		t.Errorf("closing an unused environment: %v, %+v", err, devices)
	}
}

func TestKeys(t *testing.T) {
	env, _ := environment(h200())
	for _, kind := range Kinds() {
		if kind.Doc == "" {
			t.Errorf("%s has no description", kind.Pattern)
		}
		key := kind.Example
		if key == "" {
			key = strings.ReplaceAll(kind.Pattern, "*", "GPU-1")
		}
		parse(t, env, key)
	}
	for _, key := range []string{
		"", "/", "gpu", "gpu/GPU-1", "gpu//clocks.sm", "gpu/../clocks.sm", "gpu/GPU-1/clocks.sm/", "/gpu/GPU-1/clocks.sm",
		"gpu/GPU-1/.clocks", "gpu/0/clocks.sm", "gpu/MIG-1/clocks.sm", "gpu/GPU-1/clocks.nothing", "gpu/GPU-1/clocks sm",
		"gpu/GPU-1\x00/clocks.sm", "gpu/GPU-é/clocks.sm", strings.Repeat("a", 256), strings.Repeat("a/", 8) + "a",
	} {
		if s, err := Parse(env, key); !errors.Is(err, ErrUnknownKey) {
			t.Errorf("%.40q: %v, %v", key, s, err)
		}
	}
	for key, want := range map[string]string{
		"gpu/GPU-1/clocks.sm": "gpu-GPU-1", "gpu/GPU-1/a/b": "gpu-GPU-1", "sysctl/vm.swappiness": "host", "gpu/GPU-1": "host", "../x": "host",
	} {
		if got := Domain(key); got != want {
			t.Errorf("domain of %s is %s, want %s", key, got, want)
		}
	}
}

func TestClocks(t *testing.T) {
	c := NewClocks([]uint32{1410, 210, 1395, 225, 225})
	for word, want := range map[string]uint32{"low": 210, "medium": 1395, "high": 1410, "highm1": 1395} {
		if got, ok := c.Named(word); !ok || got != want {
			t.Errorf("%s is %d, %v; want %d", word, got, ok, want)
		}
	}
	if got, ok := c.Named("1200"); ok {
		t.Errorf("a word that is none: %d", got)
	}
	if got, ok := (Clocks{}).Named("medium"); ok {
		t.Errorf("medium of nothing: %d", got)
	}
	for mhz, want := range map[uint32]uint32{0: 210, 217: 210, 218: 225, 1000: 1395, 800: 225, 1402: 1395, 1403: 1410, math.MaxUint32: 1410} {
		if got := c.Nearest(mhz); got != want {
			t.Errorf("nearest to %d is %d, want %d", mhz, got, want)
		}
	}
	if got := (Clocks{Low: 300, High: 900}).Nearest(500); got != 500 {
		t.Errorf("nearest in a range: %d", got)
	}
}

func FuzzWatts(f *testing.F) {
	f.Add("512.5")
	f.Add("700")
	f.Fuzz(func(t *testing.T, text string) {
		limit, err := parseWatts(text)
		if err != nil {
			return
		}
		again, err := parseWatts(Watts(limit))
		if err != nil || again != limit {
			t.Fatalf("%q is %d mW, written %q, which is %d, %v", text, limit, Watts(limit), again, err)
		}
	})
}
