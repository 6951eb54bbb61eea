package job

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gputune/conf"
)

// proc makes the Prolog's own /proc below its root.
func (h *Host) proc(t *testing.T, capabilities, hard string) {
	t.Helper()
	folder := filepath.Join(h.Root, "proc/self")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"status": "Name:\tgputune-prolog\nCapPrm:\t000001ffffffffff\nCapEff:\t" + capabilities + "\nCapBnd:\t000001ffffffffff\n",
		"limits": "Limit                     Soft Limit           Hard Limit           Units     \n" +
			"Max processes             15423                15423                processes \n" +
			"Max locked memory         65536                " + hard + "              bytes     \n",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMemlock(t *testing.T) {
	const all, less = "000001ffffffffff", "000001fffeffffff"
	for name, c := range map[string]struct {
		value, capabilities, hard string
		most                      conf.MiB
		file, refused, nearest    string
	}{
		"unlimited":                  {"unlimited", all, "8388608", 0, "memlock unlimited\n", "", ""},
		"a size":                     {"4G", all, "8388608", 0, "memlock 4294967296\n", "", ""},
		"inherit":                    {"inherit", less, "0", 1, "", "", ""},
		"within slurmd's own":        {"8M", less, "8388608", 0, "memlock 8388608\n", "", ""},
		"slurmd has no limit":        {"unlimited", less, "unlimited", 0, "memlock unlimited\n", "", ""},
		"more than slurmd's own":     {"9M", less, "8650752", 0, "", "locked memory: 9M: slurmd runs without CAP_SYS_RESOURCE, and its own limit is 8448 KiB", "8M"},
		"slurmd's own is nothing":    {"unlimited", less, "65536", 0, "", "locked memory: unlimited: slurmd runs without CAP_SYS_RESOURCE, and its own limit is 64 KiB", ""},
		"what the site allows":       {"2G", all, "0", 2048, "memlock 2147483648\n", "", ""},
		"more than the site allows":  {"3G", all, "0", 2048, "", "locked memory: 3G: the site allows 2048 MiB at most", "2G"},
		"unlimited is more as well":  {"unlimited", all, "0", 1000, "", "locked memory: unlimited: the site allows 1000 MiB at most", "1000M"},
		"what slurmd has is unknown": {"1T", "?", "?", 0, "memlock 1099511627776\n", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			h, output := host(t, "SPANK_GPUTUNE_GPU_MEMLOCK="+c.value)
			h.proc(t, c.capabilities, c.hard)
			kernel := filepath.Join(h.Root, "proc/sys/kernel/random")
			if err := os.MkdirAll(kernel, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(kernel, "boot_id"), []byte("b\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			h.Site.Memlock.Max = c.most
			h.Prolog(t.Context())
			files := h.files(t)
			var report Report
			if err := json.Unmarshal([]byte(files["/run/gputune/jobs/42.json"]), &report); err != nil {
				t.Fatalf("%v\n%s", err, output)
			}
			got := report.Options[0]
			if files["/run/gputune/jobs/42.tasks"] != c.file || got.Reason != c.refused || got.Nearest != c.nearest || (got.State == Applied) != (c.refused == "") {
				t.Errorf("%+v, file %q\n%s", got, files["/run/gputune/jobs/42.tasks"], output)
			}
			if err := h.Epilog(t.Context()); err != nil {
				t.Error(err)
			}
			for file := range h.files(t) {
				if strings.HasPrefix(file, "/run/") {
					t.Errorf("%s is left", file)
				}
			}
		})
	}
}
