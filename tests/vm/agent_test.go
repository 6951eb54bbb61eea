//go:build vm

package vm

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// grace is agent.grace of these tests: longer than slurmd takes, on a busy host,
// from a Prolog to the job's first slurmstepd.
const grace = 6 * time.Second

// agentTextfile is where the agent's metrics are, in a folder that its unit lets
// it write to.
const agentTextfile = "/var/lib/prometheus/node-exporter/gputune.prom"

// agentConfig is gputune.toml with these lines in [agent].
func agentConfig(more string) string {
	return fmt.Sprintf("[agent]\ninterval = \"2s\"\ngrace = %q\ndrift_interval = \"off\"\nverify_interval = \"2s\"\ntextfile = %q\n%s\n",
		grace, agentTextfile, more)
}

// driverDropIn lets the unit write to what stands for the GPUs' own memory, which is
// all that is not as shipped, and makes the machine look as with a driver.
const driverDropIn = `[ ! -e /etc/systemd/system/gputuned.service.d/driver.conf ] || exit 0
mkdir -p /etc/systemd/system/gputuned.service.d /var/lib/prometheus/node-exporter
printf '[Service]\nReadWritePaths=/var/lib/fakenvml\n' >/etc/systemd/system/gputuned.service.d/driver.conf
systemctl daemon-reload
` + gpuOfNode1First + ` PROC_DRIVER=1 testroot-up # so that the machine is at /, as on a node
`

// startAgent starts the service, which has to say that it is ready.
func (m *machine) startAgent(t *testing.T, config string) {
	t.Helper()
	m.must(t, driverDropIn)
	m.put(t, "/etc/gputune/gputune.toml", config)
	m.must(t, "chmod 644 /etc/gputune/gputune.toml; systemctl start gputuned")
	if state := m.service(t); state["ActiveState"] != "active" || state["SubState"] != "running" {
		t.Fatalf("the service is %v", state)
	}
}

// withDropIn gives the unit lines of [Service] from its next start on, until
// withoutDropIn.
func withDropIn(lines string) string {
	return fmt.Sprintf("mkdir -p /run/systemd/system/gputuned.service.d && printf '[Service]\\n%s\\n' >/run/systemd/system/gputuned.service.d/test.conf && systemctl daemon-reload", lines)
}

const withoutDropIn = "rm -f /run/systemd/system/gputuned.service.d/test.conf && systemctl daemon-reload"

// configure changes the configuration of the service that runs.
func (m *machine) configure(t *testing.T, config string) {
	t.Helper()
	m.put(t, "/etc/gputune/gputune.toml", config)
	m.must(t, "chmod 644 /etc/gputune/gputune.toml; systemctl reload gputuned")
}

// service is what systemd says about the agent.
func (m *machine) service(t *testing.T) map[string]string {
	t.Helper()
	return properties(m.must(t, "systemctl show -p ActiveState -p SubState -p MainPID -p NRestarts -p Result gputuned"))
}

// properties reads lines of NAME=VALUE.
func properties(text string) map[string]string {
	found := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		found[name] = value
	}
	return found
}

// waitFor waits until a script succeeds and returns what it wrote.
func (m *machine) waitFor(t *testing.T, what, script string) string {
	t.Helper()
	result := m.try(t, fmt.Sprintf("for i in $(seq 300); do if out=$({ %s; } 2>/dev/null); then echo \"$out\"; exit 0; fi; sleep 0.5; done; exit 1", script))
	if result.Code != 0 {
		t.Fatalf("waited in vain for %s\n%s", what, m.must(t, "journalctl -u gputuned -n 40 -o short-monotonic --no-pager; ls -R /var/lib/gputune /run/gputune"))
	}
	return result.Output
}

// entry is one entry of the journal.
type entry map[string]any

func (e entry) field(name string) string {
	text, _ := e[name].(string)
	return text
}

// when is the entry's time, by the guest's clock.
func (e entry) when(t *testing.T) time.Time {
	t.Helper()
	micros, err := strconv.ParseInt(e.field("__REALTIME_TIMESTAMP"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.UnixMicro(micros)
}

// journal returns the entries that match, as journalctl does.
func (m *machine) journal(t *testing.T, match string) []entry {
	t.Helper()
	var list []entry
	for line := range strings.Lines(m.must(t, "journalctl -q --no-pager -o json "+match)) {
		e := entry{}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		list = append(list, e)
	}
	return list
}

// now is the guest's time.
func (m *machine) now(t *testing.T) time.Time {
	t.Helper()
	nanos, err := strconv.ParseInt(strings.TrimSpace(m.must(t, "date +%s%N")), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Unix(0, nanos)
}

// A file system of its own for the textfile, which can be made to stand still: who
// writes to it then hangs.
const (
	ownFileSystem = `[ -b /dev/loop0 ] || modprobe loop || exit
truncate -s 16M /var/tmp/own.img && mkfs.ext4 -q /var/tmp/own.img && mkdir -p ` + ownFolder + ` && mount -o loop /var/tmp/own.img ` + ownFolder
	noOwnFileSystem = `umount ` + ownFolder + ` && rm /var/tmp/own.img`
	ownFolder       = "/var/lib/prometheus/node-exporter"
)

// stopJournal stops the journal and fills what it would read; startJournal lets it go on.
const (
	stopJournal = `kill -STOP $(systemctl show -p MainPID --value systemd-journald)
perl -MSocket -e 'for (1 .. 8) { # each socket has a buffer of its own, which is full first
	socket S, PF_UNIX, SOCK_DGRAM, 0 and connect S, pack_sockaddr_un "/run/systemd/journal/socket" or die "$!\n";
	1 while defined send S, "MESSAGE=x\n", MSG_DONTWAIT
}'
`
	startJournal = "kill -CONT $(systemctl show -p MainPID --value systemd-journald)\n"
)

// beside prints how many hundredths of a CPU a process has had in ten seconds, and
// whether it has written the textfile in the last five of them.
const beside = `used() { awk '{ print $14 + $15 }' /proc/$1/stat; }
before=$(used %[1]s); sleep 5; touch /tmp/then; sleep 5
echo $(($(used %[1]s) - before)) $([ ` + agentTextfile + ` -nt /tmp/then ] && echo written)
`

// A journal that stands still stops nothing: what the agent has to say is lost, and
// that it is lost is said. Where its loop hangs, as it writes the textfile, it is
// ended.
func testAgentHangs(t *testing.T, m *machine) {
	m.must(t, withDropIn("WatchdogSec=10s")+" && "+ownFileSystem)
	m.startAgent(t, "[paths]\nmachine = \"/run/testroot\"\n"+agentConfig(`deadline = "1s"`))
	m.waitFor(t, "the textfile", "cat "+agentTextfile)

	first := m.service(t)
	output := m.must(t, stopJournal+"systemctl reload gputuned; "+fmt.Sprintf(beside, first["MainPID"])+startJournal)
	var hundredths int
	var written string
	if _, err := fmt.Sscan(output, &hundredths, &written); err != nil || hundredths > 500 {
		t.Errorf("beside a journal that stands still the agent had %q: want it to go on, and less than half of a CPU", output)
	}
	m.waitFor(t, "what was lost", "journalctl -q --no-pager -o cat _PID="+first["MainPID"]+" | grep 'lost, since'")
	if now := m.service(t); fmt.Sprint(now) != fmt.Sprint(first) {
		t.Errorf("the service is %v, was %v", now, first)
	}

	m.must(t, "fsfreeze -f "+ownFolder)
	m.must(t, "sleep 55") // it is given a minute for one step; looking costs
	m.waitFor(t, "the watchdog to end what hangs", "journalctl -q --no-pager -u gputuned -o cat | grep 'Watchdog timeout'")
	m.must(t, "fsfreeze -u "+ownFolder) // until then the kernel lets nothing end that waits for it
	m.waitFor(t, "the next one", `[ "$(systemctl show -p NRestarts --value gputuned)" -ge 1 ] && systemctl is-active gputuned`)
	m.must(t, "systemctl stop gputuned; "+withoutDropIn+" && "+noOwnFileSystem)
}

// The service under systemd, as shipped.
func testAgentUnit(t *testing.T, m *machine) {
	if said := m.must(t, "systemd-analyze verify --man=no gputuned.service 2>&1"); said != "" {
		t.Errorf("systemd-analyze verify: %s", said)
	}
	score := strings.Split(strings.TrimSpace(m.must(t, "systemd-analyze security --no-pager gputuned.service | tail -n 1")), "gputuned.service")
	t.Logf("systemd-analyze security%s", score[len(score)-1])

	m.startAgent(t, agentConfig(""))
	first := m.service(t)
	if second := m.try(t, "gputuned"); second.Code != 1 || !strings.Contains(second.Output, "another gputuned runs (pid "+first["MainPID"]+")") {
		t.Errorf("a second one: status %d, %q", second.Code, second.Output)
	}
	var open string
	for field := range strings.SplitSeq(m.must(t, "look-at-task --pid "+first["MainPID"]), "\t") {
		if list, found := strings.CutPrefix(field, "open="); found {
			open = list
		}
	}
	if open != "0,1,2,3" {
		t.Errorf("the unit may open GPUs %q", open)
	}
	m.waitFor(t, "the snapshot", "journalctl -q --no-pager -o cat GPUTUNE_GPUS=4 _PID="+first["MainPID"]+" | grep .")

	before := m.gpuState(t)
	job := m.holdJob(t, "", "--gpus=1 --gpu-power=500")
	m.must(t, restartSlurmd)
	if now := m.service(t); fmt.Sprint(now) != fmt.Sprint(first) {
		t.Errorf("slurmd was restarted, and the service is %v, was %v", now, first)
	}
	job.checkSettings(t, before, map[string]string{"power_limit": "500000"})

	// A whole process that stands still.
	m.must(t, withDropIn("WatchdogSec=6s\\nRestartSec=1s")+"; systemctl restart gputuned")
	stopped := m.service(t)["MainPID"]
	m.must(t, "kill -STOP "+stopped)
	m.waitFor(t, "the watchdog", `pid=$(systemctl show -p MainPID --value gputuned); [ "$pid" != 0 ] && [ "$pid" != `+stopped+` ] && systemctl is-active gputuned`)
	if found := m.must(t, "journalctl -q --no-pager -u gputuned -o cat | grep -c 'Watchdog timeout'"); found == "0\n" {
		t.Error("the journal has no word of the watchdog")
	}
	m.must(t, withoutDropIn)

	if now := m.gpuState(t); now != job.seen {
		t.Errorf("the GPUs are\n%s, were\n%s", now, job.seen)
	}
	m.must(t, "systemctl stop gputuned")
	if state := m.service(t); state["ActiveState"] != "inactive" || state["Result"] != "success" || state["MainPID"] != "0" {
		t.Errorf("stopped, the service is %v", state)
	}
	if last := m.journal(t, "-u gputuned -b -n 1 _COMM=gputuned"); len(last) != 1 || last[0].field("MESSAGE") != "stopped" {
		t.Errorf("its last word is %v", last)
	}
	job.release(t)
	m.checkAsBefore(t, before)
}
