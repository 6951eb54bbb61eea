package job

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gputune/conf"
	"gputune/internal/option"
	"gputune/internal/setting"
)

// host is a host whose files are in a folder of the test's and that has no GPU.
func host(t testing.TB, environ ...string) (*Host, *bytes.Buffer) {
	t.Helper()
	output := &bytes.Buffer{}
	root := t.TempDir()
	for _, folder := range []string{"run", "var/lib"} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return &Host{
		Root: root,
		Environ: append([]string{
			"SLURM_JOB_ID=42", "SLURM_JOB_UID=1000", "SLURM_JOB_GID=1000", "SLURM_JOB_GPUS=0", "CUDA_VISIBLE_DEVICES=0", "SLURMD_NODENAME=n1",
		}, environ...),
		Site:   conf.Default(),
		NVML:   func() (setting.Devices, error) { return nil, setting.ErrUnsupported },
		Groups: func(uint32) ([]string, error) { return nil, nil },
		Now:    func() time.Time { return time.Unix(1e9, 0) },
		Output: output,
	}, output
}

func (h *Host) files(t testing.TB) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(h.Root, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		files[strings.TrimPrefix(path, h.Root)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// Every option that can be given has a wish, so that none is passed over.
func TestEveryOptionHasAWish(t *testing.T) {
	var names []string
	for _, o := range option.JobOptions() {
		names = append(names, o.Name)
	}
	if got := slices.Sorted(maps.Keys(wishes)); !slices.Equal(got, slices.Sorted(slices.Values(names))) {
		t.Errorf("wishes for %v, options %v", got, names)
	}
}

func TestBaseline(t *testing.T) {
	b := conf.Baseline{SMClocks: "345-1800", Persistence: "on", Power: "700"}
	for name, value := range map[string]string{
		setting.SMClocksName: "345-1800", setting.PowerLimitName: "700", setting.PersistenceName: "on",
		setting.MemoryClocksName: "", setting.ComputeModeName: "", setting.ApplicationClocksName: "",
	} {
		if baseline(b, name) != value {
			t.Errorf("%s is put back to %q, want %q", name, baseline(b, name), value)
		}
	}
}

// A site's broken file allows nothing: it could have been there to forbid.
func TestBrokenConfiguration(t *testing.T) {
	h, output := host(t, "SPANK_GPUTUNE_GPU_POWER=500")
	h.SiteError = errors.New("gputune.toml: line 3: key job.on_refusal: \"maybe\": want \"fail\" or \"warn\"")
	h.Prolog(context.Background())
	files := h.files(t)
	if want := "warn\nthe job's options are not carried out: " + h.SiteError.Error() + "\n"; files["/run/gputune/jobs/42.notice"] != want {
		t.Errorf("notice %q", files["/run/gputune/jobs/42.notice"])
	}
	var report Report
	if err := json.Unmarshal([]byte(files["/run/gputune/jobs/42.json"]), &report); err != nil {
		t.Fatal(err)
	}
	want := Report{
		Version: 1, Job: "42", UID: 1000, Node: "n1", Time: time.Unix(1e9, 0).UTC(), OnRefusal: conf.RefusalFails,
		Fault:   h.SiteError.Error(),
		Options: []Option{{Name: "gpu-power", Value: "500", State: Dropped}},
	}
	if got, want := marshal(t, report), marshal(t, want); got != want {
		t.Errorf("report %s, want %s", got, want)
	}
	if !strings.Contains(output.String(), "job 42: gputune.toml: line 3") {
		t.Errorf("output %q", output)
	}
	if err := h.Epilog(context.Background()); err != nil || len(h.files(t)) > 0 {
		t.Errorf("%v, left %v", err, h.files(t))
	}
}

func marshal(t testing.TB, report Report) string {
	t.Helper()
	text, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A Prolog whose process died reports on it and touches no GPU.
func TestLost(t *testing.T) {
	h, _ := host(t, "SPANK_GPUTUNE_GPU_POWER=500", "SPANK_GPUTUNE_GPU_CLOCKS=x")
	h.Lost(errors.New("signal: segmentation fault"))
	notice := h.files(t)["/run/gputune/jobs/42.notice"]
	want := "fail\n--gpu-clocks=\"x\": \"x\": want " + option.ClocksForms + " (clocks up to 100000 MHz)\n" +
		"the job's options are not carried out: signal: segmentation fault\n"
	if notice != want {
		t.Errorf("notice %q, want %q", notice, want)
	}
}

// Without a job's number nothing can be recorded: the Prolog says so and lets
// the job run, the Epilog fails.
func TestNoJob(t *testing.T) {
	for _, id := range []string{"", "x", "0", "-1", "1.2", "../1", "01", "99999999999", "1\n"} {
		h, output := host(t, "SPANK_GPUTUNE_GPU_POWER=500")
		h.Environ = slices.DeleteFunc(h.Environ, func(v string) bool { return strings.HasPrefix(v, "SLURM_JOB_ID=") })
		if id != "" {
			h.Environ = append(h.Environ, "SLURM_JOB_ID="+id)
		}
		h.Prolog(context.Background())
		if err := h.Epilog(context.Background()); err == nil || !strings.Contains(err.Error(), "SLURM_JOB_ID=") {
			t.Errorf("%q: %v", id, err)
		}
		if files := h.files(t); len(files) > 0 || !strings.Contains(output.String(), "nothing is done") {
			t.Errorf("%q: %v, %q", id, files, output)
		}
	}
}

// hostile are values as nobody types them.
var hostile = []string{
	"", " ", "500 ", "+500", "0x1f4", "5e2", "-1", "0", "00000000000000000000500", "4294967296", "18446744073709551616",
	"500\n", "500\x00600", "../../etc/passwd", "/dev/mem", "$(reboot)", "`reboot`", "500;reboot", "500|reboot", "500&", "%s%n%d",
	"\x1b[2J\x1b]0;x\x07", "\u202e005", "５００", "\xff\xfe", "max,max", ",", "low,high", "memory=", "memory=memory=1", "1200,memory=1,memory=2",
	"1200-", "-1200", "1500-1200", "1200-1500-1800", "shared exclusive", "SHARED", strings.Repeat("9", 1<<20), strings.Repeat("1200,", 1<<18),
	strings.Repeat("\x00", 1<<20), "fail\nwarn\n", "\r\nwarn",
}

// checkHostile runs the Prolog with a value and requires that it is either what
// the grammar accepts, or refused in one printable line of bounded length, and
// that nothing is written but the job's own reports.
func checkHostile(t *testing.T, name, value string) {
	t.Helper()
	for _, o := range option.JobOptions() {
		if o.Variable() != name && o.Name != name {
			continue
		}
		if mps, err := option.ParseMPS(value); o.Name == option.MPSName && err == nil && mps.Off {
			continue // it asks for nothing
		}
		if o.Name == option.THPName && value == string(option.THPNever) {
			continue // the job's tasks can have that anywhere
		}
		accepted := o.Check(value) == nil
		h, output := host(t, o.Variable()+"="+value)
		h.Environ = slices.DeleteFunc(h.Environ, func(v string) bool { return strings.HasPrefix(v, "SLURM_JOB_GPUS=") })
		h.Environ = slices.DeleteFunc(h.Environ, func(v string) bool { return strings.HasPrefix(v, "CUDA_") })
		h.Prolog(context.Background())
		files := h.files(t)
		if names := slices.Sorted(maps.Keys(files)); !slices.Equal(names, []string{"/run/gputune/jobs/42.json", "/run/gputune/jobs/42.notice"}) {
			t.Fatalf("%s=%.80q: files %v", o.Name, value, names)
		}
		kind, line, _ := strings.Cut(files["/run/gputune/jobs/42.notice"], "\n")
		if kind != "fail" || strings.Count(line, "\n") != 1 || len(line) > 1000 {
			t.Fatalf("%s=%.80q: notice %.2000q", o.Name, value, files["/run/gputune/jobs/42.notice"])
		}
		for _, r := range line + output.String() {
			if r != '\n' && (r < ' ' || r == 0x7f || r > 0x2100) {
				t.Fatalf("%s=%.80q: %q in %.2000q", o.Name, value, r, line)
			}
		}
		var report Report
		if err := json.Unmarshal([]byte(files["/run/gputune/jobs/42.json"]), &report); err != nil {
			t.Fatal(err)
		}
		// The job has no GPU, and the node not for itself, so that what the grammar
		// accepts is refused as well.
		got := report.Options[0]
		want := map[string]string{
			option.THPName: "it is the whole node's", option.DropCachesName: "it is the whole node's", option.NodeProfileName: "no profile ",
		}[o.Name]
		if want == "" {
			want = "the job has no GPU of its own"
		}
		if strings.HasPrefix(got.Reason, want) != accepted || got.State != Refused {
			t.Fatalf("%s=%.80q: accepted %v, %+v", o.Name, value, accepted, got)
		}
	}
}

func TestHostileValues(t *testing.T) {
	for _, o := range option.JobOptions() {
		for _, value := range hostile {
			checkHostile(t, o.Name, value)
		}
	}
}

func FuzzHostileValue(f *testing.F) {
	for _, value := range hostile {
		if len(value) < 1000 {
			f.Add(value)
		}
	}
	f.Fuzz(func(t *testing.T, value string) {
		for _, o := range option.JobOptions() {
			checkHostile(t, o.Name, value)
		}
	})
}

// A variable that is no option's is refused, whatever its name is.
func TestHostileNames(t *testing.T) {
	for _, name := range []string{"", "../../x", "X\nwarn", "X\x1b[2J", strings.Repeat("A", 1<<20), "GPU_CLOCKS ", "gpu_clocks"} {
		h, _ := host(t, "SPANK_GPUTUNE_"+name+"=1")
		h.Prolog(context.Background())
		notice := h.files(t)["/run/gputune/jobs/42.notice"]
		if !strings.HasPrefix(notice, "fail\n--") || strings.Count(notice, "\n") != 2 || len(notice) > 500 || strings.ContainsRune(notice, 0x1b) {
			t.Errorf("%.80q: notice %.2000q", name, notice)
		}
	}
}
