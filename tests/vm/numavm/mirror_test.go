package numavm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMirror runs the recipe's mirror.sh on apt configurations of both forms.
func TestMirror(t *testing.T) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		t.Skip(err)
	}
	script, err := filepath.Abs("../image/mirror.sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		files   map[string]string // below etc/apt
		env     []string
		want    string
		wantErr string
	}{
		{
			name: "deb822",
			files: map[string]string{"sources.list.d/debian.sources": "Types: deb deb-src\nURIs: http://mirror.example/debian/\n" +
				"Suites: bookworm bookworm-updates\nComponents: main contrib\n\n" +
				"Types: deb\nURIs: http://mirror.example/security\nSuites: bookworm-security\nComponents: main\n"},
			want: "MIRROR=http://mirror.example/debian\nSECURITY=http://mirror.example/security\n",
		},
		{
			name: "one line",
			files: map[string]string{"sources.list": "# deb http://old.example/debian bookworm main\n" +
				"deb http://mirror.example/updates bookworm-updates main\ndeb http://mirror.example/bpo bookworm-backports main\n" +
				"deb [arch=amd64] http://mirror.example/debian bookworm main\ndeb http://mirror.example/security bookworm-security main\n"},
			want: "MIRROR=http://mirror.example/debian\nSECURITY=http://mirror.example/security\n",
		},
		{
			name: "disabled entry, no security archive, another's packages",
			files: map[string]string{
				"sources.list.d/a.sources": "Enabled: no\nTypes: deb\nURIs: http://off.example/debian\nSuites: bookworm\nComponents: main\n",
				"sources.list.d/b.list":    "deb http://vendor.example/repo stable vendor\ndeb http://mirror.example/debian trixie main\n",
			},
			want: "MIRROR=http://mirror.example/debian\nSECURITY=''\n",
		},
		{
			name:  "environment wins",
			files: map[string]string{"sources.list": "deb http://mirror.example/debian bookworm main\n"},
			env:   []string{"GPUTUNE_VM_MIRROR=http://other.example/a b"},
			want:  "MIRROR=http://other.example/a\\ b\nSECURITY=''\n",
		},
		{name: "nothing", wantErr: "set GPUTUNE_VM_MIRROR=URL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			etc := filepath.Join(t.TempDir(), "apt")
			for name, content := range c.files {
				path := filepath.Join(etc, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			conf := filepath.Join(t.TempDir(), "apt.conf")
			if err := os.WriteFile(conf, fmt.Appendf(nil, "Dir::Etc::sourcelist %q;\nDir::Etc::sourceparts %q;\nDir::State::lists %q;\n",
				filepath.Join(etc, "sources.list"), filepath.Join(etc, "sources.list.d"), t.TempDir()), 0o644); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(script)
			cmd.Env = append(append(os.Environ(), "APT_CONFIG="+conf), c.env...)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if c.wantErr != "" {
				if err == nil || !strings.Contains(stderr.String(), c.wantErr) {
					t.Errorf("%v, %q; want %q", err, stderr.String(), c.wantErr)
				}
				return
			}
			if err != nil || string(out) != c.want {
				t.Errorf("printed %q, %v, %s; want %q", out, err, stderr.String(), c.want)
			}
		})
	}
}
