package bed

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestConfigurationFiles(t *testing.T) {
	cases := []struct {
		name      string
		options   Options
		addresses []string
		auth      string
	}{
		{"plain", Options{}, []string{"127.0.0.1"}, authNone},
		{"full", Options{
			GPUs: 4, ConstrainCores: true, ConstrainDevices: true, NCPU: 2,
			Prolog: "${DIR}/run/prolog", Epilog: "/usr/libexec/epilog",
			Partition: "OverSubscribe=FORCE:4", MaxTime: "10",
			PlugstackLines: []string{"optional /usr/lib/plugin.so conf=${DIR}/etc/plugin.toml"},
			ExtraGres:      []string{"Name=mps Count=400"},
			NodeGres:       "gpu:4,mps:400",
			ExtraSlurmConf: []string{"", "# said in words", "slurmddebug = debug2", "TaskProlog=${DIR}/run/task", "PartitionName=debug Nodes=node03"},
		}, []string{"192.0.2.7", "127.0.0.1"}, authMunge},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			options, err := c.options.complete(ampleMachine())
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, "etc"), 0o755); err != nil {
				t.Fatal(err)
			}
			b := &Bed{Dir: dir, Node: "node03", Cluster: "bed1x", Auth: c.auth, options: options, host: "host", addresses: c.addresses, ports: [2]int{21000, 22000}, firstJob: 7000}
			if err := b.writeConfiguration(); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"slurm.conf", "gres.conf", "cgroup.conf", "plugstack.conf"} {
				text, err := os.ReadFile(filepath.Join(dir, "etc", name))
				if err != nil {
					t.Fatal(err)
				}
				got := strings.ReplaceAll(string(text), dir, "/bed")
				golden := filepath.Join("testdata", c.name, name)
				if *update {
					if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				wanted, err := os.ReadFile(golden)
				if err != nil {
					t.Fatal(err)
				}
				if got != string(wanted) {
					t.Errorf("%s differs from %s (-update writes it):\n%s", name, golden, got)
				}
			}
		})
	}
}

func TestGPULines(t *testing.T) {
	cases := []struct {
		name   string
		gpus   int
		extra  []string
		wanted []string
	}{
		{"none", 0, nil, []string{}},
		{"one", 1, nil, []string{"Name=gpu File=/bed/dev/nvidia0"}},
		{"twelve", 12, nil, []string{"Name=gpu File=/bed/dev/nvidia[0-11]"}},
		{"beside", 2, []string{"Name=shard Count=8"}, []string{"Name=shard Count=8", "Name=gpu File=/bed/dev/nvidia[0-1]"}},
		{"replaced", 2, []string{"NAME=gpu Type=x File=${DIR}/dev/nvidia0"}, []string{"NAME=gpu Type=x File=/bed/dev/nvidia0"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := &Bed{Dir: "/bed", options: Options{GPUs: c.gpus, ExtraGres: c.extra}}
			if got := b.gresConf(); !slices.Equal(got, c.wanted) {
				t.Errorf("got %q, want %q", got, c.wanted)
			}
		})
	}
}

func TestGresTypes(t *testing.T) {
	for text, wanted := range map[string][]string{
		"":                          nil,
		"gpu:4":                     {"gpu"},
		"gpu":                       {"gpu"},
		"gpu:a:1,gpu:b:1, mps:400,": {"gpu", "mps"},
	} {
		if got := gresTypes(text); !slices.Equal(got, wanted) {
			t.Errorf("%q: got %q, want %q", text, got, wanted)
		}
	}
}

func TestExtraLines(t *testing.T) {
	cases := []struct{ line, wanted, refused string }{
		{"KillWait=1", "KillWait=1\n", ""},
		{" killwait = 1 ", "KillWait=1\n", ""},
		{"Other=a=b c", "KillWait=30\nOther=a=b c\n", ""},
		{"NodeName=x CPUs=1", "KillWait=30\nNodeName=x CPUs=1\n", ""},
		{"# KillWait=1", "KillWait=30\n", ""},
		{"KillWait", "", "want Parameter=value"},
		{"KillWait 1=2", "", "want Parameter=value"},
		{"=1", "", "want Parameter=value"},
		{"clustername=x", "", "the bed's own"},
		{"a=b\nClusterName=x", "", "in one line"},
	}
	for _, c := range cases {
		t.Run(c.line, func(t *testing.T) {
			var p parameters
			p.set("KillWait", "30")
			err := p.setLine(c.line)
			switch {
			case c.refused != "":
				if err == nil || !strings.Contains(err.Error(), c.refused) || !strings.Contains(err.Error(), strconv.Quote(c.line)) {
					t.Errorf("want an error with %q and the line, got %v", c.refused, err)
				}
			case err != nil:
				t.Error(err)
			case p.String() != c.wanted:
				t.Errorf("got %q, want %q", p.String(), c.wanted)
			}
		})
	}
}

func TestRepeatedNodeLines(t *testing.T) {
	var p parameters
	for _, line := range []string{"NodeName=a", "nodename=b", "PartitionName=p"} {
		if err := p.setLine(line); err != nil {
			t.Fatal(err)
		}
	}
	if wanted := "NodeName=a\nnodename=b\nPartitionName=p\n"; p.String() != wanted {
		t.Errorf("got %q, want %q", p.String(), wanted)
	}
}

// Whatever is taken gives a file of one line for each parameter and of no
// parameter twice.
func FuzzExtraLine(f *testing.F) {
	for _, seed := range []string{"KillWait=1", "killwait =", "#", "NodeName=x", "a=b\nc=d", "=", "SlurmdPort=1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		var p parameters
		p.set("KillWait", "30")
		if p.setLine(line) != nil {
			return
		}
		text := p.String()
		if got := strings.Count(text, "\n"); got != len(p) {
			t.Errorf("%d parameters give %d lines: %q", len(p), got, text)
		}
		if got := strings.Count(strings.ToLower("\n"+text), "\nkillwait="); got != 1 {
			t.Errorf("KillWait is there %d times: %q", got, text)
		}
	})
}

func TestLoopbackOnly(t *testing.T) {
	cases := []struct {
		addresses []string
		wanted    bool
	}{
		{nil, false},
		{[]string{"127.0.0.1"}, true},
		{[]string{"127.0.0.1", "127.0.0.1"}, true},
		{[]string{"127.0.1.1"}, false},
		{[]string{"127.0.0.1", "192.0.2.1"}, false},
		{[]string{"::1"}, false},
	}
	for _, c := range cases {
		if got := loopbackOnly(c.addresses); got != c.wanted {
			t.Errorf("%q: got %t, want %t", c.addresses, got, c.wanted)
		}
	}
}
