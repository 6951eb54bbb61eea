package numavm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"gputune/tests/vm/internal/wire"
)

// Options says which machine to start. Suite and Topology are needed, all else has defaults.
type Options struct {
	Suite    Suite
	Topology Topology
	// Shares are folders that the guest sees besides the working tree, which is /host/tree.
	Shares []Share
	// Env is added to the environment of every command, K=V each.
	Env []string
	// CommandTimeout is for commands that give none; 0 is 5 minutes.
	CommandTimeout time.Duration
	// BootTimeout is for the time from starting QEMU to the guest's being ready; 0 is 10 minutes.
	BootTimeout time.Duration
	// KernelArgs are added to the guest kernel's command line, such as numa_balancing=disable.
	KernelArgs []string
	// Udev keeps systemd-udevd, which costs 5 to 8 s of each boot.
	Udev bool
	// LogDir keeps console.log, qemu.log and virtiofsd.log there; empty: they go with the machine.
	LogDir string
	// Log takes what happens: images built, machines started. Nil: nobody.
	Log *slog.Logger
}

const (
	defaultCommandTimeout = 5 * time.Minute
	defaultBootTimeout    = 10 * time.Minute
)

// VM is a running machine. Close it.
type VM struct {
	// Booted is how long the last boot took, from starting QEMU to systemd having started all units.
	Booted time.Duration
	// Kernel is the guest kernel's release.
	Kernel string
	// QEMU is the major version of the QEMU that runs it.
	QEMU int

	opt    Options
	image  *Image
	dir    *runDir
	qemu   qemu
	shares []Share
	launch launch

	mu     sync.Mutex
	cur    *session
	closed bool
	before time.Duration // CPU time of the boots that have ended
}

var errClosed = errors.New("the virtual machine is closed")

// Start boots a machine and returns when commands can run in it. ctx is for starting alone; the machine runs until Close, or
// until this process ends, however that happens. Building the image, if need be, comes on top of Options.BootTimeout.
func Start(ctx context.Context, opt Options) (_ *VM, err error) {
	if _, err := ParseSuite(string(opt.Suite)); err != nil {
		return nil, err
	}
	if len(opt.Topology.Nodes) == 0 {
		return nil, errors.New("no topology given: take one from ParseTopology")
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.CommandTimeout == 0 {
		opt.CommandTimeout = defaultCommandTimeout
	}
	if opt.BootTimeout == 0 {
		opt.BootTimeout = defaultBootTimeout
	}
	tree, err := FindTree()
	if err != nil {
		return nil, err
	}
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	vm := &VM{opt: opt}
	if vm.qemu, err = findQEMU(ctx, tree, cache, opt.Log); err != nil {
		return nil, err
	}
	vm.QEMU = vm.qemu.major
	if vm.image, err = EnsureImage(ctx, tree, cache, opt.Suite, opt.Log); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, vm.Close())
		}
	}()
	if vm.dir, err = newRunDir(ctx, cache); err != nil {
		return nil, err
	}
	agentDir := vm.dir.file("agent")
	if err := os.Mkdir(agentDir, 0o755); err != nil {
		return nil, err
	}
	if err := buildAgent(ctx, tree, agentDir); err != nil {
		return nil, err
	}
	shares := append([]Share{{Dir: agentDir, Name: agentShare}, {Dir: tree, Name: TreeShare}}, opt.Shares...)
	if vm.shares, err = resolveShares(shares); err != nil {
		return nil, err
	}
	disk := vm.dir.file("root.qcow2")
	if out, err := exec.CommandContext(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", vm.image.Disk(), disk).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("qemu-img create %s: %w: %s", disk, err, out)
	}
	vm.launch = launch{
		topology: opt.Topology, cpu: cpuModel(opt.Suite, opt.Topology),
		kernel: vm.image.Kernel(), disk: disk, console: vm.dir.file("console.log"),
		udev: opt.Udev, kernelArgs: opt.KernelArgs,
	}
	if err := vm.boot(ctx); err != nil {
		return nil, err
	}
	return vm, nil
}

// boots is how often a machine is started whose clock runs fast.
const boots = 3

// boot starts QEMU on the machine's disk as it is. On a host that is busy, a kernel may take the wrong frequency for that of
// its emulated TSC; every timeout in the guest is then shorter than it says.
func (vm *VM) boot(ctx context.Context) error {
	bootCtx, cancel := context.WithTimeoutCause(ctx, vm.opt.BootTimeout, fmt.Errorf("not booted after %s", vm.opt.BootTimeout))
	defer cancel()
	var start time.Time
	var s *session
	var g wire.Greeting
	for again := boots; ; {
		start = time.Now()
		var err error
		if s, err = startSession(vm.dir, vm.qemu, vm.shares, vm.launch, usualPatience); err != nil {
			return err
		}
		vm.mu.Lock()
		vm.cur = s
		vm.mu.Unlock()
		if g, err = s.greet(bootCtx); err != nil {
			return fmt.Errorf("booting %s on %s: %w", vm.opt.Suite, vm.opt.Topology.Name, err)
		}
		since := time.Since(start)
		if !clockIsFast(g.Uptime, since) {
			break
		}
		s.end("its clock runs fast")
		<-s.dead
		if again--; again == 0 {
			return fmt.Errorf("booting %s on %s: after %.1f s the guest's clock shows %.1f s, in each of %d boots",
				vm.opt.Suite, vm.opt.Topology.Name, since.Seconds(), g.Uptime, boots)
		}
		vm.opt.Log.Warn("the guest's clock runs fast, it is booted again", "suite", vm.opt.Suite, "uptime", g.Uptime, "took", since)
	}
	// Jobs of the boot that still run would compete with the first command. Whether a unit has failed is the caller's to ask.
	wait := Command{Argv: []string{"sh", "-c", "systemctl is-system-running --wait >/dev/null || true"}, Timeout: vm.opt.BootTimeout}
	if _, err := vm.Exec(bootCtx, wait); err != nil {
		s.end("it did not finish booting")
		return fmt.Errorf("booting %s on %s: %w", vm.opt.Suite, vm.opt.Topology.Name, err)
	}
	vm.Booted, vm.Kernel = time.Since(start), g.Kernel
	vm.opt.Log.Info("machine is up", "suite", vm.opt.Suite, "topology", vm.opt.Topology.Name, "kernel", g.Kernel,
		"qemu", vm.qemu.major, "took", vm.Booted.Round(100*time.Millisecond), "agent_at_uptime", g.Uptime)
	return nil
}

// session is the current boot, whether it lives or not.
func (vm *VM) session() (*session, error) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	if vm.closed || vm.cur == nil {
		return nil, errClosed
	}
	return vm.cur, nil
}

// environment is the whole environment of a command. Of a variable given twice the last counts.
func (vm *VM) environment(more []string) []string {
	env := []string{
		"PATH=" + strings.Join([]string{
			filepath.Join("/host", TreeShare, "tests/vm/guest"),
			"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin",
		}, ":"),
		"HOME=/root", "USER=root", "LOGNAME=root", "SHELL=/bin/bash", "TERM=dumb", "LC_ALL=C.UTF-8",
	}
	env = append(env, vm.opt.Env...)
	return append(env, more...)
}

// Reboot restarts the guest through systemd, as an administrator would; what is on its disk stays. The machine is dead if
// that fails.
func (vm *VM) Reboot(ctx context.Context) error {
	s, err := vm.session()
	if err != nil {
		return err
	}
	vm.count(s)
	// The agent ends before the command does: -no-reboot makes the restart QEMU's end.
	var ended *MachineError
	if _, err := vm.Exec(ctx, Command{Argv: []string{"sh", "-c", "systemctl reboot && sleep 300"}}); !errors.As(err, &ended) {
		return fmt.Errorf("the guest did not restart: %w", err)
	}
	select {
	case <-s.dead:
	case <-ctx.Done():
		return ctx.Err()
	}
	return vm.boot(ctx)
}

// PowerCycle cuts the guest's power and boots it anew: what it had flushed to its disk stays.
func (vm *VM) PowerCycle(ctx context.Context) error {
	s, err := vm.session()
	if err != nil {
		return err
	}
	vm.count(s)
	s.end("its power was cut")
	<-s.dead
	return vm.boot(ctx)
}

// Shutdown powers the guest off through systemd and waits for that. Close is still needed.
func (vm *VM) Shutdown(ctx context.Context) error {
	var ended *MachineError
	if _, err := vm.Exec(ctx, Command{Argv: []string{"sh", "-c", "systemctl poweroff && sleep 300"}}); !errors.As(err, &ended) {
		return fmt.Errorf("the guest did not power off: %w", err)
	}
	return nil
}

// Close ends the machine at once and removes its disk. It may be called more than once.
func (vm *VM) Close() error {
	vm.mu.Lock()
	if vm.closed {
		vm.mu.Unlock()
		return nil
	}
	vm.closed = true
	s := vm.cur
	vm.mu.Unlock()
	if s != nil {
		s.end("it was closed")
		<-s.dead
	}
	var errs []error
	if vm.dir != nil {
		errs = append(errs, vm.keepLogs(), vm.dir.close())
	}
	if vm.image != nil {
		errs = append(errs, vm.image.Close())
	}
	return errors.Join(errs...)
}

// keepLogs copies the machine's logs to Options.LogDir.
func (vm *VM) keepLogs() error {
	if vm.opt.LogDir == "" {
		return nil
	}
	if err := os.MkdirAll(vm.opt.LogDir, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"console.log", "qemu.log", "virtiofsd.log"} {
		b, err := os.ReadFile(vm.dir.file(name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(vm.opt.LogDir, name), b, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
