// Command numavm-agent runs in the virtual NUMA machine. It serves the virtio-serial port named numavm.agent and ends when
// the host does.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gputune/tests/vm/internal/agent"
	"gputune/tests/vm/internal/wire"
)

const (
	portName    = "numavm.agent"
	portTimeout = time.Minute
)

func init() {
	runtime.LockOSThread() // main's thread is the one that is freed and executes
}

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := run(log); err != nil {
		log.Error("agent ends", "err", err)
		os.Exit(1)
	}
}

func run(log *slog.Logger) error {
	if err := free(); err != nil {
		return err
	}
	runtime.UnlockOSThread()
	port, err := openPort()
	if err != nil {
		return err
	}
	defer port.Close()
	greeting, err := greet()
	if err != nil {
		return err
	}
	cgroup, err := ownCgroup()
	if err != nil {
		return err
	}
	return agent.Serve(&patientPort{File: port}, agent.Options{Greeting: greeting, Cgroup: cgroup, Log: log})
}

// free lets this process and what it starts run on every CPU, and not only on that to which systemd keeps its services. Only
// one of a Go program's threads can be freed, so that it begins anew.
func free() error {
	var before, after unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("own affinity: %w", err)
	}
	all := before
	for cpu := range 1024 {
		all.Set(cpu)
	}
	if err := unix.SchedSetaffinity(0, &all); err != nil {
		return fmt.Errorf("own affinity: %w", err)
	}
	if err := unix.SchedGetaffinity(0, &after); err != nil {
		return fmt.Errorf("own affinity: %w", err)
	}
	if before == after {
		return nil
	}
	return fmt.Errorf("beginning anew: %w", unix.Exec("/proc/self/exe", os.Args, os.Environ()))
}

// openPort waits for the port and opens it. There may be no udev, so /dev/virtio-ports is not to be relied on.
func openPort() (*os.File, error) {
	for deadline := time.Now().Add(portTimeout); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
		if err != nil {
			return nil, fmt.Errorf("virtio ports: %w", err)
		}
		for _, n := range names {
			b, err := os.ReadFile(n)
			if err != nil || strings.TrimSpace(string(b)) != portName {
				continue
			}
			return os.OpenFile(filepath.Join("/dev", filepath.Base(filepath.Dir(n))), os.O_RDWR, 0)
		}
	}
	return nil, fmt.Errorf("no virtio-serial port named %s after %s", portName, portTimeout)
}

// patientPort hides that a port reads as ended for as long as the kernel has not heard of the host's end
// (drivers/char/virtio_console.c, port_fops_read). The host speaks first, so the first byte shows that it is there.
type patientPort struct {
	*os.File
	heard bool
}

func (p *patientPort) Read(b []byte) (int, error) {
	for {
		n, err := p.File.Read(b)
		if n > 0 {
			p.heard = true
		}
		if p.heard || !errors.Is(err, io.EOF) {
			return n, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func greet() (wire.Greeting, error) {
	var g wire.Greeting
	b, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return g, err
	}
	if _, err := fmt.Sscan(string(b), &g.Uptime); err != nil {
		return g, fmt.Errorf("/proc/uptime %q: %w", b, err)
	}
	b, err = os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return g, err
	}
	g.Kernel = strings.TrimSpace(string(b))
	return g, nil
}

// ownCgroup is the folder of the cgroup that this process is in.
func ownCgroup() (string, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	path, ok := bytes.CutPrefix(bytes.TrimSpace(b), []byte("0::"))
	if !ok {
		return "", fmt.Errorf("/proc/self/cgroup %q is not pure cgroup v2", b)
	}
	return filepath.Join("/sys/fs/cgroup", string(path)), nil
}
