//go:build gpu

package hw

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"gputune/internal/ledger"
	"gputune/internal/setting"
)

// Every setting of each GPU is changed through the ledger, seen by nvidia-smi,
// and put back: what nvidia-smi says of the cards is the same before and after.
// The cards must be idle.
func TestWriting(t *testing.T) {
	if os.Getenv("GPUTUNE_HW_WRITE") != "1" {
		t.Skip("GPUTUNE_HW_WRITE is not 1: nothing is changed on the cards")
	}
	fields := []string{"uuid", "power.limit", "compute_mode", "persistence_mode", "clocks.applications.graphics", "clocks.applications.memory"}
	before := smi(t, fields...)
	env := environment(t)
	held, err := ledger.Open(t.TempDir(), ledger.Options{Resolve: func(key string) (setting.Setting, error) { return setting.Parse(env, key) }})
	if err != nil {
		t.Fatal(err)
	}
	release := func(job string) {
		report, err := held.Release(t.Context(), job)
		if err != nil {
			t.Errorf("releasing %s: %v: %+v", job, err, report)
		}
	}
	for i, row := range before {
		uuid, job := row[0], strconv.Itoa(4290000100+i)
		t.Run(uuid, func(t *testing.T) {
			t.Cleanup(func() { release(job) })
			sm, err := setting.SMClocks(env, uuid)
			if err != nil {
				t.Fatal(err)
			}
			device, err := env.Device(uuid)
			if err != nil {
				t.Fatal(err)
			}
			low, _, _, err := device.PowerLimits()
			if err != nil {
				t.Fatal(err)
			}
			locked := sm.Nearest((sm.Low + sm.High) / 2)
			wanted := map[string]string{
				setting.PowerLimitName:  setting.Watts(low),
				setting.ComputeModeName: string(setting.ComputeExclusive),
				setting.SMClocksName:    strconv.Itoa(int(locked)) + "-" + strconv.Itoa(int(locked)),
			}
			var changes []ledger.Change
			for _, name := range []string{setting.PowerLimitName, setting.ComputeModeName, setting.SMClocksName} {
				s, err := setting.Parse(env, setting.GPUKey(uuid, name))
				if err != nil {
					t.Fatal(err)
				}
				value, err := s.Check(t.Context(), wanted[name])
				if err != nil {
					t.Fatal(err)
				}
				changes = append(changes, ledger.Change{Setting: s, Value: value})
			}
			if report, err := held.Apply(t.Context(), job, changes); err != nil {
				t.Fatalf("%v: %+v", err, report)
			}
			// A kernel makes the SM clock rise to where it is locked.
			p := start(t, cuda(t), 0, []string{"CUDA_VISIBLE_DEVICES=" + uuid}, "--seconds", "2", "--blocks", "1000")
			p.devices(t)
			p.goOn(t)
			p.until(t, "kernel")
			now := smi(t, append(fields, "clocks.sm")...)[i]
			p.end(t)
			if watts, err := strconv.ParseFloat(now[1], 64); err != nil || uint32(watts*1000+0.5) != low {
				t.Errorf("power limit %s W, want %s W", now[1], setting.Watts(low))
			}
			if now[2] != "Exclusive_Process" {
				t.Errorf("compute mode %s", now[2])
			}
			if mhz, err := strconv.Atoi(now[6]); err != nil || mhz > int(locked) {
				t.Errorf("SM clock %s MHz while locked to %d", now[6], locked)
			}
			for other, row := range smi(t, fields...) {
				if other > i && strings.Join(row, " ") != strings.Join(before[other], " ") {
					t.Errorf("another GPU changed: %v, before %v", row, before[other])
				}
			}
			release(job)
			if after := smi(t, fields...)[i]; strings.Join(after, " ") != strings.Join(row, " ") {
				t.Errorf("after: %v, before %v", after, row)
			}
		})
	}
}
