package option

import (
	"strings"
	"testing"

	"gputune/internal/placement"
)

func TestParseBind(t *testing.T) {
	site := DefaultBind()
	site.Policy.Mem = placement.MemBind
	for value, want := range map[string]string{
		"":                     "on,cpus=node,mem=bind,smt=all,gpus=auto,enforce=cgroup",
		"(null)":               "on,cpus=node,mem=bind,smt=all,gpus=auto,enforce=cgroup",
		"on":                   "on,cpus=node,mem=bind,smt=all,gpus=auto,enforce=cgroup",
		"off":                  "off,cpus=node,mem=bind,smt=all,gpus=auto,enforce=cgroup",
		"cpus=exclusive":       "on,cpus=exclusive,mem=bind,smt=all,gpus=auto,enforce=cgroup",
		"mem=none,strict":      "on,cpus=node,mem=none,smt=all,gpus=auto,enforce=cgroup,strict",
		"verbose,verbose":      "on,cpus=node,mem=bind,smt=all,gpus=auto,enforce=cgroup,verbose",
		"off,smt=one":          "off,cpus=node,mem=bind,smt=one,gpus=auto,enforce=cgroup",
		"enforce=affinity":     "on,cpus=node,mem=bind,smt=all,gpus=auto,enforce=affinity",
		"gpus=local,quiet":     "on,cpus=node,mem=bind,smt=all,gpus=local,enforce=cgroup,quiet",
		"cpus=core-complex":    "on,cpus=core-complex,mem=bind,smt=all,gpus=auto,enforce=cgroup",
		"mem=interleave,on":    "on,cpus=node,mem=interleave,smt=all,gpus=auto,enforce=cgroup",
		"cpus=none,mem=prefer": "on,cpus=none,mem=prefer,smt=all,gpus=auto,enforce=cgroup",
		"follow":               "on,cpus=node,mem=bind,smt=all,gpus=auto,enforce=cgroup,follow",
		"strict,follow,quiet":  "on,cpus=node,mem=bind,smt=all,gpus=auto,enforce=cgroup,follow,strict,quiet",
		"cpus=socket,gpus=all": "on,cpus=socket,mem=bind,smt=all,gpus=all,enforce=cgroup",
	} {
		got, err := ParseBind(value, site)
		if err != nil {
			t.Errorf("%q: %v", value, err)
		} else if got.String() != want {
			t.Errorf("%q: got %s, want %s", value, got, want)
		}
	}
}

func TestParseBindRefuses(t *testing.T) {
	for value, want := range map[string]string{
		"cpus=sideways":                  `--gpu-numa-bind: item "cpus=sideways": want cpus=node|exclusive|core-complex|socket|none`,
		"mem=":                           `item "mem=": want mem=prefer|bind|interleave|none`,
		"smt=2":                          `want smt=all|one`,
		"gpus=0":                         `want gpus=auto|all|local`,
		"enforce=v2":                     `want enforce=cgroup|affinity`,
		"on,,strict":                     `item "": not known: want on, off,`,
		"ON":                             `item "ON": not known`,
		" on":                            `item " on": not known`,
		"on,off":                         `items "on" and "off" contradict each other`,
		"cpus=node,cpus=socket":          `items "cpus=node" and "cpus=socket" contradict each other`,
		"verbose,quiet":                  `contradict`,
		"follow=1":                       `item "follow=1": not known`,
		"strict=yes":                     `item "strict=yes": not known`,
		"cpu=node":                       `item "cpu=node": not known: want on, off, cpus=`,
		"x\x00\n\x1b[31m":                `item "x\x00\n\x1b[31m": not known`,
		strings.Repeat("a", MaxLength+1): `1001 bytes long: at most 1000 are accepted`,
	} {
		_, err := ParseBind(value, DefaultBind())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: error %v, want %q in it", value, err, want)
		}
	}
}

func FuzzParseBind(f *testing.F) {
	for _, seed := range []string{"", "on", "off", "cpus=exclusive,mem=bind,strict", "follow", "cpus=,", "$(id)", "../../x", "a=b=c"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		bind, err := ParseBind(value, DefaultBind())
		if err != nil {
			if strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' }) {
				t.Errorf("control characters in the message %q", err)
			}
			return
		}
		again, err := ParseBind(bind.String(), DefaultBind())
		if err != nil || again != bind {
			t.Errorf("%q is %s, which reads back as %s, %v", value, bind, again, err)
		}
	})
}
