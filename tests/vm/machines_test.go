//go:build vm

package vm

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"gputune/tests/vm/numavm"
)

// test is one that has the machine for itself while it runs.
type test struct {
	name string
	run  func(*testing.T, *machine)
}

// tests are what runs, one after the other, in a machine of each suite.
type tests struct {
	topology  string
	settings  string // variables of slurm-up, and bare
	slurmConf string // lines of slurm.conf
	tests     []test
}

// withoutExtern leaves out the extern step, which costs half a second of each job.
// The jobs on memory-only nodes have it.
const withoutExtern = "PROLOG_FLAGS=Alloc"

// allTests has those that take longest first.
func allTests() []tests {
	return []tests{
		// Two nodes, one per package, with two GPUs each.
		{"n2", withoutExtern, "", []test{
			{"Launch", testLaunch},
			{"Policies", testPolicies},
			{"Escape", testEscape},
			{"TwoJobs", testTwoJobs},
			{"JobLooksTheSame", testJobLooksTheSame},
			{"SlurmChangesCpusets", testSlurmChangesCpusets},
			{"Namespace", testNamespace},
			{"Cpuset", testCpuset},
			{"Follow", testFollow},
			{"Kernel", testKernel},
			{"FiftyJobs", testFiftyJobs},
			{"ContainSpank", testContainSpank},
			{"KilledSteps", testKilledSteps}, // the last: it leaves what Slurm leaves
		}},
		// Two nodes with CPUs and two of memory alone, as Grace Hopper has them; the
		// firmware does not say where the last GPU is. With Prolog, Epilog and the
		// extern step.
		{"gh-nonode", gpuOnNode1, prologEpilog, []test{
			{"Nodes", testMemoryOnlyNodes},
			{"UnknownLocality", testUnknownLocality},
			{"MoreTasksThanGPUs", testMoreTasksThanGPUs},
			{"NoLocalCPU", testNoLocalCPU},
			{"User", testUser},
			{"JobSettings", testJobSettings},
			{"RefusedSettings", testRefusedSettings},
			{"MPSUnit", testMPSUnit},
			{"TaskLimits", testTaskLimits},
			{"SettingsOfNode", testSettingsOfNode},
			{"SettingsKilled", testSettingsKilled},
			{"SettingsShared", testSettingsShared},
			{"AgentHangs", testAgentHangs},
			{"AgentUnit", testAgentUnit},
			{"AgentVerifies", testAgentVerifies},
			{"AgentRecovers", testAgentRecovers},
			{"AgentKilled", testAgentKilled},
			{"SettingsPowerCut", testSettingsPowerCut}, // the last: it boots
		}},
		// Without gputune, which an administrator installs.
		{"n4c", bare, "", []test{{"Install", testInstall}}},
		// Four nodes, two per package, with an L3 cache and a GPU each.
		{"n4", withoutExtern, "", []test{{"Policies", testPolicies}}},
	}
}

// TestMachines runs all tests in all suites, as many machines at a time as keep
// the CPUs busy: each is one thread, that waits now and then. They start in the
// order given, so that none of the long ones is left to the end; the parallel
// tests of package testing start in any.
func TestMachines(t *testing.T) {
	starts := make(chan func())
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) + 1 {
		workers.Go(func() {
			for start := range starts {
				start()
			}
		})
	}
	for _, tests := range allTests() {
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
	m := start(t, suite, tests)
	for _, test := range tests.tests {
		t.Run(test.name, func(t *testing.T) {
			m.log.Reset()
			t.Cleanup(func() { m.explain(t) })
			used, began := m.cpuTime(t), time.Now()
			test.run(t, m)
			m.checkLog(t)
			t.Logf("%.1f s of CPU time in %.1f s", (m.cpuTime(t) - used).Seconds(), time.Since(began).Seconds())
		})
	}
	m.log.Reset()
	m.checkClean(t)
	t.Logf("%.1f s of CPU time in all", m.cpuTime(t).Seconds())
}
