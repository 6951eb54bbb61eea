//go:build vm

package vm

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"gputune/internal/idset"
	"gputune/tests/vm/numavm"
)

// plugstack is the line that the README tells sites to add.
const plugstack = "optional /usr/lib/gputune/spank_gputune.so"

// slurmConf are lines of slurm.conf for every machine: numbers of jobs that are
// seen to be such, and no timeout on a busy host. Slurm forgets a job after five
// minutes otherwise, which is before a test with many has asked how they ended.
var slurmConf = fmt.Sprintf("FirstJobId=%d\nMinJobAge=3600\nMessageTimeout=60\n", firstJob)

const firstJob = 4001

// commandTimeout is for a host that gives a machine a tenth of a CPU.
const commandTimeout = 5 * time.Minute

// machine is a virtual machine in which Slurm and gputune are installed.
type machine struct {
	*numavm.VM
	suite  numavm.Suite
	layout *layout
	gpus   map[int]string // PCI address by minor number
	log    *strings.Builder

	batches int // jobs of holdJob so far
}

// start boots a machine.
func start(t *testing.T, suite numavm.Suite, topology string) *machine {
	t.Helper()
	needImage(t, suite)
	topo, err := numavm.ParseTopology(topology)
	if err != nil {
		t.Fatal(err)
	}
	vm, err := numavm.Start(t.Context(), numavm.Options{Suite: suite, Topology: topo, CommandTimeout: commandTimeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
	})
	m := &machine{VM: vm, suite: suite, log: &strings.Builder{}}
	t.Cleanup(func() { m.explain(t) })
	var memoryOnly idset.Set
	for id, n := range topo.Nodes {
		if n.CPUs == "" {
			memoryOnly.Add(id)
		}
	}
	m.must(t, "cp "+guestTools+"/look-at-task /usr/local/bin/")
	if m.layout, err = parseLstopo(m.must(t, "lstopo-no-graphics --of xml"), memoryOnly); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: kernel %s, Slurm %s, booted in %.1f s, %.1f s of CPU time", suite, vm.Kernel, suite.Slurm(), vm.Booted.Seconds(), m.cpuTime(t).Seconds())
	return m
}

// slurmUp starts Slurm anew. settings are variables of slurm-up.
func (m *machine) slurmUp(t *testing.T, settings, slurmConf string) {
	t.Helper()
	m.must(t, fmt.Sprintf("export PLUGSTACK='%s' %s\nSLURM_EXTRA='%s' slurm-up && nvml-up", plugstack, settings, slurmConf))
	m.gpus = map[int]string{}
	for line := range strings.Lines(m.must(t, "cat /run/numavm/gpus")) {
		var minor int
		var pci string
		if _, err := fmt.Sscan(line, &minor, &pci); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if _, known := m.layout.local[pci]; !known {
			t.Fatalf("lstopo knows no PCI device %s", pci)
		}
		m.gpus[minor] = pci
	}
}

// install puts gputune in place as "make install" does, whatever was there, and
// starts Slurm with it.
func (m *machine) install(t *testing.T, settings, slurmConf string) {
	t.Helper()
	m.must(t, fmt.Sprintf(`! mountpoint -q /proc/driver || umount /proc/driver || exit
cp -a %s/vm-root-%s/. / && echo '[paths]
machine = "/run/testroot"' >/etc/gputune/gputune.toml`, guestBuild, m.suite.Slurm()))
	m.slurmUp(t, settings, slurmConf)
}

func (m *machine) cpuTime(t *testing.T) time.Duration {
	t.Helper()
	used, err := m.CPUTime()
	if err != nil {
		t.Fatal(err)
	}
	return used
}

// needImage builds the suite's image if there is none. Forky moves on by itself,
// so that its image may fail to build for reasons that are not ours.
func needImage(t *testing.T, suite numavm.Suite) {
	t.Helper()
	tree, err := numavm.FindTree()
	if err != nil {
		t.Fatal(err)
	}
	cache, err := numavm.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	image, err := numavm.EnsureImage(t.Context(), tree, cache, suite, nil)
	switch {
	case err != nil && suite == numavm.Forky:
		t.Skipf("the image of %s cannot be built: %v", suite, err)
	case err != nil:
		t.Fatal(err)
	}
	if image.Built > 0 {
		t.Logf("built the image of %s in %.0f s", suite, image.Built.Seconds())
	}
	if err := image.Close(); err != nil {
		t.Error(err)
	}
}

// try runs a script to its end, however it ends.
func (m *machine) try(t *testing.T, script string) numavm.Result {
	t.Helper()
	return m.tryFor(t, commandTimeout, script)
}

func (m *machine) tryFor(t *testing.T, timeout time.Duration, script string) numavm.Result {
	t.Helper()
	result, err := m.Exec(t.Context(), numavm.Command{Argv: []string{"bash", "-c", script}, Dir: "/tmp", Timeout: timeout})
	fmt.Fprintf(m.log, "# %s\n%s[status %d after %.1f s]\n", script, result.Output, result.Code, result.Took.Seconds())
	if err != nil {
		t.Fatalf("%v\n%s", err, script)
	}
	return result
}

// must runs a script that has to succeed and returns what it wrote.
func (m *machine) must(t *testing.T, script string) string {
	t.Helper()
	result := m.try(t, script)
	if result.Code != 0 {
		t.Fatalf("status %d of %s", result.Code, script)
	}
	return result.Output
}

func (m *machine) put(t *testing.T, path, content string) {
	t.Helper()
	if err := m.Put(t.Context(), path, 0o755, strings.NewReader(content)); err != nil {
		t.Fatal(err)
	}
}

// explain writes what was run, and Slurm's logs, into the log of a test that failed.
func (m *machine) explain(t *testing.T) {
	if !t.Failed() {
		return
	}
	const enough = 24 << 10
	text := m.log.String()
	if len(text) > enough {
		text = "…" + text[len(text)-enough:]
	}
	t.Logf("commands and their output:\n%s", text)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	result, err := m.Run(ctx, "squeue; sinfo -N -o '%N %T %E'; cat /var/log/slurm/slurmd.log.before /var/log/slurm/slurmd.log 2>/dev/null | tail -n 60; echo; tail -n 20 /var/log/slurm/slurmctld.log")
	if err != nil {
		t.Logf("Slurm's logs cannot be had: %v", err)
		return
	}
	t.Logf("Slurm's state, slurmd's and slurmctld's log:\n%s", result.Output)
}

// jobCgroups lists the cgroups of jobs; Slurm's own is beside them.
const jobCgroups = "find /sys/fs/cgroup/system.slice/node1_slurmstepd.scope -mindepth 1 -maxdepth 1 -type d ! -name system -printf '%f\\n'"

// waitIdle waits until no job is left and the node is ready for the next.
func (m *machine) waitIdle(t *testing.T) {
	t.Helper()
	// Each look costs as much as a task.
	script := `for i in $(seq 60); do [ "$(sinfo -h -o %T)" = idle ] && [ -z "$(squeue -h)" ] && exit 0; sleep 1; done; squeue; sinfo -N -o '%N %T %E'; exit 1`
	if result := m.try(t, script); result.Code != 0 {
		t.Fatalf("the node does not become idle:\n%s", result.Output)
	}
}

// checkClean finds what should not be there when nothing runs.
func (m *machine) checkClean(t *testing.T) {
	t.Helper()
	m.waitIdle(t)
	// Slurm removes the last cgroup a moment after the job is done.
	if left := m.must(t, `for i in $(seq 50); do left=$(`+jobCgroups+`); [ -z "$left" ] && break; sleep 0.1; done; echo $left`); strings.TrimSpace(left) != "" {
		t.Errorf("cgroups of jobs are left behind: %s", left)
	}
	if left := m.must(t, `grep -l libgputune /proc/[0-9]*/maps 2>/dev/null || true`); left != "" {
		t.Errorf("processes with the core are left behind: %s", left)
	}
}

// checkLog wants no error of gputune in slurmd's log since it last looked.
func (m *machine) checkLog(t *testing.T) {
	t.Helper()
	if errors := m.must(t, `grep -E 'error:.*gputune|fault in gputune' /var/log/slurm/slurmd.log || true`); errors != "" {
		t.Errorf("slurmd's log has errors of gputune:\n%s", errors)
	}
	m.forgetLog(t)
}

// forgetLog is for tests that cause errors.
func (m *machine) forgetLog(t *testing.T) {
	t.Helper()
	m.must(t, "cat /var/log/slurm/slurmd.log >>/var/log/slurm/slurmd.log.before; : >/var/log/slurm/slurmd.log")
}

// gpuNodes are the nodes that lstopo gives for the GPU, as the verbose line has them.
func (m *machine) gpuNodes(pci string) string {
	if nodes := m.layout.local[pci]; !nodes.Empty() {
		return nodes.String()
	}
	return "unknown"
}

func mustSet(t *testing.T, list string) idset.Set {
	t.Helper()
	set, err := idset.Parse(list)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// variable returns an environment variable's number.
func variable(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	var n int
	if _, err := fmt.Sscanf(text, "%d", &n); err != nil || n < 0 {
		t.Fatalf("%s=%q: want a number", name, text)
	}
	return n
}
