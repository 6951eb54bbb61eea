//go:build vm

package vm

import (
	"fmt"
	"strings"
	"testing"
)

// limitsScript says what a process may lock, soft, hard and in a grandchild, and
// whether it really can lock 1 MiB; the limits of swap of its job and of its step;
// and whether transparent hugepages are kept from it.
const limitsScript = `#!/bin/bash
cgroup=$(sed -n 's/^0:://p' /proc/self/cgroup)
step=/sys/fs/cgroup${cgroup%%/user/*}
echo "$1 memlock=$(ulimit -Sl),$(ulimit -Hl),$(bash -c 'bash -c "ulimit -Sl"')" \
	"locks=$(perl -e 'my $m = "x" x (1 << 20); print syscall(149, unpack("Q", pack("p", $m)), 1 << 20)')" \
	"swap=$(cat ${step%/*}/memory.swap.max),$(cat $step/memory.swap.max)" \
	"thp=$(sed -n 's/^THP_enabled:\t//p' /proc/self/status)"
`

// lowLimit takes slurmd's right to lock memory: what a task may lock it then has
// from gputune. A restart of slurmd gives it back.
const lowLimit = `for pid in $(pidof slurmd); do prlimit --pid $pid --memlock=65536:65536; done; `

// What the Prolog has decided for the job's tasks holds in each process of each
// step, whatever Slurm sets after the plugin.
func testTaskLimits(t *testing.T, m *machine) {
	before := m.gpuState(t)
	m.must(t, `printf '[profile.noswap]\nswap = "off"\n' >>/etc/gputune/gputune.toml`)
	m.put(t, "/tmp/limits", limitsScript)
	const asked = "--gpu-memlock=unlimited --node-profile=noswap --thp=never "
	run := func(command string) string {
		return m.must(t, "cd / && ulimit -Sl 64 && "+asNobody+command)
	}
	lines := func(names ...string) (text string) {
		for _, name := range names {
			text += name + " memlock=unlimited,unlimited,unlimited locks=0 swap=0,0 thp=0\n"
		}
		return text
	}
	m.must(t, lowLimit)
	// What it is without, which shows that this test can fail.
	if got := run("srun -Q -n1 /tmp/limits srun"); got != "srun memlock=64,64,64 locks=-1 swap=max,max thp=1\n" {
		t.Fatalf("without the options: %q", got)
	}
	if got := run("srun -Q -n2 " + asked + "/tmp/limits srun"); got != lines("srun", "srun") {
		t.Errorf("srun: %q", got)
	}
	if got := run("salloc -Q -n1 --gpus=1 " + asked + "bash -c 'srun --gpu-numa-bind=quiet /tmp/limits bound; srun /tmp/limits second'"); got != lines("bound", "second") {
		t.Errorf("salloc: %q", got)
	}
	m.put(t, "/tmp/limits-batch", "#!/bin/bash\n/tmp/limits batch\nulimit -Sl 0\nsrun -n1 /tmp/limits step\nsrun -n1 --propagate=NONE --overlap /tmp/limits second\n")
	m.must(t, "rm -f /tmp/limits.out; install -m 666 /dev/null /tmp/limits.out")
	run("sbatch -Q -W -n1 " + asked + "-o /tmp/limits.out /tmp/limits-batch")
	if got := m.must(t, "cat /tmp/limits.out"); got != lines("batch", "step", "second") {
		t.Errorf("sbatch: %q", got)
	}
	// A size is a soft limit, and the hard one is raised no more than that needs.
	if got := run("srun -Q -n1 --gpu-memlock=2M /tmp/limits size"); got != "size memlock=2048,2048,2048 locks=0 swap=max,max thp=1\n" {
		t.Errorf("a size: %q", got)
	}
	m.checkAsBefore(t, before)

	// With ConstrainSwapSpace each step that begins writes its own limit to the job.
	m.must(t, "cp /etc/slurm/cgroup.conf /tmp/cgroup.conf && printf 'ConstrainSwapSpace=yes\\nAllowedSwapSpace=50\\n' >>/etc/slurm/cgroup.conf && "+restartSlurmd)
	if got := run("srun -Q -n1 --mem=100 /tmp/limits srun"); strings.Contains(got, "swap=max") || strings.Contains(got, "swap=0") {
		t.Fatalf("ConstrainSwapSpace: %q", got)
	}
	script := `srun --overlap -n1 bash -c "until [ -e /tmp/second ]; do sleep 0.2; done; /tmp/limits first" & ` +
		`srun --overlap -n1 bash -c "/tmp/limits second; touch /tmp/second"; wait`
	m.must(t, "rm -f /tmp/second")
	if got := run(fmt.Sprintf("salloc -Q -n1 --mem=100 %s bash -c '%s'", asked, script)); got != lines("second", "first") {
		t.Errorf("ConstrainSwapSpace, two steps: %q", got)
	}
	m.must(t, "cp /tmp/cgroup.conf /etc/slurm/cgroup.conf && "+restartSlurmd)

	// A user who may not.
	m.must(t, `printf '[gpu_memlock]\nmax_mib = 100\n' >>/etc/gputune/gputune.toml`)
	result := m.try(t, "srun -Q -n1 --gpu-memlock=unlimited echo ran 2>&1")
	if want := "gputune: node1: error: --gpu-memlock=unlimited: locked memory: unlimited: the site allows 100 MiB at most; nearest: 100M\n"; result.Code != 1 || !strings.Contains(result.Output, want) || strings.Contains(result.Output, "ran") {
		t.Errorf("refused: status %d, %q, want %q", result.Code, result.Output, want)
	}
	m.must(t, `sed -i '/^\[profile.noswap\]/,$d' /etc/gputune/gputune.toml`)
	m.checkAsBefore(t, before)
}
