package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gputune/internal/job"
	"gputune/tests/fakenvml"
)

// forever is longer than a program may take that waits for a call.
const forever = time.Minute

// short is a site's configuration under which programs give up soon.
const short = "[job]\nprolog_deadline = \"1s\"\nepilog_deadline = \"1s\"\n"

// wantEnd is that the node's processes end without being waited for.
func (n *Node) wantEnd(t *testing.T) {
	t.Helper()
	for range 100 {
		pids, err := n.Processes()
		if err != nil {
			t.Fatal(err)
		}
		if len(pids) == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	n.wantNobody(t)
}

// giveUp runs a program that has to give up: it ends, and so does all that could
// write to its output, long before the call that hangs. It returns its result.
func (n *Node) giveUp(t *testing.T, program string) Result {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), forever)
	defer cancel()
	result, err := Finish(n.Program(ctx, program, hard()))
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > forever/2 {
		t.Errorf("%s took %v", program, took)
	}
	n.wantEnd(t)
	return result
}

// wantFault is that the Prolog reported that it could not do its work.
func (n *Node) wantFault(t *testing.T, result Result, reason string) {
	t.Helper()
	became, err := n.wantsTold(hard())
	if err != nil || became == job.Applied || result.Code != 0 {
		t.Errorf("status %d, options %s, %v\n%s", result.Code, became, err, result.Output)
	}
	report, notice, err := n.Reported(hard().ID)
	if err != nil || !strings.Contains(report.Fault, reason) || !strings.HasPrefix(notice, "warn\n") {
		t.Errorf("report %+v, notice %q, %v", report, notice, err)
	}
}

// wantWell is that everything is put back once no call hangs any more.
func (n *Node) wantWell(t *testing.T, gpus, by string) {
	t.Helper()
	if err := errors.Join(n.NVML.SetFaults(t.Context()), n.Configure("")); err != nil {
		t.Fatal(err)
	}
	if err := n.wantsBack(t.Context(), gpus, by); err != nil {
		t.Error(err)
	}
}

// TestHangs has calls of the driver hang in Prolog and in Epilog, each of those
// that they make. Both are done by their deadline and leave nobody behind, and
// when the GPU is well again the next Epilog restores it.
func TestHangs(t *testing.T) {
	n, gpus := beginHard(t, "")
	inProlog := n.nvmlCalls(t, func() { n.prolog(t, hard()) })
	during, err := n.take()
	if err != nil {
		t.Fatal(err)
	}
	inEpilog := n.nvmlCalls(t, func() { n.epilog(t, hard()) })
	hang := func(t *testing.T, c nvmlCall) *Node {
		t.Parallel()
		n, _ := beginHard(t, short)
		if err := n.NVML.SetFaults(t.Context(), fakenvml.Fault{Call: c.name, GPU: c.gpu(), Slow: forever}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	some := func(calls []nvmlCall) []nvmlCall {
		if testing.Short() {
			return calls[len(calls)-3:]
		}
		return calls
	}
	for _, c := range some(inProlog) {
		t.Run("Prolog/"+c.name, func(t *testing.T) {
			n := hang(t, c)
			result := n.giveUp(t, "gputune-prolog")
			if c.name != "Shutdown" { // by then all is said and done
				n.wantFault(t, result, "not done in time")
			}
			n.wantWell(t, gpus, "epilog")
		})
	}
	for _, c := range some(inEpilog) {
		t.Run("Epilog/"+c.name, func(t *testing.T) {
			n := hang(t, c)
			if err := n.put(during); err != nil {
				t.Fatal(err)
			}
			result := n.giveUp(t, "gputune-epilog")
			if result.Code <= 0 || !strings.Contains(result.Output, "not done in time") {
				t.Errorf("status %d\n%s", result.Code, result.Output)
			}
			n.wantWell(t, gpus, []string{"epilog", "--job=42"}[len(c.name)%2])
		})
	}
}

// TestStoppedChild stops the child that does the work.
func TestStoppedChild(t *testing.T) {
	for _, program := range []string{"gputune-prolog", "gputune-epilog"} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			n, gpus := beginHard(t, short)
			if program == "gputune-epilog" {
				n.prolog(t, hard())
			}
			if err := n.NVML.SetFaults(t.Context(), fakenvml.Fault{Call: "SetPowerManagementLimit", Nth: "1-", Slow: time.Minute}); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), forever)
			defer cancel()
			command := n.Program(ctx, program, hard())
			var output bytes.Buffer
			command.Stdout, command.Stderr = &output, &output
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			n.waitForUse(t)
			if err := unix.Kill(n.child(t), unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			_ = command.Wait() // the status is looked at below
			result := Result{command.ProcessState.ExitCode(), output.String()}
			if took := time.Since(began); took > forever/2 {
				t.Errorf("took %v", took)
			}
			n.wantEnd(t)
			if program == "gputune-prolog" {
				n.wantFault(t, result, "not done in time")
			} else if result.Code <= 0 || !strings.Contains(result.Output, "not done in time") {
				t.Errorf("status %d\n%s", result.Code, result.Output)
			}
			n.wantWell(t, gpus, "epilog")
		})
	}
}

// waitForUse waits until a fault that is counted, the node's only one, has hit.
// The use is counted before the call takes its time.
func (n *Node) waitForUse(t *testing.T) {
	t.Helper()
	path := filepath.Join(n.NVML.Folder, "fakenvml.state.uses")
	for range 60000 {
		if text, err := os.ReadFile(path); err == nil && !bytes.HasSuffix(text, []byte("\n0\n")) {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("nobody has come to the slow call")
}

// child returns the process that does a program's work.
func (n *Node) child(t *testing.T) int {
	t.Helper()
	pids, err := n.Processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && bytes.Contains(line, []byte("\x00--role=work\x00")) {
			return pid
		}
	}
	t.Fatalf("none of the processes %v does the work", pids)
	return 0
}
