package job

import (
	"fmt"
	"strings"
	"testing"

	"gputune/internal/ledger"
	"gputune/internal/setting"
)

// Lines that differ in the number of a CPU alone are one, in the place of the first.
func TestTogether(t *testing.T) {
	var changes []Changed
	for _, line := range strings.Fields("cpuidle/cpu0/latency:0:20 irq/0000:41:00.0/31/affinity:0-3:1 cpuidle/cpu1/latency:0:20 cpuidle/cpu3/latency:0:20 " +
		"cpuidle/cpu2/latency:5:20 cpufreq/policy0/governor:powersave:performance cpufreq/policy4/governor:powersave:performance cpufreq/policy0/min:8:9 " +
		"sysctl/vm.swappiness:60:1 hugepages/node0/2048kB:0:4 hugepages/node1/2048kB:0:4") {
		words := strings.Split(line, ":")
		n := len(words)
		changes = append(changes, Changed{Setting: strings.Join(words[:n-2], ":"), Before: words[n-2], Now: words[n-1]})
	}
	var got []string
	for _, c := range together(changes) {
		got = append(got, fmt.Sprintf("%s:%s:%s", c.Setting, c.Before, c.Now))
	}
	const want = "cpuidle/cpu0-1,3/latency:0:20 irq/0000:41:00.0/31/affinity:0-3:1 cpuidle/cpu2/latency:5:20 cpufreq/policy0,4/governor:powersave:performance " +
		"cpufreq/policy0/min:8:9 sysctl/vm.swappiness:60:1 hugepages/node0/2048kB:0:4 hugepages/node1/2048kB:0:4"
	if strings.Join(got, " ") != want || changes[0].Setting != "cpuidle/cpu0/latency" {
		t.Errorf("got  %s\nwant %s", strings.Join(got, " "), want)
	}
}

// Of two options that want one setting to have different values the second one is
// refused.
func TestContradict(t *testing.T) {
	env := setting.NewEnvironment(t.TempDir(), nil)
	change := func(key, value string) ledger.Change {
		s, err := setting.Parse(env, key)
		if err != nil {
			t.Fatal(err)
		}
		return ledger.Change{Setting: s, Value: value}
	}
	options := []*asked{
		{Option: Option{Name: "a"}, changes: []ledger.Change{change("sysctl/vm.swappiness", "1"), change("sysctl/vm.min_free_kbytes", "5")}},
		{Option: Option{Name: "b"}, changes: []ledger.Change{change("sysctl/vm.swappiness", "1"), change("sysctl/vm.min_free_kbytes", "6"), change("thp/defrag", "never")}},
		{Option: Option{Name: "c"}, changes: []ledger.Change{change("thp/defrag", "always"), change("sysctl/vm.swappiness", "1")}},
	}
	if !contradict(options) || options[1].State != Refused || options[1].Reason != "sysctl/vm.min_free_kbytes cannot be 6: --a wants it to be 5" {
		t.Errorf("%+v", options[1])
	}
	// What is refused contradicts nobody.
	if options[0].State != "" || options[2].State != "" || contradict(options) {
		t.Errorf("%+v, %+v", options[0], options[2])
	}
}
