package report

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"gputune/internal/sample"
)

var begin = time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)

func begun() Begun {
	return Begun{Job: "4711", UID: 1000, User: "alice", Node: "n1", Time: begin}
}

// newReport is on a job with two GPUs, looked at each 5 seconds.
func newReport() *Report {
	return New(begun(), []Device{{UUID: "GPU-a", PCI: "0000:07:00.0"}, {PCI: "0000:08:00.0"}}, 5*time.Second)
}

// at is a look at a GPU so many seconds after the beginning.
func at(device string, seconds float64, levels map[sample.Level]sample.Range, counters map[sample.Counter]float64, reasons ...string) sample.Reading {
	return sample.Reading{
		Device: device, PCI: "0000:07:00.0", Model: "NVIDIA H200", MemoryMiB: 143771,
		Time: begin.Add(time.Duration(seconds * float64(time.Second))), Levels: levels, Counters: counters, Reasons: append([]string{}, reasons...),
	}
}

func level(l sample.Level, mean, most float64) map[sample.Level]sample.Range {
	return map[sample.Level]sample.Range{l: {Mean: mean, Max: most}}
}

func energy(joules float64) map[sample.Counter]float64 {
	return map[sample.Counter]float64{sample.Energy: joules, sample.ECCCorrected: 3}
}

// Means are by time, counters by what they grew.
func TestAggregation(t *testing.T) {
	r := newReport()
	r.Add(at("GPU-a", 1, level(sample.PowerWatts, 100, 100), energy(1000), "gpu_idle"))
	r.Add(at("GPU-a", 5, level(sample.PowerWatts, 300, 350), energy(2000), "sw_power_cap")) // for 4 s
	r.Add(at("GPU-a", 15, level(sample.PowerWatts, 600, 700), nil, "sw_power_cap", "hw_slowdown"))
	r.Add(at("GPU-a", 17, level(sample.PowerWatts, 200, 200), energy(7000.5)))
	r.Add(at("GPU-b", 17, level(sample.PowerWatts, 1, 1), energy(1))) // no GPU of the job's
	r.Close(Ended, begin.Add(20*time.Second))
	gpu := r.GPUs[0]
	if want := (Stat{Mean: (300*4 + 600*10 + 200*2) / 16.0, Min: 100, Max: 700, Seconds: 16}); gpu.Levels[sample.PowerWatts] != want {
		t.Errorf("power %+v, want %+v", gpu.Levels[sample.PowerWatts], want)
	}
	if want := map[sample.Counter]float64{sample.Energy: 6000.5, sample.ECCCorrected: 0}; !maps.Equal(gpu.Totals, want) {
		t.Errorf("totals %v, want %v", gpu.Totals, want)
	}
	if want := map[string]float64{"sw_power_cap": 14, "hw_slowdown": 10}; !maps.Equal(gpu.Throttled, want) {
		t.Errorf("throttled %v, want %v", gpu.Throttled, want)
	}
	if gpu.Samples != 4 || gpu.Sampled != 16 || gpu.Model != "NVIDIA H200" || gpu.Last != nil || gpu.Device != "" {
		t.Errorf("%+v", gpu)
	}
	if other := r.GPUs[1]; other.Samples != 0 || other.Levels != nil || other.Totals != nil || other.Reasons() != nil {
		t.Errorf("the other GPU: %+v", other)
	}
	if r.Length() != 20*time.Second || r.State != Ended || r.Sampled() != 0 {
		t.Errorf("%+v", r)
	}
}

// Time in which nobody looked has no levels, and its counters all the same.
func TestGap(t *testing.T) {
	r := newReport()
	r.Add(at("GPU-a", 0, level(sample.SMPercent, 50, 50), energy(0), "sw_power_cap"))
	r.Add(at("GPU-a", 5, level(sample.SMPercent, 50, 50), energy(100), "sw_power_cap"))
	r.Add(at("GPU-a", 65, level(sample.SMPercent, 90, 90), energy(9000), "sw_power_cap"))
	r.Add(at("GPU-a", 70, level(sample.SMPercent, 70, 70), energy(9100)))
	gpu := r.GPUs[0]
	if got := gpu.Levels[sample.SMPercent]; got != (Stat{Mean: 60, Min: 50, Max: 90, Seconds: 10}) {
		t.Errorf("%+v", got)
	}
	if gpu.Sampled != 10 || gpu.Totals[sample.Energy] != 9100 || gpu.Throttled["sw_power_cap"] != 5 {
		t.Errorf("%+v", gpu)
	}
	want := slices.Concat([]float64{50}, slices.Repeat([]float64{NotSampled}, 12), []float64{70})
	if !slices.Equal(gpu.Series.SM, want) || len(gpu.Series.Power) != 0 {
		t.Errorf("series %v, want %v", gpu.Series.SM, want)
	}
}

// A counter that begins anew, as after the driver was loaded again, has counted what
// it says; one that is not asked for each time is compared with when it was.
func TestCounters(t *testing.T) {
	r := newReport()
	replays := func(n float64) map[sample.Counter]float64 {
		return map[sample.Counter]float64{sample.PCIeReplays: n}
	}
	for i, counters := range []map[sample.Counter]float64{replays(5), energy(10), replays(7), energy(14), replays(1), energy(4)} {
		r.Add(at("GPU-a", float64(i), nil, counters))
	}
	if want := map[sample.Counter]float64{sample.PCIeReplays: 3, sample.Energy: 8, sample.ECCCorrected: 0}; !maps.Equal(r.GPUs[0].Totals, want) {
		t.Errorf("%v, want %v", r.GPUs[0].Totals, want)
	}
	held := at("GPU-a", 7, nil, nil, "sw_power_cap")
	held.Held = map[string]float64{"sw_power_cap": 100}
	r.Add(held)
	held.Time, held.Held = held.Time.Add(time.Second), map[string]float64{"sw_power_cap": 100.25}
	r.Add(held)
	if got := r.GPUs[0].Reasons(); got["sw_power_cap"] != 0.25 { // what is counted is exact
		t.Errorf("%v", got)
	}
}

// A look that failed says so and costs only itself; a clock that was set back costs
// no more.
func TestFailedLook(t *testing.T) {
	r := newReport()
	r.Add(at("GPU-a", 10, level(sample.SMPercent, 50, 50), nil))
	r.Add(sample.Reading{Device: "GPU-a", Time: begin.Add(15 * time.Second), Error: "lost"})
	if gpu := r.GPUs[0]; gpu.Error != "lost" || gpu.Samples != 1 || r.Length() != 10*time.Second {
		t.Errorf("%+v", gpu)
	}
	r.Add(at("GPU-a", 2, level(sample.SMPercent, 100, 100), nil))
	if gpu := r.GPUs[0]; gpu.Error != "" || gpu.Sampled != 0 || gpu.Levels[sample.SMPercent].Max != 100 || r.Length() != 10*time.Second {
		t.Errorf("%+v", gpu)
	}
}

// A report that was written and read between any two looks is the same in the end.
func TestResumed(t *testing.T) {
	whole, parts := newReport(), newReport()
	for i := range 300 {
		reading := at("GPU-a", float64(i)*5, level(sample.SMPercent, float64(i%100), 100), energy(float64(i*i)), "sw_power_cap")
		whole.Add(reading)
		parts.Add(reading)
		text, err := parts.encode()
		if err != nil {
			t.Fatal(err)
		}
		if parts, err = decode(text); err != nil {
			t.Fatal(err)
		}
	}
	whole.Close(Ended, begin.Add(1500*time.Second))
	parts.Close(Ended, begin.Add(1500*time.Second))
	want, _ := json.Marshal(whole)
	got, _ := json.Marshal(parts)
	if string(want) != string(got) {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// A series has at most so many points, whatever the job's length, and its mean is
// that of the looks.
func TestSeries(t *testing.T) {
	for _, looks := range []int{2, 96, 97, 98, 1000, 6000} {
		r := newReport()
		for i := range looks {
			r.Add(at("GPU-a", float64(i)*5, map[sample.Level]sample.Range{sample.SMPercent: {Mean: float64(i % 101)}, sample.PowerWatts: {Mean: 500}}, nil))
		}
		s, all := r.GPUs[0].Series, r.GPUs[0].Levels[sample.SMPercent]
		if len(s.SM) > maxPoints || len(s.SM) < maxPoints/2 && looks > maxPoints || len(s.Power) != len(s.SM) || len(s.Covered) != len(s.SM) {
			t.Errorf("%d looks: %d points", looks, len(s.SM))
		}
		sum, weight := 0.0, 0.0
		for i, value := range s.SM {
			sum, weight = sum+value*s.Covered[i], weight+s.Covered[i]
			if s.Power[i] != 500 {
				t.Fatalf("%d looks: power %v", looks, s.Power)
			}
		}
		if math.Abs(weight-all.Seconds) > 1e-6*weight || math.Abs(sum/weight-all.Mean) > 1e-6 {
			t.Errorf("%d looks: mean %v of %v s, want %v of %v s", looks, sum/weight, weight, all.Mean, all.Seconds)
		}
	}
}

func TestPages(t *testing.T) {
	r := newReport()
	r.AddPages([]string{"0000:07:00.0", "0000:08:00.0"}, Pages{Checked: 100, Remote: 10})
	r.AddPages([]string{"0000:07:00.0", ""}, Pages{Checked: 100})
	r.AddPages([]string{"0000:09:00.0"}, Pages{Checked: 100})
	if *r.GPUs[0].Pages != (Pages{200, 10}) || *r.GPUs[1].Pages != (Pages{100, 10}) || r.GPUs[1].Pages.LocalShare() != 0.9 {
		t.Errorf("%v, %v", r.GPUs[0].Pages, r.GPUs[1].Pages)
	}
}

// However many GPUs a node has, a report fits its bound.
func TestBounded(t *testing.T) {
	for _, count := range []int{16, 200, 600} {
		var devices []Device
		for i := range count {
			devices = append(devices, Device{UUID: fmt.Sprintf("GPU-%d", i), PCI: fmt.Sprintf("%04x:00:00.0", i)})
		}
		r := New(begun(), devices, time.Second)
		for i := range 100 {
			for _, d := range devices {
				r.Add(at(d.UUID, float64(i), map[sample.Level]sample.Range{sample.SMPercent: {Mean: float64(i) / 3}, sample.PowerWatts: {Mean: 500.123456}}, nil))
			}
		}
		text, err := r.encode()
		if err != nil || len(text) > MaxBytes {
			t.Fatalf("%d GPUs: %d bytes, %v", count, len(text), err)
		}
		back, err := decode(text)
		if err != nil || len(back.GPUs) == 0 || (back.GPUs[0].Series != nil) != (count == 16) || count == 16 && !reflect.DeepEqual(back.GPUs[0].Series, r.GPUs[0].Series) {
			t.Errorf("%d GPUs: %d left, %v", count, len(back.GPUs), err)
		}
	}
}

// Whatever a report's file has, reading it gives an error or something that can be
// added to, closed and shown.
func FuzzDecode(f *testing.F) {
	r := newReport()
	for i := range 3 {
		r.Add(at("GPU-a", float64(i), level(sample.SMPercent, 50, 60), energy(float64(i)), "sw_power_cap"))
	}
	text, err := r.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"version":1,"job":"1","begin":"2026-11-30T10:00:00Z","end":"2026-11-30T10:00:00Z","gpus":[{"series":{"seconds":1e-300,"sm_percent":[1],"covered_seconds":[1e300]}}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := decode(text)
		if err != nil {
			return
		}
		for _, device := range r.Devices() {
			r.Add(at(device, 100, level(sample.SMPercent, 1, 2), energy(3)))
		}
		r.AddPages([]string{"0000:07:00.0"}, Pages{Checked: 1})
		r.Close(Ended, r.End)
		if r.Length() < 0 {
			t.Errorf("%v", r.Length())
		}
		for i := range r.GPUs {
			r.GPUs[i].Reasons()
		}
	})
}
