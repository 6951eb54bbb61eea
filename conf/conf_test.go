package conf

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

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
	for _, key := range keys(reflect.TypeFor[Config]()) {
		if !strings.Contains(string(text), "\n"+key+" = ") {
			t.Errorf("shipped file does not show key %s", key)
		}
	}
}

func keys(section reflect.Type) []string {
	var names []string
	for _, field := range reflect.VisibleFields(section) {
		if field.Type.Kind() == reflect.Struct && field.Type != reflect.TypeFor[Items]() {
			names = append(names, keys(field.Type)...)
			continue
		}
		names = append(names, field.Tag.Get("toml"))
	}
	return names
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

func TestLoadRefuses(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"unknown key":   {"[paths]\nmachne = \"/\"\n", `unknown key paths.machne: known are paths.machine`},
		"unknown table": {"[path]\nmachine = \"/\"\n", "unknown key path"},
		"wrong type":    {"[paths]\nmachine = 3\n", "machine"},
		"bad items":     {"\n[numa_bind]\nitems = \"cpus=sideways\"\n", `item "cpus=sideways": want cpus=node|`},
		"off":           {"[numa_bind]\nitems = \"off,mem=bind\"\n", "default= in plugstack.conf"},
		"syntax":        {"[paths]\nmachine = \n", "line 2"},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, c.text)
			got, err := Load(path)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v, want one with %q and the path", err, c.want)
			}
			if !reflect.DeepEqual(got, Default()) {
				t.Errorf("a refused file must give the defaults, got %+v", got)
			}
		})
	}
	if _, err := Load(filepath.Join(t.TempDir(), "absent.toml")); err == nil {
		t.Error("a file that was named must be there")
	}
}
