package setting_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gputune/internal/ledger"
	"gputune/internal/setting"
	"gputune/tests/fakemps"
)

const (
	firstGPU  = "GPU-4b0480b4-aaaa"
	secondGPU = "GPU-585ef628-bbbb"
	mpsUser   = 64011
)

// fakeControl is the fake nvidia-cuda-mps-control, which takes a while to build.
var fakeControl = sync.OnceValues(func() ([]byte, error) {
	folder, err := os.MkdirTemp("", "fakemps")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	programs, err := fakemps.Build(context.Background(), folder)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(programs.Control())
})

// mpsNode is a root folder with the fake program, and a ledger in it.
type mpsNode struct {
	t        *testing.T
	root     string
	programs fakemps.Programs
	env      *setting.Environment
	ledger   *ledger.Ledger
}

func newMPSNode(t *testing.T) *mpsNode {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	text, err := fakeControl()
	if err != nil {
		t.Fatal(err)
	}
	// Not the test's own folder: the user has to get into it, and names of
	// sockets are short.
	n := &mpsNode{t: t}
	if n.root, err = os.MkdirTemp("/tmp", "mps"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(n.root) })
	n.programs = fakemps.Programs{Folder: filepath.Join(n.root, "usr/bin")}
	// No child that is forked meanwhile may hold the program open for writing.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	n.must(errors.Join(
		os.Chmod(n.root, 0o755), os.MkdirAll(n.programs.Folder, 0o755), os.MkdirAll(filepath.Join(n.root, "var/lib"), 0o755),
		os.WriteFile(n.programs.Control(), text, 0o755), os.Symlink(fakemps.ControlName, n.programs.Client()),
	))
	n.open()
	return n
}

// open opens the node's settings and ledger, and puts all back at the test's end.
func (n *mpsNode) open() {
	n.t.Helper()
	n.env = setting.NewEnvironment(n.root, nil)
	var err error
	n.ledger, err = ledger.Open(ledger.Dir, ledger.Options{
		Root: n.root, BootID: "boot",
		Resolve: func(key string) (setting.Setting, error) { return setting.Parse(n.env, key) },
	})
	n.must(err)
	n.t.Cleanup(func() {
		n.must(n.programs.Faults())
		_, err := n.ledger.ReleaseAll(context.Background(), func(string) bool { return false })
		n.must(err)
		n.clean()
	})
}

func (n *mpsNode) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *mpsNode) setting(gpu string) setting.Setting {
	n.t.Helper()
	s, err := setting.Parse(n.env, setting.GPUKey(gpu, setting.MPSName))
	n.must(err)
	return s
}

func mpsValue(job string, gpus ...string) string {
	return fmt.Sprintf("job=%s,uid=%d,gid=%[2]d,gpus=%s", job, mpsUser, strings.Join(gpus, "+"))
}

func (n *mpsNode) apply(job string, gpus ...string) (ledger.Report, error) {
	return n.ledger.Apply(context.Background(), job, []ledger.Change{
		{Setting: n.setting(gpus[0]), Value: mpsValue(job, gpus...), Before: setting.MPSOff},
	})
}

// clean makes sure that no file and no process is left.
func (n *mpsNode) clean() {
	n.t.Helper()
	if left, _ := filepath.Glob(filepath.Join(n.root, "run/gputune/mps/*")); len(left) > 0 {
		n.t.Errorf("left: %v", left)
	}
	if left := n.processes(); len(left) > 0 {
		n.t.Errorf("left: processes %v", left)
	}
	if jobs, _ := filepath.Glob(filepath.Join(n.root, ledger.Dir, "jobs/*")); len(jobs) > 0 {
		n.t.Errorf("left: %v", jobs)
	}
}

// processes returns the pids of what runs for the node.
func (n *mpsNode) processes() (list []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if pid, e := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil && e == nil && strings.Contains(string(text), n.root) {
			list = append(list, pid)
		}
	}
	return list
}

func TestMPSThroughTheLedger(t *testing.T) {
	t.Parallel()
	n := newMPSNode(t)
	ctx := context.Background()
	s := n.setting(firstGPU)
	if is, err := s.Read(ctx); is != setting.MPSOff || err != nil {
		t.Fatalf("%q, %v", is, err)
	}
	want := mpsValue("11", firstGPU, secondGPU)
	for _, action := range []ledger.Action{ledger.Set, ledger.Already} {
		report, err := n.apply("11", firstGPU, secondGPU)
		if err != nil || report.Outcomes[0].Action != action || report.Outcomes[0].Set != want || report.Outcomes[0].Prior != setting.MPSOff {
			t.Fatalf("%+v, %v", report, err)
		}
	}
	if is, err := s.Read(ctx); is != want || err != nil || len(n.processes()) != 1 {
		t.Errorf("%q, %v, processes %v", is, err, n.processes())
	}
	// Another job's is on its own GPU, at the same time.
	if _, err := n.apply("12", "GPU-other"); err != nil {
		t.Fatal(err)
	}
	if is, _ := n.setting("GPU-other").Read(ctx); is != mpsValue("12", "GPU-other") {
		t.Error(is)
	}
	report, err := n.ledger.Release(ctx, "11")
	if err != nil || report.Outcomes[0].Action != ledger.Restored {
		t.Errorf("%+v, %v", report, err)
	}
	if is, err := s.Read(ctx); is != setting.MPSOff || err != nil || len(n.processes()) != 1 {
		t.Errorf("%q, %v, processes %v", is, err, n.processes())
	}
}

// TestMPSKilled: a daemon that its user kills is the job's until its end, and
// nothing is left then.
func TestMPSKilled(t *testing.T) {
	t.Parallel()
	n := newMPSNode(t)
	if _, err := n.apply("21", firstGPU); err != nil {
		t.Fatal(err)
	}
	for _, pid := range n.processes() {
		n.must(syscall.Kill(pid, syscall.SIGKILL))
	}
	for end := time.Now().Add(5 * time.Second); len(n.processes()) > 0 && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	report, err := n.ledger.Release(context.Background(), "21")
	if err != nil || report.Outcomes[0].Action != ledger.Restored {
		t.Errorf("%+v, %v", report, err)
	}
	n.clean()
}

// TestMPSDoesNotStart: the reason is the error, and all is as before.
func TestMPSDoesNotStart(t *testing.T) {
	t.Parallel()
	n := newMPSNode(t)
	n.must(n.programs.Faults("start fail"))
	_, err := n.apply("31", firstGPU)
	failed := (*ledger.ApplyError)(nil)
	const want = "MPS daemon of job 31: it ended before it answered: exit status 1: Failed to start: the fault was asked for"
	if !errors.As(err, &failed) || !failed.Clean() || failed.Err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	n.clean()
}

func TestMPSCheck(t *testing.T) {
	t.Parallel()
	n := newMPSNode(t)
	ctx := context.Background()
	s := n.setting(firstGPU)
	traits := s.Traits()
	if traits.Needs != setting.WholeGPU || traits.Lifetime != setting.UntilReboot || !traits.Loose || traits.WriteOnly {
		t.Errorf("%+v", traits)
	}
	for _, value := range []string{setting.MPSOff, mpsValue("7", firstGPU), mpsValue("7", firstGPU, secondGPU) + ",percent=50,mem=1024M"} {
		if got, err := s.Check(ctx, value); got != value || err != nil {
			t.Errorf("%s: %q, %v", value, got, err)
		}
	}
	for _, value := range []string{"", "on", "unfinished", mpsValue("7", secondGPU, firstGPU), mpsValue("x", firstGPU), mpsValue("7", firstGPU) + ",x=1"} {
		if got, err := s.Check(ctx, value); err == nil {
			t.Errorf("%q is accepted as %q", value, got)
		}
		if err := s.Write(ctx, value); err == nil {
			t.Errorf("%q is written", value)
		}
	}
	if _, err := s.Check(ctx, mpsValue("7", firstGPU)+",program=/usr/bin/none"); !errors.Is(err, setting.ErrUnsupported) {
		t.Errorf("a program that is not there: %v", err)
	}
	n.must(os.Remove(n.programs.Control()))
	for _, err := range []error{
		func() error { _, err := s.Check(ctx, mpsValue("7", firstGPU)); return err }(), s.Write(ctx, mpsValue("7", firstGPU)),
	} {
		if !errors.Is(err, setting.ErrUnsupported) || !strings.Contains(err.Error(), "install the driver's package with MPS") {
			t.Errorf("without the program: %v", err)
		}
	}
	n.clean()
}
