package node

import (
	"testing"
	"time"

	"gputune/tests/fakenvml"
)

// A job whose GPU is slow keeps no job on other GPUs waiting, in Prolog or
// Epilog.
func TestJobsBesideEachOther(t *testing.T) {
	n, gpus := beginHard(t, "")
	slow, quick := hard(), hard()
	slow.ID, slow.GPUs, quick.ID, quick.GPUs = 1, "0,1", 2, "2,3"
	type ended struct {
		what   string
		result Result
		err    error
	}
	order := make(chan ended, 2)
	finish := func(what, program string, j Job) {
		result, err := Finish(n.Program(t.Context(), program, j))
		order <- ended{what, result, err}
	}
	fault := fakenvml.Fault{Call: "SetPowerManagementLimit", GPU: "0", Nth: "1", Slow: 5 * time.Second}
	for _, program := range []string{"gputune-prolog", "gputune-epilog"} {
		if err := n.NVML.SetFaults(t.Context(), fault); err != nil {
			t.Fatal(err)
		}
		go finish("slow", program, slow)
		n.waitForUse(t)
		go finish("quick", program, quick)
		for _, want := range []string{"quick", "slow"} {
			got := <-order
			if got.err != nil || got.result.Code != 0 {
				t.Errorf("%s, %s: status %d, %v\n%s", program, got.what, got.result.Code, got.err, got.result.Output)
			}
			if got.what != want {
				t.Errorf("%s: %s was done before %s", program, got.what, want)
			}
		}
	}
	n.wantClean(t, gpus)
}
