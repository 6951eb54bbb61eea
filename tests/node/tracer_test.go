package node

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// point is a moment in the run of a program that is traced: before a system
// call. A process that is killed then does not make it.
type point struct {
	process int // 0 is the program, 1 the first process that it starts, …
	number  int // among the calls of all threads of the process, from 1
}

// process is one process of a program that was traced.
type process struct {
	pid    int
	calls  int
	status unix.WaitStatus
}

// killed tells whether the process ended by SIGKILL.
func (p process) killed() bool { return p.status.Signaled() && p.status.Signal() == unix.SIGKILL }

// trace is how a program ran that was traced.
type trace struct {
	processes []process // in the order in which they were started
	last      int       // the kernel's number of the call at which one was killed
	output    string
}

// everyProcess is the place of no process, and means all of them.
const everyProcess = -1

// traceLimit is when a program that is traced is taken to hang.
const traceLimit = 2 * time.Minute

// tracer stops a program before each of its system calls. It does what strace
// --follow-forks does, but counts the calls of each process, where strace counts
// those of each name in each thread, so that any one call can be named.
type tracer struct {
	watched int
	before  func(point) []int

	processes []process
	of        map[int]int  // thread → place in processes
	inCall    map[int]bool // threads within a system call
	last      int
	leave     string // folder of programs that are not followed
}

// traced runs a program to its end and calls before at each system call of its
// process that has this place, or of all its processes if that is everyProcess.
// What before returns, places of processes, is killed. The program is done when
// all of its processes are, but for those that have become programs below the
// folder leave: they may outlive it.
func traced(command *exec.Cmd, leave string, of int, before func(point) (kill []int)) (trace, error) {
	// The kernel lets only the thread that started a program control it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	output, err := os.CreateTemp("", "traced-")
	if err != nil {
		return trace{}, err
	}
	defer output.Close()
	if err := os.Remove(output.Name()); err != nil {
		return trace{}, err
	}
	command.Stdout, command.Stderr = output, output
	// As slurmd, which gives them a process group of their own.
	command.SysProcAttr = &unix.SysProcAttr{Ptrace: true, Setpgid: true}
	if err := command.Start(); err != nil {
		return trace{}, err
	}
	pid := command.Process.Pid
	if err := command.Process.Release(); err != nil {
		return trace{}, err
	}
	hangs := time.AfterFunc(traceLimit, func() { _ = unix.Kill(-pid, unix.SIGKILL) })
	t := &tracer{watched: of, before: before, leave: leave, of: map[int]int{}, inCall: map[int]bool{}}
	err = t.follow(pid)
	if err != nil {
		_ = unix.Kill(-pid, unix.SIGKILL)
	}
	if !hangs.Stop() {
		err = errors.Join(err, fmt.Errorf("not all of it had ended after %v", traceLimit))
	}
	text, readError := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", output.Fd()))
	return trace{t.processes, t.last, string(text)}, errors.Join(err, readError)
}

func (t *tracer) follow(pid int) error {
	var status unix.WaitStatus
	if _, err := wait(pid, &status, 0); err != nil || !status.Stopped() {
		return fmt.Errorf("start under a tracer: %w, status %#x", err, uint32(status))
	}
	const options = unix.PTRACE_O_EXITKILL | unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACEEXEC |
		unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK
	if err := unix.PtraceSetOptions(pid, options); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	t.of[pid] = 0
	t.processes = []process{{pid: pid}}
	for thread, signal := pid, 0; ; {
		goOn := unix.PtraceCont
		if place, known := t.of[thread]; known && (t.watched == everyProcess || t.watched == place) {
			goOn = unix.PtraceSyscall
		}
		// A thread that is being killed is not there to go on.
		if err := goOn(thread, signal); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("trace: go on: %w", err)
		}
		var err error
		if thread, signal, err = t.next(); err != nil || thread == 0 {
			return err
		}
	}
}

// next waits until a thread stops and returns it with the signal that it is to
// get, 0 for none. No thread is the end of all.
func (t *tracer) next() (thread, signal int, err error) {
	const systemCallStop = unix.SIGTRAP | 0x80
	for {
		var status unix.WaitStatus
		thread, err := t.wait(&status)
		if errors.Is(err, unix.ECHILD) {
			return 0, 0, nil
		}
		if err != nil {
			return 0, 0, fmt.Errorf("trace: wait: %w", err)
		}
		place, known := t.of[thread]
		switch {
		case !status.Stopped():
			if known && t.processes[place].pid == thread {
				t.processes[place].status = status
			}
			delete(t.of, thread)
			delete(t.inCall, thread)
			continue
		case !known:
			// Its first stop, of which it knows nothing.
			return thread, 0, t.add(thread)
		case status.StopSignal() == systemCallStop:
			t.systemCall(thread, place)
			return thread, 0, nil
		case status.StopSignal() == unix.SIGTRAP && status>>16 == unix.PTRACE_EVENT_EXEC && t.leaves(thread):
			if err := unix.PtraceDetach(thread); err != nil && !errors.Is(err, unix.ESRCH) {
				return 0, 0, fmt.Errorf("trace: let go: %w", err)
			}
			delete(t.of, thread)
			delete(t.inCall, thread)
			continue
		case status.StopSignal() == unix.SIGTRAP && status>>16 != 0: // it has started a thread or a program
			return thread, 0, nil
		default:
			return thread, int(status.StopSignal()), nil
		}
	}
}

// leaves tells whether a process has become a program that is not followed.
func (t *tracer) leaves(pid int) bool {
	program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && t.leave != "" && strings.HasPrefix(program, t.leave+"/")
}

// systemCall is at a stop before or after a call.
func (t *tracer) systemCall(thread, place int) {
	t.inCall[thread] = !t.inCall[thread]
	if !t.inCall[thread] {
		return
	}
	p := &t.processes[place]
	p.calls++
	if t.before == nil {
		return
	}
	victims := t.before(point{place, p.calls})
	if len(victims) > 0 {
		t.last = entered(thread)
	}
	for _, victim := range victims {
		if victim < len(t.processes) {
			_ = unix.Kill(t.processes[victim].pid, unix.SIGKILL)
		}
	}
}

// add makes a thread known.
func (t *tracer) add(thread int) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil // dead by now
	}
	if err != nil {
		return err
	}
	_, rest, _ := bytes.Cut(text, []byte("\nTgid:\t"))
	word, _, _ := bytes.Cut(rest, []byte("\n"))
	pid, err := strconv.Atoi(string(word))
	if err != nil {
		return fmt.Errorf("process of thread %d: %w", thread, err)
	}
	for place, p := range t.processes {
		if p.pid == pid {
			t.of[thread] = place
			return nil
		}
	}
	t.of[thread] = len(t.processes)
	t.processes = append(t.processes, process{pid: pid})
	return nil
}

// wait waits for any thread that this one traces, whatever process group it is in,
// and for no other child that this thread may have: somebody else waits for that.
func (t *tracer) wait(status *unix.WaitStatus) (int, error) {
	for {
		thread, err := peek()
		if err != nil {
			return 0, err
		}
		if _, known := t.of[thread]; known || tracedBy(thread) == unix.Gettid() {
			// A thread that stopped and was killed since is to be waited for after
			// others of its process.
			got, err := wait(thread, status, unix.WNOHANG)
			if err != nil || got != 0 {
				return got, err
			}
			continue
		}
		time.Sleep(time.Millisecond)
	}
}

// peek returns a thread of this one's that has ended or stopped and leaves it as
// it is.
func peek() (int, error) {
	var info struct {
		signal, errno, code, _ int32
		pid                    int32
		_                      [108]byte
	}
	for {
		const options = unix.WEXITED | unix.WSTOPPED | unix.WALL | unix.WNOTHREAD | unix.WNOWAIT
		err := unix.Waitid(unix.P_ALL, 0, (*unix.Siginfo)(unsafe.Pointer(&info)), options, nil)
		if !errors.Is(err, unix.EINTR) {
			return int(info.pid), err
		}
	}
}

// tracedBy returns who traces a thread, 0 nobody or nobody knows.
func tracedBy(thread int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(text, []byte("\nTracerPid:\t"))
	word, _, _ := bytes.Cut(rest, []byte("\n"))
	tracer, err := strconv.Atoi(string(word))
	if err != nil {
		return 0
	}
	return tracer
}

// wait is waitpid(2) for threads as well as for processes.
func wait(pid int, status *unix.WaitStatus, options int) (int, error) {
	for {
		thread, err := unix.Wait4(pid, status, unix.WALL|options, nil)
		if !errors.Is(err, unix.EINTR) {
			return thread, err
		}
	}
}

// entered returns the number of the system call that a thread is about to make,
// −1 if it cannot be told. Source: ptrace(2), PTRACE_GET_SYSCALL_INFO; the number
// is behind the kind of stop, the architecture and two addresses.
func entered(thread int) int {
	var info struct {
		stop         uint8
		_            [3]uint8
		architecture uint32
		at, stack    uint64
		call         uint64
		_            [7]uint64
	}
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(thread), unsafe.Sizeof(info),
		uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 {
		return -1
	}
	return int(info.call)
}

// needTracer skips a test where this program may not trace another.
func needTracer(t *testing.T) {
	t.Helper()
	if got, err := traced(exec.Command("/bin/true"), "", everyProcess, nil); err != nil || got.processes[0].calls == 0 {
		t.Skipf("no program can be traced here: %+v, %v", got, err)
	}
}
