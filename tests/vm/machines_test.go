//go:build vm

package vm

import (
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"gputune/tests/vm/numavm"
)

// test is one that has the machine for itself while it runs.
type test struct {
	name string
	run  func(*testing.T, *machine)
	// on are the releases that it runs on but in a full run, nil each: what it shows
	// differs little by release, and costs much of a machine's time.
	on []numavm.Suite
}

// full has every test run whole on every release, before a release of gputune.
func full() bool { return os.Getenv("GPUTUNE_VM_FULL") != "" }

func (t test) runsOn(suite numavm.Suite) bool {
	return full() || len(t.on) == 0 || slices.Contains(t.on, suite)
}

var (
	onBookworm = []numavm.Suite{numavm.Bookworm}
	onTrixie   = []numavm.Suite{numavm.Trixie}
	onForky    = []numavm.Suite{numavm.Forky}
)

// tests are what runs, one after the other, in a machine of each release.
type tests struct {
	topology  string
	bare      []test // while the machine has Slurm and nothing of gputune
	settings  string // variables of slurm-up
	slurmConf string // lines of slurm.conf
	tests     []test
}

// withoutExtern leaves out the extern step, which costs half a second of each job.
// The jobs on memory-only nodes have it.
const withoutExtern = "PROLOG_FLAGS=Alloc"

// bindingTests show what tasks are bound to. Those that take longest are the first.
func bindingTests() []tests {
	return []tests{
		// Two nodes, one per package, with two GPUs each.
		{"n2", nil, withoutExtern, "", []test{
			{"Launch", testLaunch, nil},
			{"Policies", testPolicies, nil},
			{"Escape", testEscape, nil},
			{"TwoJobs", testTwoJobs, nil},
			{"JobLooksTheSame", testJobLooksTheSame, nil},
			{"SlurmChangesCpusets", testSlurmChangesCpusets, nil},
			{"Namespace", testNamespace, nil},
			{"Cpuset", testCpuset, nil},
			{"Follow", testFollow, onForky},
			{"Kernel", testKernel, nil},
			{"FiftyJobs", testFiftyJobs, nil},
			{"ContainSpank", testContainSpank, nil},
			{"KilledSteps", testKilledSteps, nil}, // the last: it leaves what Slurm leaves
		}},
		// Two nodes with CPUs and two of memory alone, as Grace Hopper has them; the
		// firmware does not say where the last GPU is. With Prolog, Epilog and the
		// extern step.
		{"gh-nonode", nil, gpuOnNode1, prologEpilog, []test{
			{"Nodes", testMemoryOnlyNodes, nil},
			{"UnknownLocality", testUnknownLocality, nil},
			{"MoreTasksThanGPUs", testMoreTasksThanGPUs, nil},
			{"NoLocalCPU", testNoLocalCPU, nil},
			{"User", testUser, nil},
		}},
		// Four nodes, two per package, with an L3 cache and a GPU each.
		{"n4", nil, withoutExtern, "", []test{{"Policies", testPolicies, nil}}},
	}
}

// nodeTests show a node's whole life with gputune: it is installed, upgraded and
// removed; jobs change the node, and what they change is put back, by their Epilog or
// by the agent.
func nodeTests() []tests {
	return []tests{{"gh", []test{{"Install", testInstall, nil}}, gpuOnNode1, prologEpilog, []test{
		{"JobSettings", testJobSettings, nil},
		{"RefusedSettings", testRefusedSettings, nil},
		{"MPSUnit", testMPSUnit, onBookworm},
		{"TaskLimits", testTaskLimits, onForky},
		{"SettingsOfNode", testSettingsOfNode, []numavm.Suite{numavm.Bookworm, numavm.Trixie}}, // EIO and EPERM for interrupts that are the kernel's
		{"SettingsKilled", testSettingsKilled, onBookworm},
		{"SettingsShared", testSettingsShared, onForky},
		{"AgentHangs", testAgentHangs, onBookworm},
		{"AgentUnit", testAgentUnit, nil}, // systemd knows other settings in each
		{"AgentVerifies", testAgentVerifies, onTrixie},
		{"AgentRecovers", testAgentRecovers, onTrixie},
		{"AgentKilled", testAgentKilled, onTrixie},
		{"SettingsPowerCut", testSettingsPowerCut, onBookworm}, // the last: it boots
	}}}
}

// TestBinding is the plugin's.
func TestBinding(t *testing.T) { inMachines(t, bindingTests()) }

// TestNode is the package's, the Prolog's, the Epilog's and the agent's.
func TestNode(t *testing.T) { inMachines(t, nodeTests()) }

// inMachines runs tests on all releases, as many machines at a time as keep the
// CPUs busy: each is one thread, that waits now and then. They start in the
// order given, so that none of the long ones is left to the end; the parallel
// tests of package testing start in any.
func inMachines(t *testing.T, all []tests) {
	starts := make(chan func())
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) + 1 {
		workers.Go(func() {
			for start := range starts {
				start()
			}
		})
	}
	for _, tests := range all {
		for _, suite := range numavm.Suites() {
			starts <- func() {
				t.Run(tests.topology+"-"+string(suite), func(t *testing.T) { inMachine(t, suite, tests) })
			}
		}
	}
	close(starts)
	workers.Wait()
}

func inMachine(t *testing.T, suite numavm.Suite, tests tests) {
	m := start(t, suite, tests.topology)
	if len(tests.bare) > 0 {
		m.slurmUp(t, bare, slurmConf)
		m.run(t, tests.bare)
	}
	m.install(t, tests.settings, slurmConf+tests.slurmConf)
	m.run(t, tests.tests)
	m.log.Reset()
	m.checkClean(t)
	t.Logf("%.1f s of CPU time in all", m.cpuTime(t).Seconds())
}

// run runs tests one after the other.
func (m *machine) run(t *testing.T, tests []test) {
	for _, test := range tests {
		if !test.runsOn(m.suite) {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			m.log.Reset()
			t.Cleanup(func() { m.explain(t) })
			used, began := m.cpuTime(t), time.Now()
			test.run(t, m)
			m.checkLog(t)
			t.Logf("%.1f s of CPU time in %.1f s", (m.cpuTime(t) - used).Seconds(), time.Since(began).Seconds())
		})
	}
}
