package mps

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gputune/tests/fakemps"
)

// childVariable makes the test program start a daemon and end.
const childVariable = "MPS_TEST_START"

// programsVariable names a folder with the programs, for a machine without Go.
const programsVariable = "MPS_TEST_PROGRAMS"

var built fakemps.Programs

func TestMain(m *testing.M) {
	if text := os.Getenv(childVariable); text != "" {
		os.Exit(starter(text))
	}
	if os.Getenv(realProgram) != "" {
		os.Exit(m.Run()) // for TestRealDaemon alone, on a machine without Go
	}
	os.Exit(func() int {
		if folder := os.Getenv(programsVariable); folder != "" {
			built = fakemps.Programs{Folder: folder}
			return m.Run()
		}
		folder, err := os.MkdirTemp("", "fakemps")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(folder) }()
		if built, err = fakemps.Build(context.Background(), folder); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// starter is the program that a Prolog is: "ROOT SPEC".
func starter(text string) int {
	root, value, _ := strings.Cut(text, " ")
	s, err := ParseSpec(value)
	if err == nil {
		err = Host{Root: root}.Start(context.Background(), s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("started")
	return 0
}

// bed is a made-up node: a root folder with the fake program.
type bed struct {
	t        *testing.T
	host     Host
	programs fakemps.Programs
	log      *strings.Builder
}

// modes are the ways in which a daemon is kept.
var modes = map[string]func(*bed){
	"session": func(*bed) {},
	"systemd": func(b *bed) {
		b.t.Helper()
		if !(Host{}).systemdRuns() {
			b.t.Skip("systemd has not booted this machine")
		}
		b.must(os.MkdirAll(b.host.path("/run/systemd/system"), 0o755))
		b.must(os.Symlink("/usr/bin/setpriv", b.host.path("/usr/bin/setpriv")))
		b.must(os.MkdirAll(b.host.path("/sys/fs"), 0o755))
		b.must(os.Symlink("/sys/fs/cgroup", b.host.path("/sys/fs/cgroup")))
	},
	"cgroup": func(b *bed) {
		b.t.Helper()
		if (Host{}).cgroupMount() == "" {
			b.t.Skip("no cgroup v2 here")
		}
		b.must(os.MkdirAll(b.host.path("/sys/fs"), 0o755))
		b.must(os.Symlink("/sys/fs/cgroup", b.host.path("/sys/fs/cgroup")))
		probe := filepath.Join(b.host.cgroupMount(), "gputune-mps-probe")
		if err := os.Mkdir(probe, 0o755); err != nil {
			b.t.Skip("no cgroup can be made here: ", err)
		}
		b.must(os.Remove(probe))
	},
}

// users of the tests have no name and no process.
const (
	alice = 64001
	bob   = 64002
)

const gpuA, gpuB = "GPU-4b0480b4-aaaa", "GPU-585ef628-bbbb"

func newBed(t *testing.T) *bed {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	// Not the test's own folder: users have to get into it, and the names of
	// sockets have 107 bytes at most.
	root, err := os.MkdirTemp("/tmp", "mps")
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, log: &strings.Builder{}}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	b.must(os.Chmod(root, 0o755))
	b.must(os.MkdirAll(filepath.Join(root, "usr/bin"), 0o755))
	b.programs = fakemps.Programs{Folder: filepath.Join(root, "usr/bin")}
	text, err := os.ReadFile(built.Control())
	b.must(err)
	// A child that is forked meanwhile would hold the file open for writing, and
	// nobody could run it.
	syscall.ForkLock.RLock()
	err = os.WriteFile(b.programs.Control(), text, 0o755)
	syscall.ForkLock.RUnlock()
	b.must(err)
	for _, name := range []string{fakemps.ServerName, fakemps.ClientName} {
		b.must(os.Symlink(fakemps.ControlName, filepath.Join(b.programs.Folder, name)))
	}
	b.host = Host{Root: root, Log: logTo(b.log), Limits: Limits{
		Answer: time.Second, Ready: 20 * time.Second, Quit: 2 * time.Second, Term: 300 * time.Millisecond, Kill: 3 * time.Second,
	}}
	return b
}

func (b *bed) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// start starts a daemon that the end of the test stops.
func (b *bed) start(s Spec) {
	b.t.Helper()
	b.stopAtEnd(s)
	b.must(b.host.Start(context.Background(), s))
}

func (b *bed) stopAtEnd(s Spec) {
	b.t.Cleanup(func() {
		b.must(b.programs.Faults())
		b.must(b.host.Stop(context.Background(), s.GPUs[0]))
		b.gone(s)
	})
}

// look returns what there is of the daemon of gpuA.
func (b *bed) look() *Status {
	b.t.Helper()
	status, err := b.host.Look(context.Background(), gpuA)
	b.must(err)
	return status
}

// client runs the program in place of a CUDA program with what a step gets.
func (b *bed) client(uid int, s Spec, extra ...string) *exec.Cmd {
	c := exec.Command(b.programs.Client())
	for _, v := range b.host.Variables(s) {
		c.Env = append(c.Env, v[0]+"="+v[1])
	}
	c.Env = append(c.Env, extra...)
	c.SysProcAttr = asUser(Spec{UID: uint32(uid), GID: uint32(uid)})
	return c
}

// ask runs a client and returns what it says.
func (b *bed) ask(uid int, s Spec, extra ...string) string {
	out, _ := b.client(uid, s, extra...).CombinedOutput() // it says it all
	return strings.TrimSpace(string(out))
}

// gone makes sure that nothing is left of a daemon.
func (b *bed) gone(s Spec) {
	b.t.Helper()
	names, err := os.ReadDir(b.host.base())
	if err != nil && !os.IsNotExist(err) {
		b.t.Fatal(err)
	}
	for _, name := range names {
		if name.Name() == s.Job || name.Name() == recordName(s.GPUs[0]) {
			b.t.Errorf("%s is left", name.Name())
		}
	}
	if value, err := b.host.Value(s.GPUs[0]); value != "" || err != nil {
		b.t.Errorf("value %q, %v", value, err)
	}
	if left := processesOf(b, int(s.UID)); len(left) > 0 {
		b.t.Errorf("left: %v", left)
	}
	if mount := b.host.cgroupMount(); mount != "" {
		if left, err := filepath.Glob(filepath.Join(mount, cgroupParent, "job-"+s.Job+"-*")); err != nil || len(left) > 0 {
			b.t.Errorf("the cgroup is left: %v", err)
		}
	}
	if b.host.systemdRuns() && b.host.Systemd == nil {
		manager, err := b.host.systemd(context.Background())
		b.must(err)
		defer manager.Close()
		state, err := manager.GetUnitPropertyContext(context.Background(), UnitName(s.Job), "LoadState")
		b.must(err)
		if state.Value.Value() != "not-found" {
			b.t.Errorf("the unit is %v", state.Value)
		}
	}
}

// processesOf returns the processes of a user that belong to this bed.
func processesOf(b *bed, uid int) []Process {
	b.t.Helper()
	entries, err := os.ReadDir("/proc")
	b.must(err)
	var list []Process
	for _, entry := range entries {
		pid, err := number(entry.Name())
		if err != nil {
			continue
		}
		p, err := b.host.process(int(pid))
		if err != nil || int(p.UID) != uid || p.ended() {
			continue
		}
		if environment, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ")); err == nil && strings.Contains(string(environment), b.host.Root) {
			list = append(list, p)
		}
	}
	return list
}
