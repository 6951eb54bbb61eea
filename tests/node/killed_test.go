package node

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gputune/internal/job"
	"gputune/internal/sample"
)

// hard is a job that changes all there is on two GPUs, one of which a site has
// changed before (see bump).
func hard() Job {
	return Job{ID: 42, GPUs: "1,2", Options: map[string]string{
		"gpu-clocks": "1200,memory=high", "gpu-power": "500", "gpu-compute-mode": "prohibited",
	}}
}

// bumped is the GPU of a hard job that is not as the driver makes it.
const bumped = 2

// beginHard makes a node for a hard job and returns its GPUs' state.
func beginHard(t testing.TB, config string) (n *Node, gpus string) {
	t.Helper()
	n = begin(t, config)
	n.bump(t)
	// As if there were an agent, so that the job is noted for its report.
	if err := os.MkdirAll(n.Run, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.Run, sample.SocketName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return n, n.state(t)
}

// killing is one way to kill a program in the middle.
type killing struct {
	name string
	from snapshot // what the node has before
	// prepare does what cannot be put there; nil is nothing. With it, what the
	// program leaves cannot be put back either, so that after always runs.
	prepare func(n *Node) error
	command func(n *Node) *exec.Cmd
	// after judges what the killed program did and runs what comes after it.
	after func(n *Node, got trace) error
	// with are the processes that die together with the one whose call it is.
	with []int
	// only tells which process's calls are meant.
	only func(process int) bool
	// each takes one in so many points; 0 is all of them.
	each int
	// first, if it is not nil, tells when a child is to be killed before. Then
	// the calls are those of the process that is started after it.
	first func(n *Node) bool
}

// plan runs the program unharmed a few times, because no two runs are quite the
// same, and returns every point at which it can be killed, and some that most
// runs do not come to.
func (k killing) plan(t *testing.T, n *Node) []point {
	t.Helper()
	const runs, more = 3, 10
	most := map[int]int{} // by process
	for range runs {
		if err := k.begin(n); err != nil {
			t.Fatal(err)
		}
		got, err := k.run(n, point{})
		if err == nil && k.prepare != nil {
			err = k.after(n, got)
		}
		if err != nil || got.processes[0].status != 0 {
			t.Fatalf("%s, unharmed: %v\n%s", k.name, err, got.output)
		}
		for place, p := range got.processes {
			if k.first == nil || place > 0 && got.processes[place-1].killed() {
				most[place] = max(most[place], p.calls)
			}
		}
	}
	var points []point
	for place, calls := range most {
		for number := range calls + more {
			if p := (point{place, number + 1}); k.only(place) {
				points = append(points, p)
			}
		}
	}
	if k.each > 1 {
		points = slices.DeleteFunc(points, func(p point) bool { return p.number%k.each != 0 })
	}
	slices.SortFunc(points, func(a, b point) int { return 10000*(a.process-b.process) + a.number - b.number })
	return points
}

// begin makes the node what it is before.
func (k killing) begin(n *Node) error {
	if err := n.put(k.from); err != nil || k.prepare == nil {
		return err
	}
	return k.prepare(n)
}

// kill runs the program and kills it at a point. hit is whether it came to that.
func (k killing) kill(n *Node, at point) (got trace, hit bool, err error) {
	if err := k.begin(n); err != nil {
		return got, false, err
	}
	got, err = k.run(n, at)
	return got, len(got.processes) > at.process && got.processes[at.process].killed(), err
}

func (k killing) run(n *Node, at point) (trace, error) {
	watched := at.process
	if at == (point{}) || k.first != nil {
		watched = everyProcess
	}
	fired := k.first == nil
	return traced(k.command(n), n.MPS.Folder, watched, func(c point) []int {
		switch {
		case c == at:
			return append([]int{c.process}, k.with...)
		case !fired && c.process > 0 && k.first(n):
			fired = true
			return []int{c.process}
		}
		return nil
	})
}

// TestKilledAtEverySystemCall kills Prolog, Epilog and restore before each of
// their system calls, one run each, and wants whatever comes next to make the
// node what it was before the job.
func TestKilledAtEverySystemCall(t *testing.T) {
	needTracer(t)
	const workers = 4
	n, gpus := beginHard(t, "")
	nodes := []*Node{n}
	for len(nodes) < workers {
		another, _ := beginHard(t, "")
		nodes = append(nodes, another)
	}
	j := hard()
	before, err := n.take()
	if err != nil {
		t.Fatal(err)
	}
	n.prolog(t, j)
	during, err := n.take()
	if err != nil {
		t.Fatal(err)
	}

	epilog := func(n *Node) error { return n.wantsBack(t.Context(), gpus, "epilog") }
	var turn atomic.Int64
	inTurn := func(programs ...string) func(n *Node, _ trace) error {
		return func(n *Node, _ trace) error {
			return n.wantsBack(t.Context(), gpus, programs[int(turn.Add(1))%len(programs)])
		}
	}
	program := func(name string, arguments ...string) func(n *Node) *exec.Cmd {
		return func(n *Node) *exec.Cmd { return n.Program(t.Context(), name, j, arguments...) }
	}
	parent := func(process int) bool { return process == 0 }
	child := func(process int) bool { return process > 0 }
	started := time.Now()
	tried := 0
	for _, k := range []killing{
		{
			name: "Prolog", from: before, command: program("gputune-prolog"), only: parent,
			after: func(n *Node, _ trace) error { return epilog(n) },
		},
		{
			// The parent puts everything back and reports.
			name: "Prolog's child alone", from: before, command: program("gputune-prolog"), only: child, each: 5,
			after: func(n *Node, got trace) error {
				if got.processes[0].status != 0 {
					return fmt.Errorf("gputune-prolog ended with %#x", got.processes[0].status)
				}
				told, err := n.wantsTold(j)
				if err != nil {
					return err
				}
				// The runtime starts a process to learn what the kernel can do,
				// which nothing depends on.
				unharmed := got.processes[len(got.processes)-1].status == 0 && told == job.Applied
				now, err := n.NVML.StateText()
				if err != nil {
					return err
				}
				if now != gpus && !unharmed {
					return fmt.Errorf("the Prolog left %s", differences(now, gpus))
				}
				return epilog(n)
			},
		},
		{
			// The child and then the one that is to put back what it did.
			name: "Prolog's both children", from: before, command: program("gputune-prolog"), each: 20,
			only: child, first: func(n *Node) bool { // all changes are made
				now, err := n.NVML.StateText()
				return err == nil && now == during.gpus
			},
			after: func(n *Node, got trace) error {
				if got.processes[0].status != 0 {
					return fmt.Errorf("gputune-prolog ended with %#x", got.processes[0].status)
				}
				became, err := n.wantsTold(j)
				if err != nil {
					return err
				}
				if became != job.Refused {
					return fmt.Errorf("the options are said to be %s", became)
				}
				return epilog(n)
			},
		},
		{
			name: "Prolog and its child at once", from: before, command: program("gputune-prolog"), only: child, with: []int{0},
			after: func(n *Node, _ trace) error { return epilog(n) },
		},
		{
			name: "Epilog", from: during, command: program("gputune-epilog"), only: parent,
			after: inTurn("epilog", "--job=42"),
		},
		{
			name: "Epilog's child alone", from: during, command: program("gputune-epilog"), only: child, each: 5,
			after: func(n *Node, got trace) error {
				status := got.processes[0].status
				if dirt := n.dirt(gpus); !status.Exited() || status == 0 && dirt != "" {
					return fmt.Errorf("gputune-epilog ended with %#x, and left: %s", status, dirt)
				}
				return inTurn("epilog", "--job=42", "--all")(n, got)
			},
		},
		{
			name: "Epilog and its child at once", from: during, command: program("gputune-epilog"), only: child, with: []int{0},
			after: inTurn("epilog", "--job=42"),
		},
		{
			name: "restore", from: during, command: program("gputune", "restore", "--job=42"), only: parent,
			after: inTurn("--job=42", "--all"),
		},
		{
			name: "restore of all", from: during, command: program("gputune", "restore", "--all"), only: parent, each: 5,
			after: inTurn("--all", "--job=42"),
		},
	} {
		t.Run(k.name, func(t *testing.T) { tried += k.everywhere(t, nodes) })
	}
	t.Logf("%d kill points in %v", tried, time.Since(started).Round(time.Second))
}

// everywhere kills a program at every point, or in short at some, and returns
// at how many.
func (k killing) everywhere(t *testing.T, nodes []*Node) int {
	started := time.Now()
	points := k.plan(t, nodes[0])
	if testing.Short() {
		const most = 25
		var some []point
		for i := range most {
			some = append(some, points[i*len(points)/most])
		}
		points = slices.Compact(some)
	}
	var next, killed, failed atomic.Int64
	var group sync.WaitGroup
	for _, n := range nodes {
		group.Go(func() {
			for failed.Load() < 5 {
				i := int(next.Add(1)) - 1
				if i >= len(points) {
					return
				}
				got, hit, err := k.kill(n, points[i])
				if hit {
					killed.Add(1)
				}
				if err == nil && (hit || k.prepare != nil) {
					err = k.after(n, got)
				}
				if err != nil {
					failed.Add(1)
					t.Errorf("process %d killed before its call %d, of number %d: %v: %v\n%s",
						points[i].process, points[i].number, got.last, got.processes, err, got.output)
				}
			}
		})
	}
	group.Wait()
	for _, n := range nodes {
		n.wantNobody(t)
	}
	t.Logf("%d kill points, of which %d left anything, in %v", killed.Load(), failed.Load(), time.Since(started).Round(time.Second))
	if len(points) == 0 || int(killed.Load()) < len(points)/2 {
		t.Errorf("killed at %d of %d points", killed.Load(), len(points))
	}
	return int(killed.Load())
}

// wantsBack runs what puts a hard job's changes back, the Epilog or restore,
// and wants nothing to be left.
func (n *Node) wantsBack(ctx context.Context, gpus, by string) error {
	return n.wantsBackOf(ctx, hard(), gpus, by)
}

// wantsBackOf is wantsBack for another job.
func (n *Node) wantsBackOf(ctx context.Context, j Job, gpus, by string) error {
	var result Result
	var err error
	if by == "epilog" {
		result, err = Finish(n.Program(ctx, "gputune-epilog", j))
	} else {
		result, err = n.Restore(ctx, by)
	}
	if err != nil {
		return err
	}
	if dirt := n.dirt(gpus); result.Code != 0 || dirt != "" || strings.Contains(result.Output, "left alone") {
		return fmt.Errorf("then %s: status %d, %s\n%s", by, result.Code, dirt, result.Output)
	}
	// A job of which everything was put back by hand can run on.
	if marked, err := n.Marked(); by == "epilog" && (err != nil || len(marked) > 0) {
		return fmt.Errorf("then %s: it counts as running: %v, %w", by, marked, err)
	}
	return nil
}

// wantsTold is that a job's report says of every option what became of it, and
// that the notice names what did not work. It returns Applied if anything was,
// else Refused if the report says why not.
func (n *Node) wantsTold(j Job) (became job.State, err error) {
	report, notice, err := n.Reported(j.ID)
	if err != nil {
		return "", err
	}
	became = job.Refused
	names := slices.Sorted(maps.Keys(j.Options))
	for _, o := range report.Options {
		names = slices.DeleteFunc(names, func(name string) bool { return name == o.Name })
		switch o.State {
		case job.Applied:
			became = job.Applied
			if report.Fault != "" {
				return "", fmt.Errorf("%s applied in spite of %q", o.Name, report.Fault)
			}
		case job.Refused:
			if !strings.Contains(notice, "--"+o.Name) || o.Reason == "" || !strings.Contains(notice, strings.TrimPrefix(o.Reason, "--"+o.Name+": ")) {
				return "", fmt.Errorf("%s refused because of %q, and the notice is %q", o.Name, o.Reason, notice)
			}
		case job.Dropped:
			if report.Fault == "" && !strings.HasPrefix(notice, "fail\n") {
				return "", fmt.Errorf("%s dropped without a reason, and the notice is %q", o.Name, notice)
			}
		default:
			return "", fmt.Errorf("%s has state %q", o.Name, o.State)
		}
	}
	if len(names) > 0 {
		return "", fmt.Errorf("the report has nothing on %v", names)
	}
	if report.Fault != "" && !strings.Contains(notice, strings.ReplaceAll(report.Fault, "\n", " ")) {
		return "", fmt.Errorf("fault %q, and the notice is %q", report.Fault, notice)
	}
	return became, nil
}
