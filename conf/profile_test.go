package conf

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gputune/internal/option"
	"gputune/internal/template"
)

// wants writes what a profile wants, in order.
func wants(p Profile) string {
	all := p.Wants()
	var list []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		w := all[key]
		text := key + "=" + w.Value
		if w.Missing == MissingRefuses {
			text += " refuse"
		}
		if w.Shared == SharingAllowed {
			text += " shared"
		}
		list = append(list, text)
	}
	return strings.Join(list, ", ")
}

func TestShippedProfiles(t *testing.T) {
	for name, want := range map[string]string{
		"training": "energy=performance, governor=performance, swap=off, sysctl.kernel.numa_balancing=0, sysctl.vm.dirty_background_ratio=10, " +
			"sysctl.vm.dirty_ratio=40, sysctl.vm.swappiness=1, sysctl.vm.zone_reclaim_mode=0, thp=always",
		"inference": "energy=performance, governor=performance, idle_latency=20, irqs=local, swap=off, sysctl.kernel.numa_balancing=0, " +
			"sysctl.vm.swappiness=1, sysctl.vm.zone_reclaim_mode=0, thp=madvise",
		"benchmark": "compact_memory=on, drop_caches=all, energy=performance, governor=performance, gpu_clocks=high, idle_latency=5, irqs=local, min_frequency=max, " +
			"swap=off, sysctl.kernel.numa_balancing=0, sysctl.vm.dirty_background_ratio=10, sysctl.vm.dirty_ratio=40, sysctl.vm.swappiness=1, " +
			"sysctl.vm.zone_reclaim_mode=0, thp=always",
	} {
		p, err := Default().Profile(name)
		if got := wants(p); err != nil || got != want {
			t.Errorf("%s: %v\ngot  %s\nwant %s", name, err, got, want)
		}
	}
	_, err := Default().Profile("trainings")
	if err == nil || err.Error() != `no profile "trainings": this site has benchmark, inference, training` {
		t.Errorf("%v", err)
	}
}

func TestProfiles(t *testing.T) {
	config, err := Load(write(t, `
[node]
sysctls = ["vm.swappiness", "kernel.numa_balancing", "vm.dirty_ratio", "vm.dirty_bytes", "vm.zone_reclaim_mode", "vm.dirty_background_ratio"]
[profile.site]
include = "training"
missing = "refuse"
thp = { value = "madvise", shared = "allow" }
governor = "keep"
energy = { value = "balance_performance", missing = "skip" }
hugepages = "2M:64"
[profile.site.sysctl]
"vm.dirty_bytes" = 1073741824
"vm.swappiness" = { value = 10, shared = "allow" }
[profile.top]
include = ["site", "inference"]
thp = "never"
governor = "schedutil"
energy = "performance"
[profile.top.sysctl]
"vm.swappiness" = "keep"
[environment]
NCCL_IB_HCA = "={nic}"
`))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"site": "energy=balance_performance, hugepages=2M:64 refuse, swap=off, sysctl.kernel.numa_balancing=0, sysctl.vm.dirty_background_ratio=10, " +
			"sysctl.vm.dirty_bytes=1073741824 refuse, sysctl.vm.swappiness=10 refuse shared, sysctl.vm.zone_reclaim_mode=0, thp=madvise refuse shared",
		"top": "energy=performance, governor=schedutil, hugepages=2M:64 refuse, idle_latency=20, irqs=local, swap=off, sysctl.kernel.numa_balancing=0, " +
			"sysctl.vm.dirty_background_ratio=10, sysctl.vm.dirty_bytes=1073741824 refuse, sysctl.vm.zone_reclaim_mode=0, thp=never",
		"training": wants(func() Profile { p, _ := Default().Profile("training"); return p }()),
	} {
		p, err := config.Profile(name)
		if got := wants(p); err != nil || got != want {
			t.Errorf("%s: %v\ngot  %s\nwant %s", name, err, got, want)
		}
	}
	filled := template.Fill(config.Templates(), template.Place{NIC: "mlx5_1"}, func(string) bool { return false })
	if fmt.Sprint(filled.Set) != "map[NCCL_IB_HCA:=mlx5_1]" {
		t.Errorf("%v", filled)
	}
}

// What a job asks for by name is laid over the profile.
func TestWith(t *testing.T) {
	config := Default()
	config.DropCaches.Shared = SharingAllowed
	p, err := config.Profile("inference")
	if err != nil {
		t.Fatal(err)
	}
	p.Sysctl, p.Governor, p.Energy, p.Swap, p.IRQs = nil, Want{}, Want{}, Want{}, Want{}
	if got := wants(config.With(p, NodeOptions{})); got != "idle_latency=20, thp=madvise" {
		t.Error(got)
	}
	o := NodeOptions{THP: option.THPNever, Hugepages: []option.Hugepages{{KiB: 2048, Count: 8}, {KiB: 1 << 20, Count: 1}}, DropCaches: option.CachesSlab}
	const want = "drop_caches=slab refuse shared, hugepages=2M:8,1G:1 refuse, idle_latency=20, thp=never refuse"
	if got := wants(config.With(p, o)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := wants(config.With(Profile{}, o)); got != "drop_caches=slab refuse shared, hugepages=2M:8,1G:1 refuse, thp=never refuse" {
		t.Error(got)
	}
}

// Whatever is wrong names the line and the key, and what would do.
func TestProfilesRefused(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"itself":         {"[profile.a]\ninclude = [\"a\"]\n", "line 2: key profile.a.include: it includes itself: a → a"},
		"a cycle":        {"[profile.a]\nthp = \"always\"\ninclude = \"b\"\n[profile.b]\ninclude = \"c\"\n[profile.c]\ninclude = \"a\"\n", "line 7: key profile.c.include: it includes itself: a → b → c → a"},
		"not there":      {"[profile.a]\ninclude = \"b\"\n", `line 2: key profile.a.include: "b": want one of a, benchmark, inference, training`},
		"contradiction":  {"[profile.a]\n\ninclude = [\"training\", \"inference\"]\n", "line 3: key profile.a.include: training and inference contradict each other: thp is always and madvise: say in a which"},
		"in how":         {"[profile.a]\nthp = \"always\"\n[profile.b]\nthp = { value = \"always\", shared = \"allow\" }\n[profile.c]\ninclude = [\"a\", \"b\"]\n", "line 6: key profile.c.include: a and b contradict each other: thp is always and always (missing skip, shared allow)"},
		"a pair":         {"[profile.a.sysctl]\n\"vm.dirty_ratio\" = 5\n\"vm.dirty_bytes\" = 5000000\n", `line 3: key profile.a.sysctl."vm.dirty_bytes": sysctl.vm.dirty_bytes and sysctl.vm.dirty_ratio contradict each other`},
		"a word":         {"[profile.a]\nthp = \"on\"\n", `line 2: key profile.a.thp: "on": want always, madvise, never, or keep`},
		"a number":       {"[profile.a]\nidle_latency = -1\n", `line 2: key profile.a.idle_latency: "-1": want any, none, a whole number from 1 to 1000000, or keep`},
		"hugepages":      {"[profile.a]\nhugepages = 512\n", `line 2: key profile.a.hugepages: "512": want SIZE:COUNT`},
		"a type":         {"[profile.a]\nthp = true\n", "line 2: key profile.a.thp: true: want a text, a whole number, or { value"},
		"an empty text":  {"[profile.a]\nthp = \"\"\n", `line 2: key profile.a.thp: "": want a text`},
		"no value":       {"[profile.a]\nthp = { missing = \"skip\" }\n", "want a text, a whole number, or { value"},
		"a table's key":  {"[profile.a]\nthp = { value = \"never\", share = \"allow\" }\n", "line 2: key profile.a.thp: unknown key share: want"},
		"missing":        {"[profile.a]\nmissing = \"warn\"\n", `line 2: key profile.a.missing: "warn": want "skip" or "refuse"`},
		"shared":         {"[thp]\nshared = true\n", `line 2: key thp.shared: true: want "refuse" or "allow"`},
		"unknown key":    {"[profile.a]\nthpp = \"never\"\n", "line 2: unknown key profile.a.thpp: known are"},
		"a name":         {"[profile.A]\nthp = \"never\"\n", "line 1: key profile.A: want the name of a profile"},
		"sysctl":         {"[profile.a.sysctl]\n\"kernel.core_pattern\" = \"x\"\n", `line 2: key profile.a.sysctl."kernel.core_pattern": want one of node.sysctls: vm.swappiness`},
		"sysctl's value": {"[profile.a.sysctl]\n\"vm.swappiness\" = \"1\\n2\"\n", `line 2: key profile.a.sysctl."vm.swappiness": "1\n2": want numbers or one word`},
		"sysctls":        {"[node]\nsysctls = [\"vm/swappiness\"]\n", `line 2: key node.sysctls: "vm/swappiness": want names of sysctls`},
		"sysctls, dots":  {"[node]\nsysctls = [\"vm..x\"]\n", `"vm..x": want names of sysctls`},
		"percent":        {"[hugepages]\nmax_percent = 0\n", "line 2: key hugepages.max_percent: 0: want a whole number from 1 to 100"},
		"a variable":     {"[environment]\nLD_PRELOAD = \"x\"\n", "line 2: key environment.LD_PRELOAD: LD_PRELOAD: variables that begin with LD_ are not set by templates"},
		"a template":     {"[environment]\nX = \"{gpu}\"\n", "line 2: key environment.X: \"{gpu}\": a brace with none of the words"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Load(write(t, c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
			if !reflect.DeepEqual(got, Default()) {
				t.Error("a refused file must give the defaults")
			}
		})
	}
}
