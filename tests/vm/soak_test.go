//go:build vm

package vm

import (
	"testing"
	"time"

	"gputune/tests/vm/numavm"
)

// soakVariable says how many machines TestSoak boots, one after the other.
const soakVariable = "GPUTUNE_VM_SOAK"

// Machine after machine: boot, Slurm up, bound steps. A hang anywhere in that is a
// failure here, since every command has a timeout.
func TestSoak(t *testing.T) {
	times := variable(t, soakVariable, 0)
	if times == 0 {
		t.Skipf("set %s to the number of machines", soakVariable)
	}
	suites := numavm.Suites()
	topologies := []string{"n2", "n4", "gh", "n4c", "n2-nonode"}
	var slowest time.Duration
	for i := range times {
		suite, topology := suites[(i+1)%len(suites)], topologies[(i+3)%len(topologies)]
		began := time.Now()
		ok := t.Run(string(suite)+"-"+topology, func(t *testing.T) {
			m := start(t, suite, topology)
			m.install(t, "", slurmConf)
			for range 5 {
				o := m.step(t, "srun -Q -n4 --gpus-per-task=1 "+policy{}.option()+" look-at-task 4")
				m.check(t, o, policy{})
			}
			m.checkClean(t)
			m.checkLog(t)
		})
		took := time.Since(began)
		slowest = max(slowest, took)
		t.Logf("%d of %d: %s on %s, %.0f s", i+1, times, suite, topology, took.Seconds())
		if !ok {
			break
		}
	}
	t.Logf("the slowest took %.0f s", slowest.Seconds())
}
