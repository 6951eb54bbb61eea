//go:build gpu

package hw

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"gputune/internal/setting"
)

// words are nvidia-smi's for values of gputune's.
var words = map[string]string{
	"Default": "shared", "Exclusive_Process": "exclusive", "Prohibited": "prohibited",
	"Enabled": "on", "Disabled": "off",
}

// What each setting of a GPU reads is what nvidia-smi says.
func TestSettings(t *testing.T) {
	env := environment(t)
	fields := map[string]string{
		setting.PowerLimitName: "power.limit", setting.ComputeModeName: "compute_mode", setting.PersistenceName: "persistence_mode",
	}
	for name, field := range fields {
		for _, row := range smi(t, "uuid", field) {
			want := row[1]
			if word, is := words[want]; is {
				want = word
			}
			if name == setting.PowerLimitName {
				watts, err := strconv.ParseFloat(want, 64)
				if err != nil {
					t.Fatal(err)
				}
				want = setting.Watts(uint32(watts*1000 + 0.5))
			}
			s, err := setting.Parse(env, setting.GPUKey(row[0], name))
			if err != nil {
				t.Fatal(err)
			}
			got, err := s.Read(t.Context())
			if err != nil || got != want {
				t.Errorf("%s: %q, %v; nvidia-smi says %q", s.Key(), got, err, want)
			}
			// What is there can be set: the check knows its limits.
			if checked, err := s.Check(t.Context(), got); err != nil || checked != got {
				t.Errorf("%s: its own value %q: %q, %v", s.Key(), got, checked, err)
			}
		}
	}
}

// The power limits that are refused begin where nvidia-smi says.
func TestPowerRange(t *testing.T) {
	env := environment(t)
	for _, row := range smi(t, "uuid", "power.min_limit", "power.max_limit", "power.default_limit") {
		s, err := setting.Parse(env, setting.GPUKey(row[0], setting.PowerLimitName))
		if err != nil {
			t.Fatal(err)
		}
		for i, field := range row[1:] {
			watts, err := strconv.ParseFloat(field, 64)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Check(t.Context(), setting.Watts(uint32(watts*1000+0.5))); err != nil {
				t.Errorf("%v", err)
			}
			beyond := []float64{watts - 1, watts + 1}
			if i == 2 {
				continue
			}
			if _, err := s.Check(t.Context(), setting.Watts(uint32(beyond[i]*1000+0.5))); err == nil {
				t.Errorf("gpu %s: %g W accepted, nvidia-smi's limit is %g W", row[0], beyond[i], watts)
			}
		}
	}
}

// The clocks are those that nvidia-smi lists, and no more.
func TestClocks(t *testing.T) {
	env := environment(t)
	for _, gpu := range smi(t, "uuid") {
		uuid := gpu[0]
		sm, err := setting.SMClocks(env, uuid)
		if err != nil {
			t.Fatal(err)
		}
		memory, err := setting.MemoryClocks(env, uuid)
		if err != nil {
			t.Fatal(err)
		}
		var memories, graphics []uint32
		for _, row := range queryOf(t, uuid, "supported-clocks", "memory", "graphics") {
			for i, list := range []*[]uint32{&memories, &graphics} {
				mhz, err := strconv.ParseUint(row[i], 10, 32)
				if err != nil {
					t.Fatal(err)
				}
				*list = append(*list, uint32(mhz))
			}
		}
		for name, c := range map[string]struct {
			got  setting.Clocks
			want []uint32
		}{"SM": {sm, graphics}, "memory": {memory, memories}} {
			slices.Sort(c.want)
			if want := slices.Compact(c.want); !slices.Equal(c.got.Steps, want) {
				t.Errorf("gpu %s: %s clocks %v, nvidia-smi lists %v", uuid, name, c.got.Steps, want)
			}
		}
		t.Logf("gpu %s: SM %s, memory %s", uuid, sm, memory)
	}
}

func queryOf(t *testing.T, uuid, what string, fields ...string) [][]string {
	t.Helper()
	var rows [][]string
	for _, row := range query(t, what, append([]string{"gpu_uuid"}, fields...)...) {
		if row[0] == uuid {
			rows = append(rows, row[1:])
		}
	}
	return rows
}

// The facts that are read and never set.
func TestFacts(t *testing.T) {
	env := environment(t)
	pending := func(p *setting.Pending) string {
		if p == nil {
			return "[N/A] [N/A]"
		}
		text := map[bool]string{false: "Disabled", true: "Enabled"}
		return text[p.Now] + " " + text[p.Next]
	}
	for _, row := range smi(t, "uuid", "name", "ecc.mode.current", "ecc.mode.pending", "mig.mode.current", "mig.mode.pending") {
		facts, err := setting.ReadGPUFacts(env, row[0])
		if err != nil {
			t.Fatal(err)
		}
		if got, want := facts.Model, row[1]; got != want {
			t.Errorf("model %q, nvidia-smi says %q", got, want)
		}
		if got, want := pending(facts.ECC), row[2]+" "+row[3]; got != want {
			t.Errorf("gpu %s: ECC %s, nvidia-smi says %s", row[0], got, want)
		}
		if got, want := pending(facts.MIG), row[4]+" "+row[5]; got != want {
			t.Errorf("gpu %s: MIG %s, nvidia-smi says %s", row[0], got, want)
		}
		rows := queryOf(t, row[0], "remapped-rows", "remapped_rows.correctable", "remapped_rows.uncorrectable", "remapped_rows.pending", "remapped_rows.failure")
		if len(rows) != 1 || facts.Rows == nil {
			t.Fatalf("remapped rows: nvidia-smi says %v, gputune %v", rows, facts.Rows)
		}
		number := map[bool]string{false: "0", true: "1"}
		got := []string{strconv.Itoa(facts.Rows.Correctable), strconv.Itoa(facts.Rows.Uncorrectable), number[facts.Rows.Pending], number[facts.Rows.Failed]}
		said := strings.NewReplacer("No", "0", "Yes", "1").Replace(strings.Join(rows[0], " "))
		if strings.Join(got, " ") != said {
			t.Errorf("gpu %s: remapped rows %v, nvidia-smi says %v", row[0], got, rows[0])
		}
		t.Logf("gpu %s: throttled by %v", facts.PCI, facts.Throttle)
	}
}
