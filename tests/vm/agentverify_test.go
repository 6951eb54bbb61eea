//go:build vm

package vm

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"gputune/internal/idset"
)

// affinities prints which CPUs each thread of a process may use, and pages how much
// anonymous memory it has on which node.
const (
	affinities = `grep -h Cpus_allowed_list /proc/%s/task/*/status | cut -f2 | sort | uniq -c`
	pages      = `grep -v file= /proc/%s/numa_maps | grep -o 'N[0-9]*=[0-9]*\|kernelpagesize_kB=[0-9]*' |
		awk -F= '/^N/ {n[$1] = $2; next} {for (k in n) sum[k] += n[k] * $2; delete n} END {for (k in sum) print k, sum[k]}'`
)

// onNode returns how many KiB of a process's anonymous memory are on a node.
func (m *machine) onNode(t *testing.T, pid string, node int) int {
	t.Helper()
	for line := range strings.Lines(m.must(t, fmt.Sprintf(pages, pid))) {
		var id, kib int
		if _, err := fmt.Sscanf(line, "N%d %d", &id, &kib); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if id == node {
			return kib
		}
	}
	return 0
}

// A worker that gives itself other CPUs and writes memory elsewhere is reported,
// and put back when the site says so.
func testAgentVerifies(t *testing.T, m *machine) {
	m.startAgent(t, agentConfig(""))
	const folder = "/tmp/wander"
	m.must(t, "rm -rf "+folder+"; mkdir "+folder)
	m.must(t, fmt.Sprintf("setsid srun -Q -n1 -c8 --gpus=1 --gpu-numa-bind=enforce=affinity %s/wander %s </dev/null >%[2]s/out 2>&1 &", guestTools, folder))
	worker := strings.TrimSpace(m.waitFor(t, "the worker", "cat "+folder+"/started"))
	job := strings.TrimSpace(m.must(t, "squeue -h -o %i"))
	plan := map[string]string{}
	for variable := range strings.SplitSeq(m.must(t, "tr '\\0' '\\n' </proc/"+worker+"/environ"), "\n") {
		if name, value, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "GPUTUNE_") {
			plan[name] = value
		}
	}
	cpus, mems := mustSet(t, plan["GPUTUNE_CPUS"]), mustSet(t, plan["GPUTUNE_MEMS"])
	other := m.layout.nodesWithCPUs().AndNot(mems)
	if cpus.Equal(m.layout.cpus) || mems.Len() != 1 || other.Empty() {
		t.Fatalf("planned CPUs %s, memory %s: there is nowhere to go", cpus, mems)
	}
	home, away := mems.Min(), other.Min()
	verify := func(code int) string {
		t.Helper()
		result := m.try(t, "gputune verify "+job)
		if result.Code != code {
			t.Errorf("gputune verify: status %d, want %d\n%s", result.Code, code, result.Output)
		}
		return result.Output
	}
	verify(0)

	left := m.now(t)
	m.must(t, fmt.Sprintf("printf %d >%s/new; mv %[2]s/new %[2]s/leave", away, folder))
	m.waitFor(t, "the worker to leave", "cat "+folder+"/left")
	if threads := m.must(t, fmt.Sprintf(affinities, worker)); !strings.Contains(threads, " "+m.layout.cpus.String()+"\n") {
		t.Fatalf("the worker's threads may use\n%s", threads)
	}
	if kib := m.onNode(t, worker, away); kib < 40<<10 {
		t.Fatalf("the worker has %d KiB on node %d", kib, away)
	}
	said := verify(1)
	for _, want := range []string{"NOT as planned", "process " + worker + " (wander): 3 threads may run on cpus " + m.layout.cpus.String(), "MiB of "} {
		if !strings.Contains(said, want) {
			t.Errorf("gputune verify: no %q in\n%s", want, said)
		}
	}
	m.waitFor(t, "the report", `grep '^gputune_verify_drifts_total{kind="cpus"} 1$' `+agentTextfile+` && grep '^gputune_verify_drifts_total{kind="pages"} 1$' `+agentTextfile)
	for _, kind := range []string{"cpus", "pages"} {
		found := m.journal(t, "GPUTUNE_JOB="+job+" GPUTUNE_PID="+worker+" GPUTUNE_KIND="+kind)
		if len(found) != 1 {
			t.Errorf("%s is reported %d times: %v", kind, len(found), found)
			continue
		}
		e := found[0]
		if e.field("GPUTUNE_PROGRAM") != "wander" || e.field("GPUTUNE_STEP") != "0" || e.field("GPUTUNE_GPU") != plan["GPUTUNE_GPUS"] ||
			e.field("PRIORITY") != "4" || e.field("_SYSTEMD_UNIT") != "gputuned.service" {
			t.Errorf("%s is reported as %v", kind, e)
		}
		t.Logf("%s off plan: reported %.1f s after the worker was told to leave", kind, e.when(t).Sub(left).Seconds())
	}
	// The address for Prometheus has the same.
	scraped := m.must(t, `exec 3<>/dev/tcp/127.0.0.1/9946; printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3; cat <&3`)
	if !regexp.MustCompile(`(?m)^gputune_verify_tasks 1$`).MatchString(scraped) {
		t.Errorf("no task in\n%s", scraped)
	}

	m.configure(t, agentConfig(`repair = ["cpus", "pages"]`))
	m.waitFor(t, "the repair", `grep '^gputune_verify_repairs_total{kind="cpus",outcome="done"} [1-9]' `+agentTextfile+` && grep '^gputune_verify_repairs_total{kind="pages",outcome="done"} [1-9]' `+agentTextfile)
	for line := range strings.Lines(m.must(t, fmt.Sprintf(affinities, worker))) {
		if set, err := idset.Parse(strings.Fields(line)[1]); err != nil || !set.SubsetOf(cpus) {
			t.Errorf("repaired, threads may use %s, planned %s", line, cpus)
		}
	}
	if kib := m.onNode(t, worker, away); kib > 1<<10 {
		t.Errorf("repaired, %d KiB are on node %d", kib, away)
	}
	if kib := m.onNode(t, worker, home); kib < 40<<10 {
		t.Errorf("repaired, %d KiB are on node %d", kib, home)
	}
	verify(0)
	m.must(t, "systemctl stop gputuned; touch "+folder+"/go")
	m.waitIdle(t)
	if out := m.must(t, "cat "+folder+"/out"); out != "" {
		t.Errorf("wander said %q", out)
	}
}
