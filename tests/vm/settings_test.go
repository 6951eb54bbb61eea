//go:build vm

package vm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gputune/tests/vm/numavm"
)

// prologEpilog are the lines of slurm.conf that "make install" tells sites to add.
const prologEpilog = "Prolog=/usr/sbin/gputune-prolog\nEpilog=/usr/sbin/gputune-epilog"

// gpuState is what is set on the GPUs, as the driver has it.
const gpuState = "/var/lib/fakenvml/fakenvml.state"

// batch is a batch job that waits, so that it can be looked at from inside and
// from outside.
type batch struct {
	m    *machine
	dir  string // in the guest
	id   string
	gpus []string // minor numbers
	seen string   // the GPUs' state, from inside
}

// batchScript looks at the GPUs and waits.
const batchScript = `#!/bin/bash
dir=$1
cat ` + gpuState + ` >"$dir/seen.new"
echo "gpus $SLURM_JOB_GPUS" >>"$dir/seen.new"
mv "$dir/seen.new" "$dir/seen"
until [ -e "$dir/go" ]; do sleep 0.3; done
`

// asNobody before a command runs it as a user without privileges.
const asNobody = "setpriv --reuid=65534 --regid=65534 --clear-groups "

// holdJob submits a job with these options of sbatch and returns when it runs. as
// is "" or asNobody.
func (m *machine) holdJob(t *testing.T, as, options string) *batch {
	t.Helper()
	m.batches++
	b := &batch{m: m, dir: fmt.Sprintf("/tmp/held-job-%d", m.batches)}
	m.must(t, "rm -rf "+b.dir+" && mkdir -m 777 "+b.dir) // jobs of other users write there
	m.put(t, b.dir+"/script", batchScript)
	output := m.must(t, fmt.Sprintf(`id=$(%[3]ssbatch --parsable -n1 -D / -o %[1]s/out %[2]s %[1]s/script %[1]s) || exit
echo $id
for i in $(seq 600); do [ ! -e %[1]s/seen ] || { cat %[1]s/seen; exit 0; }; sleep 0.1; done
scontrol show job $id; cat %[1]s/out; exit 1`, b.dir, options, as))
	id, seen, _ := strings.Cut(output, "\n")
	state, gpus, found := strings.Cut(strings.TrimSpace(seen), "gpus ")
	if !found || gpus == "" {
		t.Fatalf("job %s saw %q", id, seen)
	}
	b.id, b.seen, b.gpus = id, state, strings.Split(gpus, ",")
	return b
}

// release lets the job end.
func (b *batch) release(t *testing.T) {
	t.Helper()
	b.m.must(t, "touch "+b.dir+"/go")
}

func (m *machine) gpuState(t *testing.T) string {
	t.Helper()
	return m.must(t, "cat "+gpuState)
}

// checkSettings wants these values on the job's GPUs, and the others as they were.
// state and before are lines "gpu/UUID/KEY VALUE".
func (b *batch) checkSettings(t *testing.T, before string, values map[string]string) {
	t.Helper()
	var own []string // UUIDs
	for line := range strings.Lines(b.m.must(t, "cat /run/numavm/gpus")) {
		if f := strings.Fields(line); slices.Contains(b.gpus, f[0]) {
			own = append(own, f[2])
		}
	}
	if len(own) != len(b.gpus) || len(own) == 0 {
		t.Fatalf("job %s has GPUs %v, known are %v", b.id, b.gpus, own)
	}
	set := 0
	var want strings.Builder
	for line := range strings.Lines(before) {
		name, _, _ := strings.Cut(line, " ")
		part := strings.Split(name, "/")
		if value, asked := values[part[2]]; asked && slices.Contains(own, part[1]) {
			line = name + " " + value + "\n"
			set++
		}
		want.WriteString(line)
	}
	if set != len(own)*len(values) || b.seen != want.String() {
		t.Errorf("job %s with GPUs %v saw\n%s, want\n%s", b.id, own, b.seen, want.String())
	}
	if now := b.m.gpuState(t); now != b.seen {
		t.Errorf("job %s sees\n%s, from outside it is\n%s", b.id, b.seen, now)
	}
}

// checkAsBefore waits for the node to be idle and wants the GPUs as before, and
// nothing left of any job.
func (m *machine) checkAsBefore(t *testing.T, before string) {
	t.Helper()
	m.waitIdle(t)
	if now := m.gpuState(t); now != before {
		t.Errorf("the GPUs are\n%s, were\n%s", now, before)
	}
	if left := m.must(t, "ls -A /var/lib/gputune/jobs /var/lib/gputune/aside /run/gputune/jobs 2>/dev/null | grep -v ':$' || true"); strings.TrimSpace(left) != "" {
		t.Errorf("left of jobs: %s", left)
	}
	if node := m.must(t, "sinfo -h -o '%T %E'"); node != "idle none\n" {
		t.Errorf("the node is %s", node)
	}
}

// A job's GPUs are set while it runs, and no others, and are what they were
// however it ends.
func testJobSettings(t *testing.T, m *machine) {
	const asked = "--gpus=2 --gpu-clocks=1200 --gpu-power=500 --gpu-compute-mode=exclusive"
	values := map[string]string{"gpu_clocks": "1200,1200", "power_limit": "500000", "compute_mode": "3"}
	before := m.gpuState(t)
	m.checkAsBefore(t, before)

	job := m.holdJob(t, "", asked)
	job.checkSettings(t, before, values)
	m.must(t, restartSlurmd)
	if now := m.gpuState(t); now != job.seen {
		t.Errorf("slurmd was restarted, and the GPUs are\n%s, were\n%s", now, job.seen)
	}
	job.release(t)
	m.checkAsBefore(t, before)

	job = m.holdJob(t, "", asked)
	job.checkSettings(t, before, values)
	m.must(t, "scancel "+job.id)
	m.checkAsBefore(t, before)
}

// What a GPU cannot do is told to who asks for it, in one line.
func testRefusedSettings(t *testing.T, m *machine) {
	before := m.gpuState(t)
	const option = "--gpu-clocks=9999"
	const want = ": clocks 9999 MHz: supported 345–1980 MHz; nearest: 1980\n"
	check := func(how string, code int, output string) {
		t.Helper()
		if code != 1 || !strings.HasPrefix(output, "gputune: node1: error: "+option+": gpu 0000:") || !strings.HasSuffix(output, want) || strings.Count(output, "\n") != 1 {
			t.Errorf("%s: status %d, said %q, want one line that ends in %q", how, code, output, want)
		}
		m.checkAsBefore(t, before)
	}
	result := m.try(t, "sbatch -Q -W -n1 --gpus=1 -o /tmp/refused "+option+" --wrap 'echo ran'")
	check("sbatch", result.Code, m.must(t, "cat /tmp/refused"))
	if m.suite != numavm.Bookworm { // whose Slurm has no contain_spank
		m.must(t, containSpank)
		result := m.try(t, "srun -Q -n1 --gpus=1 "+option+" echo ran 2>/tmp/refused")
		m.must(t, notContainSpank)
		said := result.Output + m.must(t, "grep -v '^srun: ' /tmp/refused || true")
		check("contain_spank", result.Code, said)
	}
	m.forgetLog(t)
}
