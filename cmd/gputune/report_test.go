package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"gputune/conf"
	"gputune/internal/report"
	"gputune/internal/sample"
	"gputune/internal/table"
)

// training is a report on a job of two hours on two GPUs, one of which limps.
func training(state report.State) *report.Report {
	begin := time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)
	b := report.Begun{Job: "4711", UID: uint32(os.Getuid()), User: "alice", Node: "node03", Time: begin, Restarts: 1}
	r := report.New(b, []report.Device{{PCI: "0000:07:00.0", UUID: "GPU-a"}, {PCI: "0000:47:00.0", UUID: "GPU-b"}}, 5*time.Second)
	for i := range 1441 {
		for slow, device := range []string{"GPU-a", "GPU-b"} {
			use := 55 + 40*math.Sin(float64(i)/150)
			if slow == 1 && i > 1000 {
				use /= 4
			}
			reading := sample.Reading{
				Device: device, Model: "NVIDIA H200", MemoryMiB: 143771, Time: begin.Add(time.Duration(i) * 5 * time.Second),
				Levels: map[sample.Level]sample.Range{
					sample.SMPercent: {Mean: use, Max: math.Min(100, use+5)}, sample.MemoryPercent: {Mean: use / 2, Max: use / 2},
					sample.MemoryMiB: {Mean: 98304, Max: 98304}, sample.PowerWatts: {Mean: 100 + 6*use, Max: 100 + 6*use},
					sample.SMClock: {Mean: 1755, Max: 1755}, sample.Temperature: {Mean: 61, Max: 61},
				},
				Counters: map[sample.Counter]float64{
					sample.Energy: float64(i) * 2000, sample.ECCCorrected: 0, sample.PCIeReplays: float64(slow * i / 700),
					sample.PCIeReceived: float64(i) * 5e9, sample.PCIeSent: float64(i) * 1e6,
				},
				Reasons: []string{"gpu_idle"},
			}
			if slow == 1 && i > 1000 {
				reading.Reasons = []string{"sw_thermal_slowdown", "hw_slowdown"}
			}
			r.Add(reading)
		}
	}
	r.AddPages([]string{"0000:07:00.0"}, report.Pages{Checked: 100000, Remote: 120})
	r.AddPages([]string{"0000:47:00.0"}, report.Pages{Checked: 100000, Remote: 70000})
	if state != report.Running {
		r.Close(state, begin.Add(2*time.Hour+3*time.Second))
	}
	return r
}

// bare is one of a card and a node that tell little: a MIG device, an agent that
// missed half of it.
func bare() *report.Report {
	begin := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	b := report.Begun{Job: "4712", HetJob: "4711", UID: uint32(os.Getuid()), Node: "node03", Time: begin}
	r := report.New(b, []report.Device{{UUID: "MIG-5d1c9c4c-0000-4000-8000-000000000000", Shared: "other jobs can have used the same GPU: gres/shard gives parts of it"}}, 5*time.Second)
	for i := range 12 {
		at := begin.Add(time.Duration(i) * 5 * time.Second)
		if i > 8 {
			at = at.Add(time.Minute)
		}
		r.Add(sample.Reading{Device: "MIG-5d1c9c4c-0000-4000-8000-000000000000", Time: at, Levels: map[sample.Level]sample.Range{sample.MemoryMiB: {Mean: 100, Max: 100}}})
	}
	r.Add(sample.Reading{Device: "MIG-5d1c9c4c-0000-4000-8000-000000000000", Error: "finding it: NVML: Not Found"})
	r.Close(report.Lost, begin)
	return r
}

func TestReportText(t *testing.T) {
	for name, show := range map[string]func(w *bytes.Buffer) error{
		"report-training": func(w *bytes.Buffer) error {
			return reportText{zone: time.UTC}.all(w, []*report.Report{training(report.Ended)})
		},
		"report-colours": func(w *bytes.Buffer) error {
			return reportText{zone: time.UTC, colours: true, root: true}.all(w, []*report.Report{training(report.Running)})
		},
		"report-bare": func(w *bytes.Buffer) error {
			return reportText{zone: time.UTC, odd: []string{"/x/y.json: unexpected end of JSON input"}}.all(w, []*report.Report{bare()})
		},
		"report-list": func(w *bytes.Buffer) error {
			return reportText{zone: time.UTC, root: true}.list(w, []*report.Report{training(report.Ended), bare()})
		},
		"report-none": func(w *bytes.Buffer) error { return reportText{zone: time.UTC}.list(w, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := show(&out); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(out.String()) {
				plain := strings.NewReplacer("\x1b[1m", "", "\x1b[32m", "", "\x1b[33m", "", "\x1b[31m", "", "\x1b[0m", "").Replace(line)
				if utf8.RuneCountInString(plain) > table.Width+1 || strings.HasSuffix(line, " \n") || strings.Contains(plain, "\x1b") || strings.Contains(line, "\x1b") != (name == "report-colours" && plain != line) {
					t.Errorf("%q", line)
				}
			}
			path := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil || out.String() != string(want) {
				t.Errorf("%v, got\n%s\nwant\n%s", err, &out, want)
			}
		})
	}
}

// siteWith writes a configuration and puts reports where it says.
func siteWith(t *testing.T, reports ...*report.Report) string {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "gputune.toml")
	text := fmt.Sprintf("[paths]\nstate = %q\nrun = %q\n", filepath.Join(dir, "state"), filepath.Join(dir, "run"))
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"state", "run"} {
		if err := os.Mkdir(filepath.Join(dir, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range reports {
		store := report.NewStore(filepath.Join(dir, "state", "reports"))
		if r.State == report.Running {
			store = report.NewStore(filepath.Join(dir, "run", report.RunningFolder))
		}
		if err := store.Put(r); err != nil {
			t.Fatal(err)
		}
	}
	return config
}

func TestReportCommand(t *testing.T) {
	config := siteWith(t, training(report.Ended), training(report.Running), bare())
	var all struct{ Reports []reportSummary }
	if err := json.Unmarshal([]byte(output(t, "report", "--format=json", "--config="+config)), &all); err != nil || len(all.Reports) != 3 {
		t.Fatalf("%v, %+v", err, all)
	}
	if s := all.Reports[2]; s.Job != "4712" || s.GPUs != 1 || s.SM != nil || s.Energy != nil || s.State != report.Lost {
		t.Errorf("%+v", s)
	}
	if s := all.Reports[0]; s.Job != "4711" || s.SM == nil || *s.Energy != 2*1440*2000 {
		t.Errorf("%+v", s)
	}
	var one struct{ Reports []*report.Report }
	if err := json.Unmarshal([]byte(output(t, "report", "4711", "--format=json", "--config="+config)), &one); err != nil || len(one.Reports) != 2 {
		t.Fatalf("%v, %+v", err, one)
	}
	if text := output(t, "report", "4711", "--config="+config); strings.Count(text, "job 4711 on node03") != 2 || !strings.Contains(text, "still running") {
		t.Errorf("%s", text)
	}
	for argument, want := range map[string]string{"5": "no report on a job 5 of yours is on ", "0": "want a job's number", "4711_3": "want a job's number"} {
		command := gputune(t, nil, "report", argument, "--config="+config)
		text, err := command.CombinedOutput()
		if err == nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v, %s", argument, err, text)
		}
	}
}

// A report that cannot be read is told, and costs no other.
func TestReportUnreadable(t *testing.T) {
	config := siteWith(t, bare())
	folder := filepath.Join(filepath.Dir(config), "state", "reports", fmt.Sprint(os.Getuid()))
	if err := os.WriteFile(filepath.Join(folder, "9-7.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	site, err := conf.Load(config)
	if err != nil {
		t.Fatal(err)
	}
	reports, odd, err := readReports(site, os.Getuid(), "")
	if err != nil || len(reports) != 1 || len(odd) != 1 || !strings.Contains(errors.Join(odd...).Error(), "9-7.json") {
		t.Errorf("%v, %v, %v", reports, odd, err)
	}
}
