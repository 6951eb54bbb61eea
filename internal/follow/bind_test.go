package follow

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gputune/internal/idset"
	"gputune/internal/verify"
)

// node is a machine made of files, on which threads have affinities.
type node struct {
	verify.Host
	affinity map[int]idset.Set
	set      []string // what was set, "ID CPUS"
	moved    []string // "PID FROM TO"
	onSet    func(id int)
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{affinity: map[int]idset.Set{}}
	n.Host = verify.Host{
		Root: t.TempDir(),
		Affinity: func(id int) (idset.Set, error) {
			cpus, there := n.affinity[id]
			if !there {
				return idset.Set{}, unix.ESRCH
			}
			return cpus, nil
		},
		SetAffinity: func(id int, cpus idset.Set) error {
			n.set = append(n.set, fmt.Sprintf("%d %s", id, cpus))
			n.affinity[id] = cpus
			if n.onSet != nil {
				n.onSet(id)
			}
			return nil
		},
		Migrate: func(pid int, from, to idset.Set) (int, error) {
			n.moved = append(n.moved, fmt.Sprintf("%d %s %s", pid, from, to))
			return 3, nil
		},
	}
	return n
}

const stepCgroup = "/system.slice/slurmstepd.scope/job_1/step_0"

// add adds a process of the step with its threads; the first has its pid.
func (n *node) add(t *testing.T, pid, parent int, threads ...int) {
	t.Helper()
	process(t, n.Root, pid, parent, "0::"+stepCgroup+"/user/task_0\n")
	dir := filepath.Join(n.Root, "proc", fmt.Sprint(pid))
	if err := os.WriteFile(filepath.Join(dir, "status"), []byte("Name:\ta\nMems_allowed_list:\t0-1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, id := range append([]int{pid}, threads...) {
		n.thread(t, pid, id)
	}
}

// thread adds a thread that may run on all CPUs.
func (n *node) thread(t *testing.T, pid, id int) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(n.Root, "proc", fmt.Sprint(pid), "task", fmt.Sprint(id)), 0o755); err != nil {
		t.Fatal(err)
	}
	n.affinity[id] = idset.Range(0, 7)
}

// took returns what was set since it was last asked.
func (n *node) took() string {
	set := strings.Join(n.set, ", ")
	n.set = nil
	return set
}

func theStep() []Step {
	return []Step{{
		Job: "1", Step: "0", PID: 9, Began: "1009", Cgroups: []string{stepCgroup}, MovePages: true,
		Shares: []Share{share(gpuA, "0-3", "0"), share(gpuB, "4-7", "1")},
	}}
}

// Each worker goes to its GPU with its threads and children, and there alone what
// uses no other GPU; it goes on to another GPU, and to the union of two.
func TestBind(t *testing.T) {
	n := newNode(t)
	n.add(t, 10, 9)                        // the launcher
	n.add(t, 11, 10, 111, 112)             // a worker
	n.add(t, 12, 11)                       // its child
	n.add(t, 13, 11, 113)                  // its child, on a GPU of its own
	n.add(t, 14, 13)                       // and that one's
	n.affinity[112] = idset.MustParse("2") // where its program wants it
	b := Binder{Host: n.Host}
	bind := func(lists ...List) []Bound {
		t.Helper()
		done, left, err := b.Bind(theStep(), lists)
		if err != nil || len(left) > 0 {
			t.Fatalf("%v, %v", left, err)
		}
		for _, one := range done {
			if one.Err != nil {
				t.Fatal(one.Err)
			}
		}
		return done
	}
	done := bind(List{PCI: gpuA, PIDs: []int{11}}, List{PCI: gpuB, PIDs: []int{13}})
	if got, want := n.took(), "11 0-3, 111 0-3, 12 0-3, 13 4-7, 113 4-7, 14 4-7"; got != want {
		t.Errorf("set %s, want %s", got, want)
	}
	if len(done) != 2 || done[0].Processes != 2 || done[0].Threads != 4 || done[0].GPUs[0] != gpuA || len(done[0].Moves) != 2 || done[1].Processes != 2 {
		t.Errorf("%+v", done)
	}
	for _, one := range done {
		for _, move := range one.Moves {
			if left, err := b.Move(move); left != 3 || err != nil {
				t.Errorf("%d, %v", left, err)
			}
		}
	}
	if got, want := strings.Join(n.moved, ", "), "11 1 0, 12 1 0, 13 0 1, 14 0 1"; got != want {
		t.Errorf("moved %s, want %s", got, want)
	}
	if done := bind(List{PCI: gpuA, PIDs: []int{11}}, List{PCI: gpuB, PIDs: []int{13}}); len(done) > 0 || n.took() != "" {
		t.Errorf("once more: %+v", done)
	}
	// It leaves the GPUs: where it is, it stays.
	if done := bind(List{PCI: gpuA}, List{PCI: gpuB}); len(done) > 0 || n.took() != "" {
		t.Errorf("without a GPU: %+v", done)
	}
	// A second GPU: what was narrowed to the first is widened, what its program
	// chose is not.
	bind(List{PCI: gpuA, PIDs: []int{11}}, List{PCI: gpuB, PIDs: []int{13, 11}})
	if got, want := n.took(), "11 0-7, 111 0-7, 12 0-7"; got != want {
		t.Errorf("set %s, want %s", got, want)
	}
	// Then the second alone.
	done = bind(List{PCI: gpuA}, List{PCI: gpuB, PIDs: []int{13, 11}})
	if got, want := n.took(), "11 4-7, 111 4-7, 112 4-7, 12 4-7"; got != want || len(done) != 1 || done[0].GPUs[0] != gpuB {
		t.Errorf("set %s, want %s: %+v", got, want, done)
	}
	// Another process with its pid is another worker.
	process(t, n.Root, 11, 10, "0::"+stepCgroup+"\n")
	stat := filepath.Join(n.Root, "proc/11/stat")
	text, err := os.ReadFile(stat)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(stat, []byte(strings.Replace(string(text), " 1011 ", " 2222 ", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if done := bind(List{PCI: gpuB, PIDs: []int{13, 11}}); len(done) != 1 || done[0].PID != 11 {
		t.Errorf("%+v", done)
	}
}

// A thread that one makes that is not bound yet is bound, too.
func TestBindThreadsThatCome(t *testing.T) {
	n := newNode(t)
	n.add(t, 11, 9)
	next := 200
	n.onSet = func(int) {
		if next < 203 {
			n.thread(t, 11, next)
			next++
		}
	}
	b := Binder{Host: n.Host}
	done, _, err := b.Bind(theStep(), []List{{PCI: gpuA, PIDs: []int{11}}})
	if err != nil || len(done) != 1 || done[0].Threads != 4 {
		t.Errorf("%+v, %v", done, err)
	}
	for id, cpus := range n.affinity {
		if cpus.String() != "0-3" {
			t.Errorf("thread %d: %s", id, cpus)
		}
	}
}

// What fails is said of the worker that it is about, and others are bound.
func TestBindFails(t *testing.T) {
	n := newNode(t)
	n.add(t, 11, 9)
	n.add(t, 12, 9)
	broken := errors.New("broken")
	set := n.SetAffinity
	n.SetAffinity = func(id int, cpus idset.Set) error {
		if id == 11 {
			return broken
		}
		return set(id, cpus)
	}
	b := Binder{Host: n.Host}
	done, _, err := b.Bind(theStep(), []List{{PCI: gpuA, PIDs: []int{11, 12}}})
	if err != nil || len(done) != 2 || !errors.Is(done[0].Err, broken) || done[1].Err != nil || n.took() != "12 0-3" {
		t.Errorf("%+v, %v", done, err)
	}
}

// What is left alone is said once, and again when it was gone in between.
func TestLeftAloneIsSaidOnce(t *testing.T) {
	n := newNode(t)
	process(t, n.Root, 50, 1, "0::/user.slice\n")
	b := Binder{Host: n.Host}
	for i, want := range []int{2, 0, 0, 1} {
		lists := []List{{PCI: gpuA, PIDs: []int{50, 51}}}
		if i == 2 {
			lists[0].PIDs = []int{50}
		}
		done, left, err := b.Bind(theStep(), lists)
		if err != nil || len(done) > 0 || len(left) != want {
			t.Errorf("%d: %+v, %+v, %v", i, done, left, err)
		}
		for _, l := range left {
			if !strings.HasPrefix(l.String(), "gpu "+gpuA+": process 5") {
				t.Errorf("%s", l)
			}
		}
	}
	if len(n.set) > 0 {
		t.Errorf("set %v", n.set)
	}
}

// Memory stays where it is that may not be elsewhere.
func TestMove(t *testing.T) {
	n := newNode(t)
	n.add(t, 11, 9)
	p, _ := n.Find(11)
	b := Binder{Host: n.Host}
	for to, want := range map[string]string{"0-1": "", "0-3": "", "2": "none of the nodes 2 is in its cpuset, which has 0-1"} {
		left, err := b.Move(Move{p, idset.MustParse(to)})
		if left != 0 || (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %d, %v", to, left, err)
		}
	}
	if len(n.moved) > 0 {
		t.Errorf("moved %v", n.moved)
	}
}
