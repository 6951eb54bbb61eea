package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gputune/internal/job"
	"gputune/internal/setting"
	"gputune/tests/fakenvml"
)

// nvmlCall is one function of the fake NVML.
type nvmlCall struct {
	name    string
	ofGPU   bool
	numbers int
	sets    bool
	uses    int // by the program that is tested, for one of its GPUs
}

// nvmlCalls returns the functions that a program uses, with the uses for the GPU
// that has the faults.
func (n *Node) nvmlCalls(t *testing.T, program func()) []nvmlCall {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "fakenvml", "lib", "calls.h"))
	if err != nil {
		t.Fatal(err)
	}
	var calls []nvmlCall
	var counters []fakenvml.Fault
	for _, word := range regexp.MustCompile(`CALL\((\w+), (\w+), (\d), (\w+)\)`).FindAllStringSubmatch(string(text), -1) {
		numbers, err := strconv.Atoi(word[3])
		if err != nil {
			t.Fatal(err)
		}
		c := nvmlCall{name: word[1], ofGPU: word[2] == "true", numbers: numbers, sets: word[4] == "true"}
		calls = append(calls, c)
		// It never happens, but is counted.
		counters = append(counters, fakenvml.Fault{Call: c.name, GPU: c.gpu(), Nth: "4000000000", Slow: time.Millisecond})
	}
	if err := n.NVML.SetFaults(t.Context(), counters...); err != nil {
		t.Fatal(err)
	}
	program()
	text, err = os.ReadFile(filepath.Join(n.NVML.Folder, "fakenvml.state.uses"))
	if err != nil {
		t.Fatal(err)
	}
	counts := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	counts = counts[len(counts)-len(calls):]
	for i := range calls {
		if calls[i].uses, err = strconv.Atoi(counts[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.NVML.SetFaults(t.Context()); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(calls, func(c nvmlCall) bool { return c.uses == 0 })
}

// gpu names the GPU that has the faults, "" for a call that is about none.
func (c nvmlCall) gpu() string {
	if !c.ofGPU {
		return ""
	}
	return strconv.Itoa(bumped)
}

// wrongValues are numbers that a hard job does not ask for.
var wrongValues = map[string]string{
	"PowerManagementLimit": "450000", "PowerManagementLimitConstraints": "550000,650000", "PowerManagementDefaultLimit": "650000",
	"GpuLockedClocks": "900,900", "MemoryLockedClocks": "900,900", "Architecture": "5", "ComputeMode": "0",
}

// faults returns what can go wrong at the uses of a call: each use by itself,
// and each with all that follow.
func (c nvmlCall) faults() []fakenvml.Fault {
	var effects []fakenvml.Fault
	for _, name := range []string{"NO_PERMISSION", "NOT_SUPPORTED", "IN_USE", "GPU_IS_LOST", "TIMEOUT", "UNKNOWN"} {
		effects = append(effects, fakenvml.Fault{Error: name})
	}
	if c.sets {
		effects = append(effects, fakenvml.Fault{Error: "TIMEOUT", Applied: true}, fakenvml.Fault{Ignored: true})
	}
	_, of, _ := strings.Cut(c.name, "et")
	if value := wrongValues[of]; value != "" && !strings.HasPrefix(c.name, "Reset") {
		effects = append(effects, fakenvml.Fault{Value: value})
	}
	if of == "PersistenceMode" {
		effects = append(effects, fakenvml.Fault{Value: "0"}, fakenvml.Fault{Value: "1"})
	}
	var faults []fakenvml.Fault
	for use := range c.uses {
		for _, nth := range []string{fmt.Sprint(use + 1), fmt.Sprintf("%d-", use+1)} {
			for _, f := range effects {
				f.Call, f.GPU, f.Nth = c.name, c.gpu(), nth
				faults = append(faults, f)
			}
		}
	}
	return faults
}

// hidden returns the keys of the state of which a fault hides the truth from
// every program: what a call answers wrongly, and what nothing can read.
func hidden(f fakenvml.Fault) []string {
	switch {
	case f.Error == "NOT_SUPPORTED" && f.Call == "GetPersistenceMode": // a GPU without it
		return []string{"persistence"}
	case f.Error == "NOT_SUPPORTED" && f.Call == "GetArchitecture": // an older GPU holds the clock in another way
		return []string{"memory_clocks", "application_clocks"}
	case f.Error != "":
		return nil
	}
	switch f.Call {
	case "SetGpuLockedClocks", "ResetGpuLockedClocks":
		return []string{"gpu_clocks"}
	case "SetMemoryLockedClocks", "ResetMemoryLockedClocks":
		return []string{"memory_clocks"}
	case "GetArchitecture":
		return []string{"memory_clocks", "application_clocks"}
	case "GetPowerManagementLimit":
		return []string{"power_limit"}
	case "GetPersistenceMode":
		return []string{"persistence"}
	case "GetComputeMode":
		return []string{"compute_mode"}
	}
	return nil
}

// same tells whether two states of the GPUs are the same, but for keys of the
// GPU that has the faults.
func (n *Node) same(is, want string, but []string) bool {
	but = slices.Clone(but)
	for i, key := range but {
		but[i] = "gpu/" + n.Machine.GPUs[bumped].UUID + "/" + key + " "
	}
	visible := func(text string) []string {
		return slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool {
			return slices.ContainsFunc(but, func(start string) bool { return strings.HasPrefix(line, start) })
		})
	}
	return slices.Equal(visible(is), visible(want))
}

// faulty is one run with a fault of the driver.
type faulty struct {
	n            *Node
	fault        fakenvml.Fault
	gpus, during string // the state before the job, and with it
	became       job.State
	failed       bool // an Epilog that met the fault could not restore
}

// prolog runs the Prolog with the fault.
func (f *faulty) prolog(ctx context.Context) error {
	result, err := f.n.Prolog(ctx, hard())
	if err != nil {
		return err
	}
	if result.Code != 0 {
		return fmt.Errorf("gputune-prolog: status %d\n%s", result.Code, result.Output)
	}
	if f.became, err = f.n.wantsTold(hard()); err != nil {
		return fmt.Errorf("%w\n%s", err, result.Output)
	}
	now, err := f.n.NVML.StateText()
	if err != nil {
		return err
	}
	report, _, err := f.n.Reported(hard().ID)
	if err != nil {
		return err
	}
	held, err := os.ReadDir(filepath.Join(f.n.State, "jobs"))
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	switch {
	case f.became == job.Applied && !f.n.same(now, f.during, hidden(f.fault)):
		return fmt.Errorf("said to be applied, and the GPUs have %s\n%s", differences(now, f.during), result.Output)
	case f.became != job.Applied && len(held) > 0 && !strings.Contains(report.Fault, "not put back"):
		return fmt.Errorf("the ledger holds something, and the report has %q\n%s", report.Fault, result.Output)
	case f.became != job.Applied && len(held) == 0 && !f.n.same(now, f.gpus, hidden(f.fault)):
		return fmt.Errorf("not applied, and the GPUs have %s\n%s", differences(now, f.gpus), result.Output)
	}
	return nil
}

// epilog runs the Epilog with the fault.
func (f *faulty) epilog(ctx context.Context) error {
	result, err := f.n.Epilog(ctx, hard())
	if err != nil {
		return err
	}
	if result.Code < 0 {
		return fmt.Errorf("gputune-epilog: killed\n%s", result.Output)
	}
	f.failed = result.Code != 0
	if f.failed && f.passed() {
		return fmt.Errorf("gputune-epilog: failed for good\n%s", result.Output)
	}
	if f.failed {
		return names(result.Output, f.n.Machine.GPUs[bumped].UUID)
	}
	return f.clean("gputune-epilog", result)
}

// passed tells whether the fault is over when the same is tried again.
func (f *faulty) passed() bool {
	switch f.fault.Error {
	case "IN_USE", "TIMEOUT", "UNKNOWN":
		return !strings.HasSuffix(f.fault.Nth, "-")
	}
	return false
}

// names is that some line says which setting of a GPU could not be put back.
func names(output, uuid string) error {
	for line := range strings.Lines(output) {
		for _, name := range []string{setting.SMClocksName, setting.MemoryClocksName, setting.ApplicationClocksName, setting.PowerLimitName, setting.PersistenceName, setting.ComputeModeName} {
			if strings.Contains(line, setting.GPUKey(uuid, name)+": put back ") {
				return nil
			}
		}
	}
	return fmt.Errorf("no line names GPU and setting:\n%s", output)
}

// again runs the Epilog or restore without the fault.
func (f *faulty) again(ctx context.Context, by string) error {
	if err := f.n.NVML.SetFaults(ctx); err != nil {
		return err
	}
	run := func() (Result, error) { return f.n.Restore(ctx, by) }
	if by == "epilog" {
		run = func() (Result, error) { return f.n.Epilog(ctx, hard()) }
	}
	result, err := run()
	if err != nil {
		return err
	}
	if result.Code != 0 {
		return fmt.Errorf("without the fault, %s: status %d\n%s", by, result.Code, result.Output)
	}
	return f.clean("without the fault, "+by, result)
}

// clean is that everything is as before the job, as far as any program can know.
func (f *faulty) clean(by string, result Result) error {
	now, err := f.n.NVML.StateText()
	if err != nil {
		return err
	}
	left, err := f.n.Left()
	if err != nil {
		return err
	}
	if len(left) > 0 || !f.n.same(now, f.gpus, hidden(f.fault)) {
		return fmt.Errorf("%s left %v, and the GPUs have %s\n%s", by, left, differences(now, f.gpus), result.Output)
	}
	return nil
}

// TestDriverFaults has each NVML call of Prolog and Epilog fail in every way at
// each of its uses, once and from there on, for one GPU of two. The Prolog never
// fails; what it says was applied is, and what it says was not is not; and the
// Epilog restores all of it, also if a call fails once that can succeed a moment
// later, or says what it could not and does so when the fault has gone.
func TestDriverFaults(t *testing.T) {
	// Faults that stay are not waited for as long as by default.
	const config = "[job]\nepilog_deadline = \"4s\"\n"
	n, gpus := beginHard(t, config)
	nodes := []*Node{n}
	for len(nodes) < 4 {
		another, _ := beginHard(t, config)
		nodes = append(nodes, another)
	}
	before, err := n.take()
	if err != nil {
		t.Fatal(err)
	}
	inProlog := n.nvmlCalls(t, func() { n.prolog(t, hard()) })
	during, err := n.take()
	if err != nil {
		t.Fatal(err)
	}
	inEpilog := n.nvmlCalls(t, func() { n.epilog(t, hard()) })
	for _, program := range []struct {
		name  string
		calls []nvmlCall
		from  snapshot
		run   func(ctx context.Context, f *faulty) error
	}{
		{"Prolog", inProlog, before, func(ctx context.Context, f *faulty) error {
			if err := f.prolog(ctx); err != nil {
				return err
			}
			return f.epilog(ctx) // counts go on, and a fault that stays meets it
		}},
		{"Epilog", inEpilog, during, func(ctx context.Context, f *faulty) error { return f.epilog(ctx) }},
	} {
		t.Run(program.name, func(t *testing.T) {
			started := time.Now()
			var faults []fakenvml.Fault
			uses := 0
			for _, c := range program.calls {
				faults = append(faults, c.faults()...)
				uses += c.uses
			}
			step := 1
			if testing.Short() {
				step = 13
			}
			var next, tried, applied, refused, drained, wrong atomic.Int64
			var group sync.WaitGroup
			for _, n := range nodes {
				group.Go(func() {
					for wrong.Load() < 10 {
						i := int(next.Add(1)-1) * step
						if i >= len(faults) {
							return
						}
						f := &faulty{n: n, fault: faults[i], gpus: gpus, during: during.gpus}
						err := n.put(program.from)
						if err == nil {
							err = n.NVML.SetFaults(t.Context(), f.fault)
						}
						if err == nil {
							err = program.run(t.Context(), f)
						}
						if err == nil {
							err = f.again(t.Context(), []string{"epilog", "--job=42", "--all"}[i%3])
						}
						tried.Add(1)
						switch f.became {
						case job.Applied:
							applied.Add(1)
						case job.Refused:
							refused.Add(1)
						}
						if f.failed {
							drained.Add(1)
						}
						if err != nil {
							wrong.Add(1)
							t.Errorf("%v: %v", f.fault, err)
						}
					}
				})
			}
			group.Wait()
			for _, n := range nodes {
				n.wantNobody(t)
			}
			t.Logf("%d calls with %d uses, %d faults: Prolog applied %d, refused %d; Epilog failed and then restored %d; %d wrong; %v",
				len(program.calls), uses, tried.Load(), applied.Load(), refused.Load(), drained.Load(), wrong.Load(), time.Since(started).Round(time.Second))
			if drained.Load() == 0 || program.name == "Prolog" && (applied.Load() == 0 || refused.Load() == 0) {
				t.Error("the faults did not do what they are for")
			}
		})
	}
}

// TestLateDriver has the driver take what it is told and read as before for a
// while, so that the change is thought to have failed. It is not left behind.
func TestLateDriver(t *testing.T) {
	n, gpus := beginHard(t, "")
	for _, c := range []struct{ call, before string }{
		{"PowerManagementLimit", "600000"}, {"PersistenceMode", "0"}, {"ComputeMode", "3"},
	} {
		t.Run(c.call, func(t *testing.T) {
			before, err := n.take()
			if err != nil {
				t.Fatal(err)
			}
			// The last read of a Prolog is the one after the write.
			uses := 0
			for _, used := range n.nvmlCalls(t, func() { n.prolog(t, hard()) }) {
				if used.name == "Get"+c.call {
					uses = used.uses
				}
			}
			if err := n.put(before); err != nil {
				t.Fatal(err)
			}
			late := fakenvml.Fault{Call: "Get" + c.call, GPU: strconv.Itoa(bumped), Nth: fmt.Sprintf("%d-%d", uses, uses+1), Value: c.before}
			if err := n.NVML.SetFaults(t.Context(), late); err != nil {
				t.Fatal(err)
			}
			output := n.prolog(t, hard())
			if became, err := n.wantsTold(hard()); err != nil || became == job.Applied {
				t.Errorf("options %s, %v", became, err)
			}
			if now := n.state(t); now != gpus {
				t.Errorf("the Prolog left %s\n%s", differences(now, gpus), output)
			}
			if err := n.NVML.SetFaults(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := n.wantsBack(t.Context(), gpus, "epilog"); err != nil {
				t.Error(err)
			}
			if err := n.put(before); err != nil {
				t.Fatal(err)
			}
		})
	}
}
