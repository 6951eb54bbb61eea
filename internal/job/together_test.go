package job

import (
	"strings"
	"testing"

	"gputune/internal/ledger"
	"gputune/internal/setting"
)

// Lines that differ in the number of a CPU alone are one, in the place of the first.
func TestTogether(t *testing.T) {
	var lines []line
	for _, text := range strings.Fields("cpuidle/cpu0/latency:0:20 irq/0000:41:00.0/31/affinity:0-3:1 cpuidle/cpu1/latency:0:20 cpuidle/cpu3/latency:0:20 " +
		"cpuidle/cpu2/latency:5:20 cpufreq/policy0/governor:powersave:performance cpufreq/policy4/governor:powersave:performance cpufreq/policy0/min:8:9 " +
		"sysctl/vm.swappiness:60:1 hugepages/node0/2048kB:0:4 hugepages/node1/2048kB:0:4") {
		words := strings.Split(text, ":")
		n := len(words)
		lines = append(lines, line{"7", strings.Join(words[:n-2], ":"), strings.Join(words[n-2:], ":")})
	}
	var got []string
	for _, l := range together(lines) {
		got = append(got, l.key+":"+l.text)
	}
	const want = "cpuidle/cpu0-1,3/latency:0:20 irq/0000:41:00.0/31/affinity:0-3:1 cpuidle/cpu2/latency:5:20 cpufreq/policy0,4/governor:powersave:performance " +
		"cpufreq/policy0/min:8:9 sysctl/vm.swappiness:60:1 hugepages/node0/2048kB:0:4 hugepages/node1/2048kB:0:4"
	if strings.Join(got, " ") != want || lines[0].key != "cpuidle/cpu0/latency" {
		t.Errorf("got  %s\nwant %s", strings.Join(got, " "), want)
	}
}

// What was not done is said, a line each.
func TestRemarks(t *testing.T) {
	o := Option{
		Skipped:   []Skipped{{"governor", "this machine has none"}},
		Unmovable: []Unmovable{{"0000:41:00.0", []int{31, 33, 32}}}, TasksOnly: true,
	}
	const want = "left out: governor: this machine has none|left alone: interrupts 31-33 of 0000:41:00.0: the kernel manages their CPUs|" +
		"for the job's tasks alone: the node is not changed"
	if got := strings.Join(o.remarks(), "|"); got != want {
		t.Errorf("%q, want %q", got, want)
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
