package option

import (
	"slices"
	"strings"
	"testing"
)

// nodeGrammars are the options of a job for its nodes: each reads a value and
// writes it out again.
var nodeGrammars = []struct {
	name     string
	rewrite  func(string) (string, error)
	accepted map[string]string // as it is written out
	refused  map[string]string // a part of the error
}{
	{
		DropCachesName, func(v string) (string, error) { c, err := ParseDropCaches(v); return string(c), err },
		map[string]string{"": "page", "(null)": "page", "page": "page", "slab": "slab", "all": "all"},
		map[string]string{"3": `--drop-caches: "3": want page, slab or all`, "All": "want page", "page,slab": "want page", "\x1b[2J": `"\x1b[2J"`},
	},
	{
		THPName, func(v string) (string, error) { h, err := ParseTHP(v); return string(h), err },
		map[string]string{"always": "always", "madvise": "madvise", "never": "never"},
		map[string]string{"": `--thp: "": want always, madvise or never`, "on": "want always", "always never": "want always"},
	},
	{
		NodeProfileName, ParseNodeProfile,
		map[string]string{"training": "training", "a": "a", "big-mem_2": "big-mem_2"},
		map[string]string{
			"": "want the name", "../x": `"../x": want the name`, "2x": "want", "-x": "want", "Training": "want", "a.b": "want",
			strings.Repeat("a", 33): "want", "a\n": `"a\n"`,
		},
	},
	{
		MemlockName, func(v string) (string, error) { m, err := ParseMemlock(v); return m.String(), err },
		map[string]string{"unlimited": "unlimited", "inherit": "inherit", "64G": "64G", "65536m": "64G", "1T": "1T", "1025M": "1025M"},
		map[string]string{
			"": `--gpu-memlock: "": want unlimited, inherit, or SIZE`, "0": "want", "0G": "want", "5": "want", "-1": "want", "1025T": "1024T at most",
			"64g,": "want", "infinity": "want",
		},
	},
	{
		HugepagesName, func(v string) (string, error) { h, err := ParseHugepages(v); return HugepagesString(h), err },
		map[string]string{"2M:512": "2M:512", "2048k:8": "2M:8", "1G:4,2M:128": "1G:4,2M:128", "64K:1": "64K:1", "16G:1": "16G:1"},
		map[string]string{
			"": `--hugepages: "": want SIZE:COUNT`, "2M": "want SIZE", "2M:0": "want SIZE", "3M:1": "want SIZE", "2M:1,2048K:2": `"2048K:2": given twice`,
			"2M:": "want", ":5": "want", "2:5": "want", "2M:99999999999": "want", "2M:1073741825": "1073741824 pages at most", "128G:1": "want",
			"2M:5:6": "want", "2M:-1": "want", "4K:1,8K:1,16K:1,32K:1,64K:1,128K:1,256K:1,512K:1,1M:1": "8 sizes at most",
			strings.Repeat("2M:1,", 300): "bytes long",
		},
	},
}

func TestNodeOptions(t *testing.T) {
	for _, g := range nodeGrammars {
		for value, want := range g.accepted {
			if got, err := g.rewrite(value); err != nil || got != want {
				t.Errorf("--%s=%s: %q, %v, want %q", g.name, value, got, err, want)
			}
		}
		for value, want := range g.refused {
			if got, err := g.rewrite(value); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "--"+g.name+": ") {
				t.Errorf("--%s=%q: %q, %v, want %q", g.name, value, got, err, want)
			}
		}
	}
}

// What is accepted is short, made of the grammar's own signs, and the same when
// it is written out again; an error repeats nothing that a terminal would act on.
func FuzzNodeOptions(f *testing.F) {
	for _, g := range nodeGrammars {
		for value := range g.accepted {
			f.Add(value)
		}
		for value := range g.refused {
			f.Add(value)
		}
	}
	f.Fuzz(func(t *testing.T, value string) {
		for _, g := range nodeGrammars {
			written, err := g.rewrite(value)
			if err != nil {
				if len(err.Error()) > 2*MaxLength || strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' || r > '~' && !slices.Contains([]rune("…"), r) }) {
					t.Errorf("--%s=%q: %q", g.name, value, err)
				}
				continue
			}
			if len(value) > MaxLength || value != "(null)" && strings.Trim(value, "abcdefghijklmnopqrstuvwxyzGMTK0123456789,:_-") != "" {
				t.Errorf("--%s=%q is accepted", g.name, value)
			}
			if again, err := g.rewrite(written); err != nil || again != written {
				t.Errorf("--%s=%q is %q, and again %q, %v", g.name, value, written, again, err)
			}
		}
	})
}
