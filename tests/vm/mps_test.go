//go:build vm

package vm

import (
	"fmt"
	"strings"
	"testing"
)

// installMPS puts the programs where a driver's packages have them.
const installMPS = `cp -a ` + guestTools + `/mps/. /usr/bin/`

// unitOf prints of a job's MPS unit: its state, main process and cgroup, and of
// that process its user and its own word on its cgroup.
const unitOf = `unit=gputune-mps-%s.service
systemctl show -p ActiveState -p MainPID -p ControlGroup $unit
pid=$(systemctl show -p MainPID --value $unit)
[ "$pid" = 0 ] || sed -n 's/^Uid:\t\([0-9]*\).*/Uid=\1/p' /proc/$pid/status
[ "$pid" = 0 ] || sed -n 's/^0::/Cgroup=/p' /proc/$pid/cgroup`

// unit is what unitOf prints.
func (m *machine) unit(t *testing.T, job string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for line := range strings.Lines(m.must(t, fmt.Sprintf(unitOf, job))) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		found[name] = value
	}
	return found
}

// askMPS is what a CUDA program of the job's user gets from the job's daemon.
func (m *machine) askMPS(t *testing.T, job string) string {
	t.Helper()
	return m.must(t, fmt.Sprintf(asNobody+"env CUDA_MPS_PIPE_DIRECTORY=/run/gputune/mps/%s/pipe cuda-client", job))
}

// A job's MPS daemon is a unit of systemd's: not in the cgroup of the job nor of
// slurmd, as the job's user, still the same after slurmd was restarted, and gone
// after the job's Epilog, however the job ends.
func testMPSUnit(t *testing.T, m *machine) {
	m.must(t, installMPS)
	before := m.gpuState(t)
	for _, end := range []string{"it ends", "scancel"} {
		job := m.holdJob(t, asNobody, "--gpus=2 --gpu-mps=50")
		job.checkSettings(t, before, map[string]string{"compute_mode": "3"})
		unit := m.unit(t, job.id)
		cgroup := "/gputune.slice/gputune-mps-" + job.id + ".service"
		if unit["ActiveState"] != "active" || unit["MainPID"] == "0" || unit["Uid"] != "65534" || unit["ControlGroup"] != cgroup || unit["Cgroup"] != cgroup {
			t.Errorf("job %s: its unit is %v, want it active in %s as user 65534", job.id, unit, cgroup)
		}
		if said := m.askMPS(t, job.id); !strings.Contains(said, " percent 50.0 ") || !strings.Contains(said, " uid 65534 ") {
			t.Errorf("job %s: its daemon says %q", job.id, said)
		}
		m.must(t, restartSlurmd)
		if now := m.unit(t, job.id); fmt.Sprint(now) != fmt.Sprint(unit) {
			t.Errorf("job %s: slurmd was restarted, and its unit is %v, was %v", job.id, now, unit)
		}
		if said := m.askMPS(t, job.id); !strings.HasPrefix(said, "server ") {
			t.Errorf("job %s: slurmd was restarted, and its daemon says %q", job.id, said)
		}
		if end == "scancel" {
			m.must(t, "scancel "+job.id)
		} else {
			job.release(t)
		}
		m.checkAsBefore(t, before)
		if unit := m.unit(t, job.id); unit["ActiveState"] != "inactive" || unit["MainPID"] != "0" {
			t.Errorf("%s: the unit of job %s is %v", end, job.id, unit)
		}
		left := m.must(t, "systemctl list-units --all --no-legend 'gputune-mps*'; pgrep -a nvidia-cuda-mps || true; ls -A /run/gputune/mps; find /sys/fs/cgroup -name 'gputune-mps*'")
		if strings.TrimSpace(left) != "" {
			t.Errorf("%s: left of job %s: %s", end, job.id, left)
		}
	}
}
