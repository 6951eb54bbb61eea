package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// daemon is the control daemon.
type daemon struct {
	log io.Writer

	command sync.Mutex // one is carried out at a time

	mu      sync.Mutex
	percent float64
	memory  map[int]string // by device
	server  *exec.Cmd      // nil before the first client
	clients map[int]net.Conn
}

// foreground is the daemon. It returns when it has been told to quit.
func foreground(log *os.File) error {
	if fault("start") == "fail" {
		return errors.New("Failed to start: the fault was asked for") //nolint:staticcheck // as the real one writes
	}
	if err := writable(); err != nil {
		return err
	}
	lock, err := os.OpenFile(inPipes("control_lock"), os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return errors.New("An instance of this daemon is already running") //nolint:staticcheck // the real one's words
	}
	d := &daemon{log: log, percent: 100, memory: map[int]string{}, clients: map[int]net.Conn{}}
	if fault("term") == "ignore" {
		signal.Ignore(unix.SIGTERM)
	}
	if fault("child") == "leave" {
		child := exec.Command("/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done")
		child.SysProcAttr = &unix.SysProcAttr{Setsid: true}
		if err := child.Start(); err != nil {
			return err
		}
	}
	d.say("Starting control daemon using socket %s", inPipes("control"))
	d.say("To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=%s", pipes())
	d.say("CUDA MPS Control binary version: 13000")
	if fault("start") == "hang" {
		time.Sleep(time.Hour)
	}
	late(fault("start"))
	listener, err := d.files()
	if err != nil {
		return err
	}
	if os.Args[1] == "--in-background" {
		if _, err := os.NewFile(3, "ready").WriteString("."); err != nil {
			return err
		}
	}
	if fault("start") == "exit" {
		d.say("Failed to do what the fault asked for")
		os.Exit(1)
	}
	if after, err := time.ParseDuration(fault("die")); err == nil {
		time.AfterFunc(after, func() { _ = unix.Kill(os.Getpid(), unix.SIGKILL) })
	}
	for {
		connection, err := listener.AcceptUnix()
		if err != nil {
			return err
		}
		d.say("Accepting connection...")
		go d.serve(connection)
	}
}

// say writes a line of the log.
func (d *daemon) say(format string, arguments ...any) {
	fmt.Fprintf(d.log, "[%s Control %5d] %s\n", time.Now().Format("2006-01-02 15:04:05.000"), os.Getpid(), fmt.Sprintf(format, arguments...))
}

// files makes the files of the pipe folder, over those of an earlier daemon.
func (d *daemon) files() (*net.UnixListener, error) {
	for _, name := range []string{"control", "control_privileged", "log", pidName} {
		if err := os.Remove(inPipes(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	if err := unix.Mkfifo(inPipes("log"), 0o777); err != nil {
		return nil, err
	}
	if err := os.WriteFile(inPipes(pidName), []byte(strconv.Itoa(os.Getpid())), 0o666); err != nil {
		return nil, err
	}
	listen := func(name string, mode os.FileMode) (*net.UnixListener, error) {
		listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: inPipes(name)})
		if err != nil {
			return nil, err
		}
		listener.SetUnlinkOnClose(false)
		return listener, os.Chmod(inPipes(name), mode)
	}
	if _, err := listen("control_privileged", 0o755); err != nil {
		return nil, err
	}
	return listen("control", 0o666)
}

const pidName = "nvidia-cuda-mps-control.pid"

func (d *daemon) serve(connection *net.UnixConn) {
	defer connection.Close()
	lines := bufio.NewScanner(connection)
	if !lines.Scan() {
		return
	}
	if percent, isClient := strings.CutPrefix(lines.Text(), "CLIENT "); isClient {
		d.client(connection, percent)
		return
	}
	d.say("NEW UI")
	for lines.Scan() {
		d.command.Lock()
		d.say("Cmd:%s", lines.Text())
		if fault("answer") == "hang" {
			time.Sleep(time.Hour)
		}
		late(fault("answer"))
		answer := d.carryOut(strings.Fields(lines.Text()))
		d.command.Unlock()
		if answer != "" {
			d.say("%s", answer)
			answer += "\n"
		}
		if _, err := io.WriteString(connection, answer+".\n"); err != nil {
			break
		}
	}
	d.say("UI closed")
}

// carryOut carries out a command and returns what the user reads.
func (d *daemon) carryOut(words []string) string {
	if len(words) == 0 {
		return ""
	}
	argument := func(n int) string {
		if n < len(words) {
			return words[n]
		}
		return ""
	}
	device, _ := strconv.Atoi(argument(1))
	d.mu.Lock()
	defer d.mu.Unlock()
	switch words[0] {
	case "quit":
		return d.quit(words[1:])
	case "get_server_list":
		if d.server != nil {
			return strconv.Itoa(d.server.Process.Pid)
		}
		return ""
	case "get_client_list", "ps", "get_device_client_list":
		return d.list(words[0])
	case "set_default_active_thread_percentage":
		percent, err := strconv.ParseFloat(argument(1), 64)
		if err != nil || percent <= 0 || percent > 100 || fault("limit") == "ignore" {
			d.say("Invalid percentage, expected between (0.0, 100.0]")
		} else {
			d.percent = percent
		}
		return fmt.Sprintf("%.1f", d.percent)
	case "get_default_active_thread_percentage":
		return fmt.Sprintf("%.1f", d.percent)
	case "set_default_device_pinned_mem_limit":
		if limit := size(argument(2)); limit != "" && fault("limit") != "ignore" {
			d.memory[device] = limit
		}
		return ""
	case "get_default_device_pinned_mem_limit":
		return d.memory[device]
	}
	return fmt.Sprintf("Unknown command %q", words[0])
}

// size writes a size as the real one does: 4096M is 4G. "" is none.
func size(text string) string {
	number, unit := strings.TrimRight(text, "MG"), text[len(strings.TrimRight(text, "MG")):]
	n, err := strconv.ParseUint(number, 10, 64)
	switch {
	case err != nil || unit != "M" && unit != "G":
		return ""
	case unit == "M" && n%1024 == 0:
		return fmt.Sprintf("%dG", n/1024)
	}
	return text
}

func (d *daemon) list(what string) string {
	if d.server == nil {
		if what == "ps" {
			return "Server not found"
		}
		return ""
	}
	var lines []string
	if what == "ps" {
		lines = append(lines, "PID       ID        SERVER         DEVICE                    NAMESPACE      COMMAND")
	}
	for i, pid := range d.pids() {
		switch what {
		case "ps":
			lines = append(lines, fmt.Sprintf("%-9d %-9d %-14d GPU-8dbdaf4e-421b-125d    4026531836     cuda-client", pid, i+1, d.server.Process.Pid))
		case "get_client_list":
			lines = append(lines, strconv.Itoa(pid))
		default:
			lines = append(lines, fmt.Sprintf("%d.%d", pid, i+1))
		}
	}
	if what == "get_device_client_list" {
		lines = append([]string{"[0] 00:00.0, NVIDIA H200"}, lines...)
	}
	return strings.Join(lines, "\n")
}

// pids returns the clients in order. The caller has the lock.
func (d *daemon) pids() []int {
	var list []int
	for pid := range d.clients {
		list = append(list, pid)
	}
	slices.Sort(list)
	return list
}

// quit ends the daemon, unless a fault keeps it. The caller has the lock, which
// is given up while clients are waited for.
func (d *daemon) quit(arguments []string) string {
	if fault("quit") == "refuse" {
		return ""
	}
	end := time.Now().Add(time.Hour)
	if len(arguments) == 2 && arguments[0] == "-t" {
		seconds, _ := strconv.Atoi(arguments[1])
		d.say("quit command issued with timeout of %d", seconds)
		end = time.Now().Add(time.Duration(seconds) * time.Second)
	}
	for len(d.clients) > 0 && time.Now().Before(end) {
		d.mu.Unlock()
		time.Sleep(20 * time.Millisecond)
		d.mu.Lock()
	}
	if d.server != nil {
		if len(d.clients) > 0 {
			d.say("Force shutting down server %d", d.server.Process.Pid)
		}
		_ = d.server.Process.Kill()
		_ = d.server.Wait()
	}
	d.say("Exit with status 0")
	_ = os.Remove(inPipes("log"))
	_ = os.Remove(inPipes(pidName))
	os.Exit(0)
	return ""
}

// client serves a CUDA program as long as it is connected.
func (d *daemon) client(connection *net.UnixConn, percent string) {
	var who *unix.Ucred
	raw, err := connection.SyscallConn()
	if err == nil {
		controlErr := raw.Control(func(fd uintptr) { who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
		err = errors.Join(err, controlErr)
	}
	if err != nil || int(who.Uid) != os.Getuid() {
		d.say("User did not send valid credentials")
		return
	}
	pid := int(who.Pid)
	d.mu.Lock()
	err = d.serverStarted()
	share := d.percent
	if own, e := strconv.ParseFloat(percent, 64); e == nil && own > 0 && own < share {
		share = own
	}
	memory := d.memory[0]
	if memory == "" {
		memory = "all"
	}
	d.clients[pid] = connection
	d.mu.Unlock()
	if err != nil {
		d.say("server: %v", err)
		return
	}
	d.say("NEW CLIENT %d from user %d: Server already exists", pid, who.Uid)
	fmt.Fprintf(connection, "server %d percent %.1f mem %s uid %d gpus %s\n",
		d.server.Process.Pid, share, memory, os.Getuid(), os.Getenv("CUDA_VISIBLE_DEVICES"))
	_, _ = io.Copy(io.Discard, connection) // until it ends
	d.mu.Lock()
	delete(d.clients, pid)
	d.mu.Unlock()
}

// serverStarted starts the server if there is none. The caller has the lock.
func (d *daemon) serverStarted() error {
	if d.server != nil {
		return nil
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	server := exec.Command(filepath.Join(filepath.Dir(program), "nvidia-cuda-mps-server"))
	if _, err := server.StdinPipe(); err != nil {
		return err
	}
	if err := server.Start(); err != nil {
		return err
	}
	d.say("Starting new server %d for user %d", server.Process.Pid, os.Getuid())
	d.server = server
	return nil
}
