package step

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gputune/internal/idset"
	"gputune/internal/placement"
)

func TestLacks(t *testing.T) {
	for name, c := range map[string]struct {
		want, free, cache uint64
		said              bool
	}{
		"enough":                         {100, 100, 900, false},
		"free, but for a little":         {100, 96, 900, false},
		"files hold it":                  {100, 95, 900, true},
		"nothing is free":                {100, 0, 900, true},
		"files hold some of it":          {100, 50, 20, true},
		"programs hold it":               {100, 50, 0, false},
		"programs hold it, files little": {100, 50, 4, false},
		"nothing is wanted":              {0, 50, 50, false},
	} {
		line := nodeMemory{free: c.free, cache: c.cache}.lacks(c.want)
		if (line != "") != c.said {
			t.Errorf("%s: %q", name, line)
		}
		for _, number := range []string{"%d MiB free", "for the %d MiB", "%d MiB hold files"} {
			n := map[string]uint64{"%d MiB free": c.free, "for the %d MiB": c.want, "%d MiB hold files": c.cache}[number]
			if c.said && !strings.Contains(line, fmt.Sprintf(number, n)) {
				t.Errorf("%s: %q", name, line)
			}
		}
	}
}

// What is said is so for each node that mem=bind takes memory from.
func TestLookAtMemory(t *testing.T) {
	root := t.TempDir()
	for node, text := range map[int]string{
		0: "Node 0 MemTotal: 16384000 kB\nNode 0 MemFree: 16000000 kB\n\nNode 0 Active(file): 1 kB\n",
		1: "Node 1 MemTotal: 16384000 kB\nNode 1 MemFree: 1024000 kB\nNode 1 Inactive(file): 4096000 kB\nNode 1 Active(file): 2048000 kB\n",
	} {
		file := filepath.Join(root, "sys/devices/system/node", fmt.Sprintf("node%d/meminfo", node))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		mem    placement.MemMode
		keep   string
		memory uint64
		tasks  []string // the nodes of each, "?": its environment decides
		want   string
	}{
		"one node":             {placement.MemBind, "", 4000, []string{"1", "1"}, "mem=bind: node 1 has 1000 MiB free for the 4000 MiB that tasks were given there: 6000 MiB hold files"},
		"both, enough on each": {placement.MemBind, "", 2000, []string{"1", "0"}, ""},
		"a quarter of it":      {placement.MemBind, "", 8000, []string{"0", "0", "0", "1"}, "mem=bind: node 1 has 1000 MiB free for the 2000 MiB that"},
		"half by each node":    {placement.MemBind, "", 4000, []string{"0-1"}, "mem=bind: node 1 has 1000 MiB free for the 2000 MiB that"},
		"by environment":       {placement.MemBind, "", 4000, []string{"?", "?"}, "mem=bind: node 1 has 1000 MiB free for the 2000 MiB that"},
		"anywhere":             {placement.MemBind, "", 4000, []string{""}, ""},
		"prefer":               {placement.MemPrefer, "", 4000, []string{"1"}, ""},
		"not known":            {placement.MemBind, "", 0, []string{"1"}, ""},
		"the user's own":       {placement.MemBind, "--mem-bind=local", 4000, []string{"1"}, ""},
		"a node that is not":   {placement.MemBind, "", 4000, []string{"7"}, "log"},
	} {
		s := &Step{machineRoot: root, KeepMems: c.keep}
		s.Option.Policy.Mem = c.mem
		result := Result{Shares: []placement.Share{{Mems: idset.Of(0)}, {Mems: idset.Of(1)}}}
		for _, nodes := range c.tasks {
			outcome := Outcome{ByEnvironment: nodes == "?"}
			if nodes != "?" {
				outcome.Binding.Mems = idset.MustParse(nodes)
			}
			result.Tasks = append(result.Tasks, outcome)
		}
		s.lookAtMemory(c.memory, &result)
		if c.want == "log" {
			if len(s.Log) != 1 || len(result.Cautions) > 0 {
				t.Errorf("%s: %v, %v", name, s.Log, result.Cautions)
			}
			continue
		}
		got := strings.Join(result.Cautions, "\n")
		if !strings.HasPrefix(got, c.want) || (c.want == "") != (got == "") || strings.Contains(got, "\n") || len(s.Log) > 0 {
			t.Errorf("%s: %q, want %q, log %v", name, got, c.want, s.Log)
		}
		for i, task := range result.Tasks {
			if len(task.Warnings) > 0 {
				t.Errorf("%s: task %d would fail under strict: %v", name, i, task.Warnings)
			}
		}
	}
}

func TestReadNodeMemory(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "sys/devices/system/node/node2/meminfo")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := readNodeMemory(root, 2); err == nil {
		t.Error("no file, no error")
	}
	for text, want := range map[string]string{
		"Node 2 MemFree: 2048 kB\nNode 2 FilePages: 9 kB\n": "{2 0} <nil>",
		"Node 2 MemTotal: 2048 kB\n":                        "{0 0} " + file + ": no MemFree",
		"Node 2 MemFree: many kB\n":                         "{0 0} " + file + ": no MemFree",
		"Node 2 MemFree: 1024 kB\nNode 2 Active(file): -1 kB\nNode 2\nNode 2 Inactive(file): 99999999999999999999 kB": "{1 0} <nil>",
	} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := readNodeMemory(root, 2)
		if is := fmt.Sprint(got, err); is != want {
			t.Errorf("%q: %s, want %s", text, is, want)
		}
	}
}
