package conf

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// Root does not follow what others may have written, not even its paths.
func TestFileThatOthersMayWrite(t *testing.T) {
	for mode, why := range map[os.FileMode]string{
		0o644: "", 0o600: "", 0o400: "",
		0o664: "mode 0664", 0o646: "mode 0646", 0o666: "mode 0666", 0o602: "mode 0602",
	} {
		path := write(t, "[paths]\nstate = \"/elsewhere\"\n")
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		got, err := Load(path)
		switch {
		case why == "" && (err != nil || got.Paths.State != "/elsewhere"):
			t.Errorf("mode %o: %v, state %q", mode, err, got.Paths.State)
		case why != "" && (err == nil || !strings.Contains(err.Error(), path+": "+why) || !strings.Contains(err.Error(), "chmod go-w")):
			t.Errorf("mode %o: %v, want %q", mode, err, why)
		case why != "" && !reflect.DeepEqual(got, Default()):
			t.Errorf("mode %o: %+v, want the defaults", mode, got)
		}
	}
}

func TestFileOfSomebodyElse(t *testing.T) {
	path := write(t, "[paths]\nstate = \"/elsewhere\"\n")
	if err := os.Chown(path, 65534, 0); err != nil {
		t.Skip("only root can give files away:", err)
	}
	if got, err := Load(path); err == nil || !strings.Contains(err.Error(), "owner is user 65534: want root") || !reflect.DeepEqual(got, Default()) {
		t.Errorf("%v, %+v", err, got)
	}
}
