//go:build vm

package vm

import (
	"fmt"
	"strings"
	"testing"

	"gputune/tests/vm/numavm"
)

// The package that writes cpusets, against this kernel and in cgroups as Slurm
// makes and names them.
func testCpuset(t *testing.T, m *machine) {
	output := m.must(t, guestTools+"/cgroup.test -test.v -test.run '^TestKernel$'")
	if !strings.Contains(output, "--- PASS: TestKernel") {
		t.Errorf("internal/cgroup did not try this kernel:\n%s", output)
	}

	job := "job_9"
	if m.suite == numavm.Forky {
		job = "s97DM8MRE7WY00" // Slurm's own id for jobs, since 26.05
	}
	const scope = "/sys/fs/cgroup/system.slice/node1_slurmstepd.scope"
	leaf := scope + "/" + job + "/step_0/user/task_0"
	pid := strings.TrimSpace(m.must(t, fmt.Sprintf(`set -e
cd %s
for folder in %s step_0 user task_0; do
	echo +cpuset >cgroup.subtree_control
	mkdir $folder
	cd $folder
done
echo 0-1,4-5 >../../../cpuset.cpus
sleep 300 </dev/null >/dev/null 2>&1 &
echo $! >cgroup.procs
echo $!`, scope, job)))
	defer func() {
		m.must(t, fmt.Sprintf(`kill %s; cd %s; for i in $(seq 100); do rmdir -p %s/step_0/user/task_0 2>/dev/null; [ -e %s ] || exit 0; sleep 0.1; done; exit 1`, pid, scope, job, job))
	}()

	facts := fmt.Sprintf(`echo leaf.cpus=$(cat %[1]s/cpuset.cpus) leaf.mems=$(cat %[1]s/cpuset.mems) cpus=$(cat %[1]s/cpuset.cpus.effective) mems=$(cat %[1]s/cpuset.mems.effective) `+
		`allowed=$(sed -n 's/^Cpus_allowed_list:\t//p' /proc/%[2]s/status) mems_allowed=$(sed -n 's/^Mems_allowed_list:\t//p' /proc/%[2]s/status)`, leaf, pid)
	m.put(t, "/tmp/facts", "#!/bin/bash\n"+facts+"\n")
	const free = "cpus=0-1,4-5 mems=0-1 allowed=0-1,4-5 mems_allowed=0-1"

	// What the test stands on: the kernel takes such a value and does not use it.
	if got := m.must(t, "echo 2-3 >"+leaf+"/cpuset.cpus && /tmp/facts"); !strings.Contains(got, "leaf.cpus=2-3") || !strings.Contains(got, free) {
		t.Errorf("CPUs 2-3, which the cgroup above does not have, were written: %s", got)
	}
	m.must(t, "echo 0-1,4-5 >"+leaf+"/cpuset.cpus")

	for _, c := range []struct {
		name, cpus, mems string
		set              string // what setting them reports, within the line
		while, after     string // facts, within the line
	}{
		{"of one node", "4-5", "1", "result=ok", "leaf.cpus=4-5 leaf.mems=1 cpus=4-5 mems=1 allowed=4-5 mems_allowed=1", free},
		{"CPUs alone", "0", "", "result=ok", "cpus=0 mems=0-1 allowed=0 mems_allowed=0-1", free},
		{"memory alone", "", "0", "result=ok", "cpus=0-1,4-5 mems=0 allowed=0-1,4-5 mems_allowed=0", free},
		{"CPUs outside", "2-3", "", "result=not-taken\tfile=" + leaf + "/cpuset.cpus\twrote=2-3\teffective=0-1,4-5\t", free, free},
		{"CPUs partly outside", "1-2", "", "result=not-taken\tfile=" + leaf + "/cpuset.cpus\twrote=1-2\teffective=1\t", free, free},
		{"CPUs outside, memory inside", "2-3", "1", "result=not-taken\tfile=" + leaf + "/cpuset.cpus\twrote=2-3\teffective=0-1,4-5\t", free, free},
		{"CPUs that the machine lacks", "64", "", "result=error", free, free},
	} {
		output := m.must(t, fmt.Sprintf("%s/confine %s '%s' '%s' /tmp/facts; /tmp/facts", guestTools, pid, c.cpus, c.mems))
		lines := strings.Split(output, "\n")
		if len(lines) < 4 {
			t.Fatalf("%s: %s", c.name, output)
		}
		for i, want := range []string{"step=set\t" + c.set, c.while, "step=restore\tresult=ok", c.after} {
			if !strings.Contains(lines[i], want) {
				t.Errorf("%s: got %q, want %q in it", c.name, lines[i], want)
			}
		}
	}

	// Memory outside of what the step may use.
	m.must(t, "echo 0 >"+leaf+"/../cpuset.mems")
	output = m.must(t, fmt.Sprintf("%s/confine %s '' 1 /tmp/facts", guestTools, pid))
	if want := "result=not-taken\tfile=" + leaf + "/cpuset.mems\twrote=1\teffective=0\t"; !strings.Contains(output, want) {
		t.Errorf("memory outside: got %s, want %q in it", output, want)
	}

	// A second process: the cgroup is not the task's alone.
	output = m.must(t, fmt.Sprintf("sleep 60 </dev/null >/dev/null 2>&1 & other=$!; echo $other >%s/cgroup.procs; %s/confine %s 4 '' /tmp/facts; kill $other", leaf, guestTools, pid))
	if !strings.Contains(output, "step=set\tresult=not-own") || !strings.Contains(output, "allowed=0-1,4-5") {
		t.Errorf("with a second process inside: %s", output)
	}
}
