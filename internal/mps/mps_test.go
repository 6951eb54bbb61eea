package mps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gputune/internal/folder"
)

func logTo(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// jobs counts up, from where no real node is: units and cgroups are the machine's.
var jobs atomic.Int64

func specOf(uid int, gpus ...string) Spec {
	return Spec{Job: strconv.FormatInt(4_290_000_000+jobs.Add(1), 10), UID: uint32(uid), GID: uint32(uid), GPUs: gpus}
}

// inModes runs a test for each way to keep a daemon.
func inModes(t *testing.T, test func(*testing.T, *bed)) {
	t.Helper()
	for name, prepare := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			prepare(b)
			test(t, b)
		})
	}
}

func TestStartStop(t *testing.T) {
	inModes(t, func(t *testing.T, b *bed) {
		s := specOf(alice, gpuA, gpuB)
		b.start(s)
		if value, err := b.host.Value(gpuA); err != nil || value != s.String() {
			t.Fatalf("value %q, %v", value, err)
		}
		status := b.look()
		if status.Silent != nil || len(status.Processes) != 1 || status.Spec.String() != s.String() {
			t.Fatalf("%+v", status)
		}
		b.sound(status.Processes[0], s)
		if got, want := b.ask(alice, s), ` percent 100.0 mem all uid 64001 gpus `+gpuA+","+gpuB; !strings.HasSuffix(got, want) {
			t.Errorf("client: %q, want …%q", got, want)
		}
		if got := b.ask(alice, s, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"); !strings.Contains(got, " percent 50.0 ") {
			t.Errorf("client with a percentage: %q", got)
		}
		if got := b.ask(bob, s); got != "MPS client failed to connect to the MPS control daemon or the MPS server" {
			t.Errorf("another user's client: %q", got)
		}
		b.closed(s, bob)
		if n := len(b.look().Processes); n != 2 { // and a server
			t.Errorf("%d processes", n)
		}
		// Once more is not another one.
		b.must(b.host.Start(context.Background(), s))
		if again := b.look().Processes; !has(again, status.Processes[0]) {
			t.Errorf("now %v, before %v", again, status.Processes)
		}
		// Other limits are another daemon.
		limited := s
		limited.Percent, limited.Memory = 30, 1536
		b.must(b.host.Start(context.Background(), limited))
		if got := b.ask(alice, limited, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"); !strings.Contains(got, " percent 30.0 mem 1536M ") {
			t.Errorf("client under limits: %q", got)
		}
		if now := b.look().Processes; has(now, status.Processes[0]) {
			t.Errorf("%v is still there", status.Processes[0])
		}
		for range 2 {
			b.must(b.host.Stop(context.Background(), gpuA))
			b.gone(s)
		}
		if status := b.look(); status != nil {
			t.Errorf("%+v", status)
		}
		if b.log.Len() > 0 {
			t.Errorf("log: %s", b.log)
		}
	})
}

// has tells whether a process is among some, in whatever state.
func has(list []Process, p Process) bool {
	return slices.ContainsFunc(list, func(o Process) bool { return o.PID == p.PID && o.Start == p.Start })
}

// sound makes sure that a daemon is the user's and holds nothing of its starter.
func (b *bed) sound(p Process, s Spec) {
	b.t.Helper()
	dir := fmt.Sprintf("/proc/%d/", p.PID)
	status, err := os.ReadFile(dir + "status")
	b.must(err)
	for _, want := range []string{
		fmt.Sprintf("Uid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", s.UID), fmt.Sprintf("Gid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", s.GID),
		"CapEff:\t0000000000000000\n", "CapPrm:\t0000000000000000\n",
	} {
		if !strings.Contains(string(status), want) {
			b.t.Errorf("no %q in %s", want, status)
		}
	}
	if !regexp.MustCompile(`(?m)^Groups:\s*$`).Match(status) {
		b.t.Errorf("it has groups: %s", status)
	}
	session, err := unix.Getsid(p.PID)
	group, err2 := unix.Getpgid(p.PID)
	if own, _ := unix.Getsid(0); err != nil || err2 != nil || session == own || group == unix.Getpgrp() {
		b.t.Errorf("session %d, group %d, %v, %v", session, group, err, err2)
	}
	links := map[string]string{}
	files, err := os.ReadDir(dir + "fd")
	b.must(err)
	for _, f := range files {
		links[f.Name()], _ = os.Readlink(dir + "fd/" + f.Name())
		if target := links[f.Name()]; strings.HasPrefix(target, "pipe:") {
			b.t.Errorf("it holds %s", target)
		}
	}
	output := filepath.Join(b.host.base(), s.Job, logName, outputName)
	if links["0"] != "/dev/null" || links["1"] != output || links["2"] != output {
		b.t.Errorf("descriptors %v", links)
	}
	if cwd, err := os.Readlink(dir + "cwd"); err != nil || cwd != "/" {
		b.t.Errorf("in %s, %v", cwd, err)
	}
	if mount := b.host.cgroupMount(); mount != "" {
		groups, err := os.ReadFile(dir + "cgroup")
		b.must(err)
		own, err := os.ReadFile("/proc/self/cgroup")
		b.must(err)
		if bytes.Equal(groups, own) || !bytes.Contains(groups, []byte(s.Job)) {
			b.t.Errorf("cgroups %s", groups)
		}
	}
}

// closed makes sure that a user can open nothing of a daemon.
func (b *bed) closed(s Spec, uid int) {
	b.t.Helper()
	job := filepath.Join(b.host.base(), s.Job)
	for _, name := range []string{"", pipeName, logName} {
		info, err := os.Stat(filepath.Join(job, name))
		b.must(err)
		if info.Mode().Perm() != 0o700 || owner(info) != s.UID {
			b.t.Errorf("%s: %v, owner %d", name, info.Mode(), owner(info))
		}
	}
	for _, path := range []string{job, job + "/pipe", job + "/pipe/control", job + "/log/control.log", b.host.base(), b.host.base() + "/" + recordName(s.GPUs[0])} {
		c := exec.Command("/bin/sh", "-c", `ls "$0/" || cat "$0" || echo x >>"$0" || touch "$0/x" || rm -r "$0"`, path)
		c.SysProcAttr = asUser(Spec{UID: uint32(uid), GID: uint32(uid)})
		if out, err := c.CombinedOutput(); err == nil || strings.Count(string(out), "denied") < 3 {
			b.t.Errorf("user %d can do something with %s: %v: %s", uid, path, err, out)
		}
	}
}

func TestTwoUsers(t *testing.T) {
	inModes(t, func(t *testing.T, b *bed) {
		one, two := specOf(alice, gpuA), specOf(bob, gpuB)
		begun := make(chan error, 2)
		for _, s := range []Spec{one, two} {
			b.stopAtEnd(s)
			go func() { begun <- b.host.Start(context.Background(), s) }()
		}
		b.must(errors.Join(<-begun, <-begun))
		first, second := b.ask(alice, one), b.ask(bob, two)
		if !strings.Contains(first, "uid 64001 gpus "+gpuA) || !strings.Contains(second, "uid 64002 gpus "+gpuB) {
			t.Errorf("%q, %q", first, second)
		}
		b.closed(one, bob)
		b.closed(two, alice)
		b.must(b.host.Stop(context.Background(), gpuA))
		b.gone(one)
		if got := b.ask(bob, two); got != second {
			t.Errorf("after the other's end: %q", got)
		}
	})
}

// TestFaults: a start that fails says why in one line and leaves nothing.
func TestFaults(t *testing.T) {
	for name, test := range map[string]struct {
		fault string
		spec  Spec
		want  string
	}{
		"fail":   {fault: "start fail", want: `it ended before it answered: exit status 1: Failed to start: the fault was asked for`},
		"exit":   {fault: "start exit", want: `it ended before it answered: exit status 1: Failed to do what the fault asked for`},
		"hang":   {fault: "start hang", want: `no answer within 1s`},
		"mute":   {fault: "answer hang", want: `no answer within 1s`},
		"slow":   {fault: "start late 20s", want: `no answer within 1s`},
		"limits": {fault: "limit ignore", spec: Spec{Percent: 30}, want: `set_default_active_thread_percentage 30: it is "100.0" after it: 100.0`},
		"memory": {fault: "limit ignore", spec: Spec{Memory: 512}, want: `set_default_device_pinned_mem_limit 0 512M: it is "" after it`},
	} {
		t.Run(name, func(t *testing.T) {
			inModes(t, func(t *testing.T, b *bed) {
				b.host.Limits.Ready, b.host.Limits.Answer = time.Second, 500*time.Millisecond
				if name == "fail" || name == "exit" {
					b.host.Limits.Ready = 10 * time.Second // so that the loaded machine has time to end it
				}
				b.must(b.programs.Faults(test.fault))
				s := specOf(alice, gpuA)
				s.Percent, s.Memory = test.spec.Percent, test.spec.Memory
				begin := time.Now()
				err := b.host.Start(context.Background(), s)
				if err == nil || err.Error() != "MPS daemon of job "+s.Job+": "+test.want {
					t.Errorf("got  %v\nwant %s", err, test.want)
				}
				if took := time.Since(begin); took > 15*time.Second {
					t.Errorf("it took %v", took)
				}
				b.gone(s)
				b.must(b.programs.Faults())
				b.start(s)
			})
		})
	}
}

func TestLate(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.must(b.programs.Faults("start late 600ms", "answer late 50ms"))
	b.start(specOf(alice, gpuA))
}

// TestDeadline: the context's end ends a start, and its undoing is not ended.
func TestDeadline(t *testing.T) {
	inModes(t, func(t *testing.T, b *bed) {
		b.must(b.programs.Faults("start hang"))
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		s := specOf(alice, gpuA)
		if err := b.host.Start(ctx, s); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		b.gone(s)
	})
}

// TestKilled: a daemon that was killed, or ended by itself, is still there as
// far as anybody can tell, and stopping removes what is left.
func TestKilled(t *testing.T) {
	inModes(t, func(t *testing.T, b *bed) {
		s := specOf(alice, gpuA)
		b.start(s)
		if got := b.ask(alice, s); !strings.HasPrefix(got, "server ") {
			t.Fatal(got)
		}
		for _, p := range b.look().Processes {
			if !strings.Contains(p.Name, "server") {
				b.must(b.host.signal(p, unix.SIGKILL))
			}
		}
		for deadline := time.Now().Add(5 * time.Second); len(b.look().Processes) > 0 && time.Now().Before(deadline); {
			time.Sleep(pause)
		}
		if status := b.look(); status == nil || status.Silent == nil || len(status.Processes) > 0 {
			t.Errorf("%+v", status)
		}
		if value, err := b.host.Value(gpuA); err != nil || value != s.String() {
			t.Errorf("value %q, %v", value, err)
		}
		if got := b.ask(alice, s); got != "without MPS" {
			t.Errorf("client: %q", got)
		}
		// A start is a new one.
		b.must(b.host.Start(context.Background(), s))
		if got := b.ask(alice, s); !strings.HasPrefix(got, "server ") {
			t.Error(got)
		}
	})
}

// TestStubborn: what does not end when it is asked to is ended, and no other
// process of the user's.
func TestStubborn(t *testing.T) {
	for name, test := range map[string]struct {
		faults []string
		log    []string
	}{
		"refuses":  {[]string{"quit refuse"}, []string{"does not quit: ended by signals", "2s after quit"}},
		"mute":     {[]string{"answer hang"}, []string{"does not quit: ended by signals", "get_server_list: no answer within 1s"}},
		"stubborn": {[]string{"quit refuse", "term ignore"}, []string{"does not quit", "do not end: killed"}},
		"child":    {[]string{"child leave"}, []string{"does not quit", "do not end: killed"}},
	} {
		t.Run(name, func(t *testing.T) {
			inModes(t, func(t *testing.T, b *bed) {
				// The user's own, with the same name and variables, but the token.
				s := specOf(alice, gpuA)
				bystander := exec.Command("/bin/sleep", "100")
				bystander.Args[0] = "nvidia-cuda-mps-control"
				bystander.Env = []string{pipeVariable + "=/x", tokenVariable + "=guess"}
				bystander.SysProcAttr = asUser(s)
				b.must(bystander.Start())
				defer func() { _ = bystander.Process.Kill(); _ = bystander.Wait() }()

				if name == "stubborn" || name == "child" {
					b.must(b.programs.Faults(test.faults...)) // read at its start
				}
				b.start(s)
				b.must(b.programs.Faults(test.faults...))
				begin := time.Now()
				b.must(b.host.Stop(context.Background(), gpuA))
				if took := time.Since(begin); took > 20*time.Second {
					t.Errorf("it took %v", took)
				}
				b.gone(s)
				if b.host.systemdRuns() {
					test.log = nil // it has its own way, and its own log
				}
				for _, want := range test.log {
					if !strings.Contains(b.log.String(), want) {
						t.Errorf("no %q in the log: %s", want, b.log)
					}
				}
				if err := bystander.Process.Signal(syscall.Signal(0)); err != nil {
					t.Errorf("the bystander: %v", err)
				}
			})
		})
	}
}

// TestClients: who holds up the end is named.
func TestClients(t *testing.T) {
	inModes(t, func(t *testing.T, b *bed) {
		s := specOf(alice, gpuA)
		b.start(s)
		c := b.client(alice, s)
		c.Args = append(c.Args, "1h")
		out, err := c.StdoutPipe()
		b.must(err)
		b.must(c.Start())
		defer func() { _ = c.Process.Kill(); _ = c.Wait() }()
		if _, err := io.ReadFull(out, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		b.must(b.host.Stop(context.Background(), gpuA))
		b.must(c.Process.Kill()) // no daemon's: it is in its step
		_ = c.Wait()
		b.gone(s)
		if want := fmt.Sprintf("job=%s client=\"process %d (cuda-client, user 64001, state S)\"", s.Job, c.Process.Pid); !strings.Contains(b.log.String(), want) {
			t.Errorf("no %q in the log: %s", want, b.log)
		}
	})
}

// TestLeftByKilledStarter: a program that is killed while it starts a daemon, at
// many points, leaves what a stop removes.
func TestLeftByKilledStarter(t *testing.T) {
	points := 40
	if testing.Short() {
		points = 10
	}
	inModes(t, func(t *testing.T, b *bed) {
		s := specOf(alice, gpuA)
		s.Percent = 50
		b.stopAtEnd(s)
		begin := time.Now()
		c := b.starter(s)
		b.must(c.Run())
		whole := time.Since(begin)
		b.must(b.host.Stop(context.Background(), gpuA))
		values, running := map[string]int{}, 0
		for i := range points {
			c := b.starter(s)
			b.must(c.Start())
			time.Sleep(time.Duration(i) * whole / time.Duration(points-1))
			_ = c.Process.Kill()
			_ = c.Wait()
			value, err := b.host.Value(gpuA)
			b.must(err)
			values[value]++
			if len(b.look().processes()) > 0 {
				running++
			}
			b.must(b.host.Stop(context.Background(), gpuA))
			b.gone(s)
		}
		if values[""] == 0 || values[s.String()] == 0 || running == 0 {
			t.Errorf("killed too early or too late: %v, %d with processes", values, running)
		}
	})
}

// TestKilledAtSystemCall: the same with the program killed as soon as one of its
// threads is at its n-th system call.
func TestKilledAtSystemCall(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil || testing.Short() {
		t.Skip("slow, and needs strace: ", err)
	}
	inModes(t, func(t *testing.T, b *bed) {
		s := specOf(alice, gpuA)
		s.Memory = 1024
		b.stopAtEnd(s)
		killed, left := 0, 0
		for _, call := range []string{
			"mkdirat", "openat", "write", "read", "fchown", "fchownat", "fcntl", "clone", "clone3", "close", "close_range", "unlinkat",
			"pipe2", "waitid", "wait4", "pidfd_open", "pidfd_send_signal", "epoll_ctl", "futex",
		} {
			for n := 1; b.killedAt(strace, call, n, s); n += 1 + n/16 {
				killed++
				if value, err := b.host.Value(gpuA); err != nil || value != "" {
					left++
				}
				if err := b.host.Stop(context.Background(), gpuA); err != nil {
					t.Fatalf("%s %d: %v", call, n, err)
				}
				b.gone(s)
				if t.Failed() {
					t.Fatalf("%s %d", call, n)
				}
			}
			b.must(b.host.Stop(context.Background(), gpuA))
		}
		if killed < 50 || left < 20 {
			t.Errorf("killed %d times, %d of them with something left", killed, left)
		}
		t.Logf("killed %d times, %d of them with something left", killed, left)
	})
}

// killedAt starts a daemon by a program that is killed at the n-th system call of
// one of its threads. It returns false if there was no n-th one.
func (b *bed) killedAt(strace, call string, n int, s Spec) bool {
	b.t.Helper()
	program, err := os.Executable()
	b.must(err)
	c := b.starter(s)
	c.Path, c.Args = strace, []string{
		// The daemon goes its own way: strace would wait for its end.
		"strace", "-f", "--detach-on=execve", "-qqq", "-o", "/dev/null", "-e", "signal=none",
		"-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", call, n), program,
	}
	out, err := c.CombinedOutput()
	if n > 10_000 {
		b.t.Fatalf("never started: %s", out)
	}
	return err != nil || string(out) != "started\n"
}

func (s *Status) processes() []Process {
	if s == nil {
		return nil
	}
	return s.Processes
}

// starter returns the program that a Prolog is, in a process group of its own.
func (b *bed) starter(s Spec) *exec.Cmd {
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), childVariable+"="+b.host.Root+" "+s.String())
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return c
}

// TestSurvivesSlurmd: slurmd reads what the Prolog writes to the end, which is
// there when the Prolog has ended, and then kills its process group.
func TestSurvivesSlurmd(t *testing.T) {
	inModes(t, func(t *testing.T, b *bed) {
		s := specOf(alice, gpuA)
		b.stopAtEnd(s)
		c := b.starter(s)
		out, err := c.StdoutPipe()
		b.must(err)
		c.Stderr = c.Stdout
		b.must(c.Start())
		text := make(chan string, 1)
		go func() {
			all, _ := io.ReadAll(out)
			text <- string(all)
		}()
		select {
		case got := <-text:
			if got != "started\n" {
				t.Fatalf("the starter: %q", got)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("somebody holds the starter's output")
		}
		b.must(c.Wait())
		for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			_ = syscall.Kill(-c.Process.Pid, signal) // there may be nobody
			time.Sleep(20 * time.Millisecond)
		}
		if status := b.look(); status == nil || status.Silent != nil || len(status.Processes) != 1 {
			t.Errorf("%+v", status)
		} else {
			b.sound(status.Processes[0], s)
		}
	})
}

// TestPlanted: what others have put in the places of folders is refused or
// replaced, and what a link points to stays as it is.
func TestPlanted(t *testing.T) {
	ctx := context.Background()
	s := specOf(alice, gpuA)
	precious := func(b *bed) (dir string, check func()) {
		dir = filepath.Join(b.host.Root, "precious")
		b.must(os.Mkdir(dir, 0o700))
		b.must(os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o600))
		return dir, func() {
			b.t.Helper()
			info, err := os.Stat(dir)
			b.must(err)
			file, err := os.Stat(filepath.Join(dir, "file"))
			b.must(err)
			names, err := os.ReadDir(dir)
			b.must(err)
			text, err := os.ReadFile(filepath.Join(dir, "file"))
			b.must(err)
			if info.Mode().Perm() != 0o700 || owner(info) != 0 || len(names) != 1 || string(text) != "text" || owner(file) != 0 {
				b.t.Errorf("changed: %v, owner %d, %v, %q", info.Mode(), owner(info), names, text)
			}
		}
	}
	t.Run("job", func(t *testing.T) {
		for name, plant := range map[string]func(b *bed, place, precious string){
			"link":   func(b *bed, place, precious string) { b.must(os.Symlink(precious, place)) },
			"file":   func(b *bed, place, _ string) { b.must(os.WriteFile(place, nil, 0o666)) },
			"folder": func(b *bed, place, _ string) { b.must(os.MkdirAll(place+"/pipe/x", 0o777)) },
			"fifo":   func(b *bed, place, _ string) { b.must(unix.Mkfifo(place, 0o666)) },
			"links inside": func(b *bed, place, precious string) {
				b.must(os.MkdirAll(place+"/pipe", 0o777))
				b.must(os.Symlink(precious, place+"/log"))
				b.must(os.Symlink(precious, place+"/pipe/log"))
				b.must(os.Link(precious+"/file", place+"/pipe/control"))
			},
		} {
			t.Run(name, func(t *testing.T) {
				b := newBed(t)
				dir, check := precious(b)
				b.must(os.MkdirAll(b.host.base(), 0o711))
				plant(b, filepath.Join(b.host.base(), s.Job), dir)
				b.start(s)
				b.closed(s, bob)
				b.must(b.host.Stop(ctx, gpuA))
				check()
			})
		}
	})
	t.Run("base", func(t *testing.T) {
		for name, plant := range map[string]func(b *bed, precious string){
			"link": func(b *bed, precious string) { b.must(os.Symlink(precious, b.host.base())) },
			"somebody's": func(b *bed, _ string) {
				b.must(errors.Join(os.Mkdir(b.host.base(), 0o755), os.Chown(b.host.base(), bob, bob)))
			},
			"open": func(b *bed, _ string) {
				b.must(errors.Join(os.Mkdir(b.host.base(), 0o755), os.Chmod(b.host.base(), 0o777)))
			},
			"file": func(b *bed, _ string) { b.must(os.WriteFile(b.host.base(), nil, 0o600)) },
			"record's place": func(b *bed, precious string) {
				b.must(errors.Join(os.Mkdir(b.host.base(), 0o711), os.Symlink(precious+"/file", b.host.base()+"/"+recordName(gpuA))))
			},
		} {
			t.Run(name, func(t *testing.T) {
				b := newBed(t)
				dir, check := precious(b)
				b.must(os.MkdirAll(b.host.run(), 0o755))
				plant(b, dir)
				err := b.host.Start(ctx, s)
				if err == nil || !errors.Is(err, folder.ErrForeign) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
					t.Errorf("started: %v", err)
				}
				check()
				if left := processesOf(b, alice); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			})
		}
	})
	t.Run("by the daemon's user", func(t *testing.T) {
		b := newBed(t)
		dir, check := precious(b)
		b.start(s)
		c := exec.Command("/bin/sh", "-c", `
			cd "$0"/pipe && rm control_lock && ln -s "$1" control_lock && ln -s "$1"/file x && mkfifo f
			cd ../log && mv control.log old && ln -s "$1"/file control.log
			i=0; while [ $i -lt 300 ]; do mkdir d && touch file && cd d; i=$((i+1)); done`,
			filepath.Join(b.host.base(), s.Job), dir)
		c.SysProcAttr = asUser(s)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		b.must(b.host.Stop(ctx, gpuA))
		b.gone(s)
		check()
	})
}

// TestDeepTree: no depth of folders makes removing fail.
func TestDeepTree(t *testing.T) {
	b := newBed(t)
	b.must(os.MkdirAll(b.host.base()+"/7", 0o755))
	dir, err := unix.Open(b.host.base()+"/7", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	b.must(err)
	for range 20000 { // more than descriptors, and longer than a path can be
		b.must(unix.Mkdirat(dir, "d", 0o700))
		next, err := unix.Openat(dir, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		b.must(err)
		b.must(unix.Close(dir))
		dir = next
	}
	b.must(unix.Close(dir))
	b.must(b.host.removeFolder(context.Background(), "7"))
	if _, err := os.Lstat(b.host.base() + "/7"); !os.IsNotExist(err) {
		t.Errorf("left: %v", err)
	}
}

// TestUnfinished: a starter killed at the first step leaves an empty record.
func TestUnfinished(t *testing.T) {
	b := newBed(t)
	b.must(os.MkdirAll(b.host.base(), 0o711))
	for _, text := range []string{"", `{"value":"job=`} {
		b.must(os.WriteFile(b.host.base()+"/"+recordName(gpuA), []byte(text), 0o600))
		if value, err := b.host.Value(gpuA); value != Unfinished || err != nil {
			t.Errorf("value %q, %v", value, err)
		}
		if status := b.look(); status == nil || !status.Unfinished || status.Silent == nil {
			t.Errorf("%+v", status)
		}
		b.must(b.host.Stop(context.Background(), gpuA))
		b.gone(specOf(alice, gpuA))
	}
	b.must(os.WriteFile(b.host.base()+"/"+recordName(gpuA), []byte(`{"value":"job=../..","keeper":"session","token":"x"}`), 0o600))
	if err := b.host.Stop(context.Background(), gpuA); !errors.Is(err, folder.ErrForeign) {
		t.Errorf("a record that nobody wrote: %v", err)
	}
}

// TestOneOfAJob: a job has one daemon on a node.
func TestOneOfAJob(t *testing.T) {
	b := newBed(t)
	s := specOf(alice, gpuA)
	b.start(s)
	another := s
	another.GPUs = []string{gpuB}
	err := b.host.Start(context.Background(), another)
	if err == nil || err.Error() != "MPS daemon of job "+another.Job+": it has one on "+gpuA+" already, which has to be stopped first" {
		t.Errorf("got %v", err)
	}
	if value, err := b.host.Value(gpuB); value != "" || err != nil {
		t.Errorf("value %q, %v", value, err)
	}
	if status := b.look(); status.Silent != nil {
		t.Error(status.Silent)
	}
}

func TestFindProgram(t *testing.T) {
	b := newBed(t)
	if path, err := b.host.FindProgram(""); err != nil || path != b.programs.Control() {
		t.Errorf("%s, %v", path, err)
	}
	b.must(os.Rename(b.programs.Control(), b.host.path("/usr/bin/elsewhere")))
	if path, err := b.host.FindProgram("/usr/bin/elsewhere"); err != nil || path != b.host.path("/usr/bin/elsewhere") {
		t.Errorf("%s, %v", path, err)
	}
	for given, want := range map[string]string{
		"":              "nvidia-cuda-mps-control is not installed: not at /usr/bin/nvidia-cuda-mps-control, /usr/local/bin/nvidia-cuda-mps-control, ",
		"/usr/bin/none": "nvidia-cuda-mps-control is not installed: not at /usr/bin/none: name the place where it is",
		"/usr/bin":      "want a program of root's that nobody else can write to",
	} {
		if _, err := b.host.FindProgram(given); !errors.Is(err, ErrNoProgram) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", given, err)
		}
	}
	for _, spoil := range []func() error{
		func() error { return os.Chmod(b.host.path("/usr/bin/elsewhere"), 0o775) },
		func() error { return os.Chmod(b.host.path("/usr/bin/elsewhere"), 0o644) },
		func() error {
			return errors.Join(os.Chmod(b.host.path("/usr/bin/elsewhere"), 0o755), os.Chown(b.host.path("/usr/bin/elsewhere"), alice, 0))
		},
	} {
		b.must(spoil())
		if _, err := b.host.FindProgram("/usr/bin/elsewhere"); !errors.Is(err, ErrNoProgram) {
			t.Errorf("got %v", err)
		}
	}
	if err := b.host.Start(context.Background(), specOf(alice, gpuA)); !errors.Is(err, ErrNoProgram) {
		t.Errorf("started without: %v", err)
	}
}

func TestLastWords(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		"[2026-11-30 04:05:27.483 Control   468] Starting control daemon using socket /run/gt/p/control\n" +
			"[2026-11-30 04:05:27.506 Control   468] Accepting connection...\n[2026-11-30 04:05:27.506 Control   468] NEW UI\n": "",
		"Cannot access CUDA_MPS_PIPE_DIRECTORY=/run/gt/p\n[2026-11-30 04:05:27.506 Control   468] UI closed\n": "Cannot access CUDA_MPS_PIPE_DIRECTORY=/run/gt/p",
		"one\ntwo\x1b[31m\xff\u202e": "two?[31m??",
		strings.Repeat("a", 20000):   strings.Repeat("a", 200) + "…",
	} {
		f, err := os.Create(filepath.Join(t.TempDir(), "log"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if got := lastWords(f); got != want {
			t.Errorf("%.60q: %q, want %q", text, got, want)
		}
		f.Close()
	}
}

// TestBetweenForkAndExec: as long as a child of somebody who was killed can
// become a daemon, nothing is taken for stopped.
func TestBetweenForkAndExec(t *testing.T) {
	b := newBed(t)
	s := specOf(alice, gpuA)
	b.start(s)
	child, err := os.OpenFile(b.host.base()+"/"+recordName(gpuA), os.O_RDWR, 0)
	b.must(err)
	b.must(unix.Flock(int(child.Fd()), unix.LOCK_EX))
	b.host.Limits.Kill = 100 * time.Millisecond
	if err := b.host.Stop(context.Background(), gpuA); err == nil || !strings.HasSuffix(err.Error(), "somebody else works on it: resource temporarily unavailable") {
		t.Errorf("got %v", err)
	}
	if status := b.look(); status.Silent != nil {
		t.Error(status.Silent)
	}
	b.host.Limits.Kill = 10 * time.Second
	time.AfterFunc(200*time.Millisecond, func() { child.Close() })
	b.must(b.host.Stop(context.Background(), gpuA))
	b.gone(s)
}
