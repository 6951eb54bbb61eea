package conf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"gputune/internal/placement"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gputune.toml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestShippedFileIsTheDefault(t *testing.T) {
	got, err := Load("gputune.toml")
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, Default()) {
		t.Errorf("shipped file gives %+v, want the defaults %+v", got, Default())
	}
	text, err := os.ReadFile("gputune.toml")
	if err != nil {
		t.Fatal(err)
	}
	table := ""
	shown := map[string]int{}
	for line := range strings.Lines(string(text)) {
		if name, isTable := strings.CutPrefix(line, "["); isTable {
			table = strings.TrimSuffix(strings.TrimSpace(name), "]")
		}
		if name, _, isKey := strings.Cut(line, " = "); isKey && !strings.HasPrefix(line, "#") {
			shown[table+"."+name]++
		}
	}
	for key := range shown {
		if parts := strings.SplitN(key, ".", 4); parts[0] == "profile" {
			parts[1] = "NAME"
			if parts[2] == "sysctl" {
				parts[3] = "NAME"
			}
			delete(shown, key)
			shown[strings.Join(parts, ".")] = 1
		}
	}
	// What only a site can have is in comments.
	for _, key := range []string{"environment.NAME", "profile.NAME.thp_defrag", "profile.NAME.khugepaged_defrag", "profile.NAME.hugepages"} {
		if name := key[strings.LastIndexByte(key, '.')+1:]; name != "NAME" && !strings.Contains(string(text), "# "+name+" ") {
			t.Errorf("shipped file does not tell of %s", key)
		}
		shown[key]++
	}
	for _, key := range Keys() {
		if shown[key] != 1 {
			t.Errorf("shipped file shows key %s %d times", key, shown[key])
		}
	}
	if len(shown) != len(Keys()) {
		t.Errorf("shipped file shows %d keys of %d", len(shown), len(Keys()))
	}
}

func TestLoad(t *testing.T) {
	got, err := Load(write(t, "[numa_bind]\nitems = \"mem=bind,strict\"\n[paths]\nmachine = \"/m\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got.NUMABind.Items.Policy.Mem != placement.MemBind || !got.NUMABind.Items.Strict {
		t.Errorf("items not taken: %+v", got.NUMABind)
	}
	if got.Paths.Machine != "/m" || got.Paths.Snapshot != Default().Paths.Snapshot {
		t.Errorf("paths: %+v", got.Paths)
	}
}

func TestReportsFolder(t *testing.T) {
	for text, want := range map[string]string{
		"": "/var/lib/gputune/reports", "state = \"/s\"": "/s/reports", "reports = \"/r\"": "/r", "reports = \"/var/lib/gputune/reports\"": "/var/lib/gputune/reports",
	} {
		got, err := Load(write(t, "[paths]\n"+text+"\n"))
		if err != nil || got.Paths.ReportsFolder() != want {
			t.Errorf("%s: %s, %v", text, got.Paths.ReportsFolder(), err)
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"unknown key":      {"[paths]\n\nmachne = \"/\"\n", `line 3: unknown key paths.machne: known are paths.machine`},
		"unknown table":    {"[path]\nmachine = \"/\"\n", "line 1: unknown key path"},
		"dotted key":       {"job.on_refsal = \"fail\"\n", "line 1: unknown key job.on_refsal"},
		"wrong type":       {"[paths]\nmachine = 3\n", "line 2: key paths.machine: 3: want an absolute path"},
		"relative":         {"[paths]\nrun = \"run\"\n", `line 2: key paths.run: "run": want an absolute path`},
		"no place":         {"[paths]\nstate = \"\"\n", `key paths.state: "": want an absolute path`},
		"run in state":     {"[paths]\nrun = \"/var/lib/gputune/run\"\n", `key paths.run: "/var/lib/gputune/run": want a folder apart from paths.state ("/var/lib/gputune")`},
		"state is run":     {"[paths]\nrun = \"/g/\"\nstate = \"/g\"\n", "want a folder apart from paths.state"},
		"reports in run":   {"[paths]\nreports = \"/run/gputune/reports\"\n", `key paths.reports: "/run/gputune/reports": want a folder apart from paths.run ("/run/gputune") and paths.state ("/var/lib/gputune")`},
		"reports is state": {"[paths]\nreports = \"/var/lib/gputune\"\n", "want a folder apart"},
		"reports in jobs":  {"[paths]\nreports = \"/var/lib/gputune/jobs\"\n", "want a folder apart"},
		"reports above":    {"[paths]\nreports = \"/var/lib\"\n", "want a folder apart"},
		"no reports":       {"[report]\nmax_reports = 0\n", `line 2: key report.max_reports: 0: want a whole number from 1 to 100000`},
		"every moment":     {"[report]\ninterval = \"100ms\"\n", `want a time from 1s`},
		"bad items":        {"\n[numa_bind]\nitems = \"cpus=sideways\"\n", `line 3: key numa_bind.items: --gpu-numa-bind: item "cpus=sideways": want cpus=node|`},
		"items by type":    {"[numa_bind]\nitems = true\n", "line 2: key numa_bind.items: true: want items: on, off"},
		"refusal":          {"[job]\non_refusal = \"drain\"\n", `line 2: key job.on_refusal: "drain": want "fail" or "warn"`},
		"reset":            {"[gpu_mig]\nallow_reset = \"yes\"\n", `line 2: key gpu_mig.allow_reset: "yes": want true or false`},
		"deadline":         {"[job]\nprolog_deadline = \"30\"\n", `line 2: key job.prolog_deadline: "30": want a time from 1s to 1h0m0s`},
		"too short":        {"[job]\nepilog_deadline = \"10ms\"\n", `"10ms": want a time from 1s`},
		"negative":         {"[gpu_power]\nmin_watts = -1\n", "line 2: key gpu_power.min_watts: -1: want a whole number from 0 to 100000"},
		"fraction":         {"[gpu_power]\nmin_watts = 1.5\n", "1.5: want a whole number"},
		"bounds":           {"[gpu_clocks]\nmin_mhz = 900\nmax_mhz = 800\n", "key gpu_clocks.min_mhz: 900: want gpu_clocks.max_mhz (800) or less"},
		"allow a word":     {"[gpu_clocks]\nallow = \"all\"\n", `line 2: key gpu_clocks.allow: "all": want a list of "all", "partition:NAME"`},
		"allow nothing":    {"[gpu_clocks]\nallow = [\"user:\"]\n", `"user:": want a list of`},
		"allow all of":     {"[gpu_clocks]\ndeny = [\"all:x\"]\n", `"all:x": want a list of`},
		"allow number":     {"[gpu_clocks]\ndeny = [3]\n", "[3]: want a list of"},
		"modes":            {"[gpu_compute_mode]\nmodes = [\"shared\", \"single\"]\n", `line 2: key gpu_compute_mode.modes: [shared single]: want a list of "shared", "exclusive" and "prohibited"`},
		"program":          {"[gpu_mps]\nprogram = \"mps\"\n", `line 2: key gpu_mps.program: "mps": want an absolute path`},
		"not a switch":     {"[gpu_mps]\nexclusive = \"yes\"\n", `line 2: key gpu_mps.exclusive: "yes": want true or false`},
		"memory":           {"[gpu_mps]\nmax_memory_mib = \"4G\"\n", `"4G": want a whole number from 0 to 1073741824`},
		"clock word":       {"[baseline]\nclocks = \"high\"\n", `line 2: key baseline.clocks: "high": want "", "unlocked", MHZ or MIN-MAX`},
		"clock pair":       {"[baseline]\nclocks = \"900,memory=800\"\n", `want "", "unlocked", MHZ or MIN-MAX`},
		"power":            {"[baseline]\npower = 500\n", `line 2: key baseline.power: 500: want "", WATTS, "max" or "default"`},
		"persistence":      {"[baseline]\npersistence = true\n", `true: want "", "on" or "off"`},
		"compute mode":     {"[baseline]\ncompute_mode = \"default\"\n", `"default": want "", "shared", "exclusive" or "prohibited"`},
		"off":              {"[numa_bind]\nitems = \"off,mem=bind\"\n", "default= in plugstack.conf"},
		"syntax":           {"[paths]\nmachine = \n", "line 2"},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, c.text)
			got, err := Load(path)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v, want one with %q and the path", err, c.want)
			}
			if got.Paths = Default().Paths; !reflect.DeepEqual(got, Default()) {
				t.Errorf("a refused file must give the defaults, got %+v", got)
			}
		})
	}
	if _, err := Load(filepath.Join(t.TempDir(), "absent.toml")); err == nil {
		t.Error("a file that was named must be there")
	}
}

// Where a file has an error, its paths count all the same, each that is right
// by itself.
func TestSalvage(t *testing.T) {
	for name, text := range map[string]string{
		"bad value":   "[job]\non_refusal = \"maybe\"\n[paths]\nstate = \"/s\"\nrun = \"/r\"\n",
		"bad syntax":  "[job\n[paths]\n  state = \"/s\" # here\n run=\"/r\"\n[x]\nstate = \"/not\"\n",
		"bad path":    "[paths]\nsnapshot = 3\nstate = \"/s\"\nmachine = \"relative\"\nrun = \"/r\"\n",
		"unknown key": "[paths]\nstate = \"/s\"\nrun = \"/r\"\nran = \"/x\"\n",
	} {
		got, err := Load(write(t, text))
		want := Default()
		want.Paths.State, want.Paths.Run = "/s", "/r"
		if err == nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %+v", name, err, got)
		}
	}
}

func TestLoadJobs(t *testing.T) {
	got, err := Load(write(t, `
[job]
on_refusal = "warn"
prolog_deadline = "20s"
[gpu_mig]
allow_reset = true
[gpu_clocks]
allow = ["partition:bench", "group:tuners"]
deny = ["user:mallory"]
max_mhz = 1800
[gpu_compute_mode]
modes = []
[gpu_mps]
program = "/opt/mps"
exclusive = false
max_memory_mib = 200000
ready_deadline = "3s"
[baseline]
clocks = "345-1800"
persistence = "on"
power = "700"
`))
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Job.OnRefusal, want.Job.PrologDeadline = RefusalWarns, Duration(20*time.Second)
	want.MIG.AllowReset = true
	want.Clocks = Clocks{Max: 1800, Access: Access{
		Allow: Subjects{{Partition, "bench"}, {Group, "tuners"}}, Deny: Subjects{{User, "mallory"}},
	}}
	want.ComputeMode.Modes = Modes{}
	want.MPS.Program, want.MPS.Exclusive, want.MPS.MaxMemory, want.MPS.ReadyDeadline = "/opt/mps", false, 200000, Duration(3*time.Second)
	want.Baseline = Baseline{SMClocks: "345-1800", Persistence: "on", Power: "700"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestPermit(t *testing.T) {
	who := func(groups []string, err error) Identity {
		return Identity{Partition: "gpu", Account: "physics", User: "alice", Groups: func() ([]string, error) { return groups, err }}
	}
	none := who(nil, nil)
	none.Groups = func() ([]string, error) { t.Error("the groups were asked for in vain"); return nil, nil }
	broken := who(nil, errors.New("no answer"))
	for name, c := range map[string]struct {
		allow, deny []Subject
		who         Identity
		want        string // "" permitted
	}{
		"everybody":          {[]Subject{{All, ""}}, nil, none, ""},
		"nobody":             {nil, nil, none, "the site allows it to nobody"},
		"by user":            {[]Subject{{User, "bob"}, {User, "alice"}}, nil, none, ""},
		"by account":         {[]Subject{{Account, "physics"}}, nil, none, ""},
		"by partition":       {[]Subject{{Partition, "cpu"}}, nil, none, "the site allows it to partition:cpu"},
		"kinds do not mix":   {[]Subject{{Partition, "alice"}, {User, "gpu"}}, nil, none, "the site allows it to partition:alice, user:gpu"},
		"by group":           {[]Subject{{Group, "tuners"}}, nil, who([]string{"users", "tuners"}, nil), ""},
		"not in the group":   {[]Subject{{Group, "tuners"}}, nil, who([]string{"users"}, nil), "the site allows it to group:tuners"},
		"deny wins":          {[]Subject{{All, ""}}, []Subject{{User, "alice"}}, none, "the site denies it to user:alice"},
		"deny another":       {[]Subject{{All, ""}}, []Subject{{User, "bob"}}, none, ""},
		"deny all":           {[]Subject{{User, "alice"}}, []Subject{{All, ""}}, none, "the site denies it to all"},
		"groups fail, allow": {[]Subject{{Group, "tuners"}}, nil, broken, "the site allows it to group:tuners (the user's groups: no answer)"},
		"groups fail, deny":  {[]Subject{{All, ""}}, []Subject{{Group, "students"}}, broken, "the site denies it to group:students (the user's groups: no answer)"},
		"user unknown":       {[]Subject{{All, ""}}, []Subject{{User, "mallory"}}, Identity{}, "the site denies it to user:mallory"},
		"account unknown":    {[]Subject{{Account, "physics"}}, nil, Identity{User: "alice"}, "the site allows it to account:physics"},
		"groups not needed":  {[]Subject{{User, "alice"}, {Group, "tuners"}}, nil, none, ""},
	} {
		err := Access{Allow: c.allow, Deny: c.deny}.Permit(c.who)
		if got := fmt.Sprint(err); got != c.want && (err != nil || c.want != "") {
			t.Errorf("%s: %s, want %q", name, got, c.want)
		}
	}
}
