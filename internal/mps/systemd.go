package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// Systemd is what is asked of the service manager. *dbus.Conn of go-systemd has
// it; the methods are those of org.freedesktop.systemd1(5).
type Systemd interface {
	StartTransientUnitContext(ctx context.Context, name, mode string, properties []dbus.Property, result chan<- string) (int, error)
	StopUnitContext(ctx context.Context, name, mode string, result chan<- string) (int, error)
	ResetFailedUnitContext(ctx context.Context, name string) error
	GetUnitPropertyContext(ctx context.Context, unit, property string) (*dbus.Property, error)
	GetServicePropertyContext(ctx context.Context, service, property string) (*dbus.Property, error)
	Close()
}

// slice is the unit that all daemons are below.
const slice = "gputune.slice"

// UnitName returns the name of the unit that a job's daemon is where systemd runs.
func UnitName(job string) string { return "gputune-mps-" + job + ".service" }

// systemdRuns tells whether systemd has booted the node: sd_booted(3).
func (h Host) systemdRuns() bool {
	info, err := os.Stat(h.path("/run/systemd/system"))
	return h.Systemd != nil || err == nil && info.IsDir()
}

// systemd connects to the service manager.
func (h Host) systemd(ctx context.Context) (Systemd, error) {
	if h.Systemd != nil {
		return h.Systemd(ctx)
	}
	// Its own socket first: it is there when the bus is not.
	conn, err := dbus.NewSystemdConnectionContext(ctx)
	if err != nil {
		conn, err = dbus.NewSystemConnectionContext(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("systemd: %w", err)
	}
	return conn, nil
}

// unit keeps a daemon as a transient unit.
type unit struct {
	host    Host
	spec    Spec
	manager Systemd
}

func (u *unit) name() string { return UnitName(u.spec.Job) }

// Errors of systemd's D-Bus interface.
const (
	noSuchUnit = "org.freedesktop.systemd1.NoSuchUnit"
	unitExists = "org.freedesktop.systemd1.UnitExists"
)

func isDBus(err error, name string) bool {
	var e godbus.Error
	return errors.As(err, &e) && e.Name == name
}

// start implements keeper.
func (u *unit) start(ctx context.Context, c command) error {
	properties, err := u.properties(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, u.host.limits().Ready)
	defer cancel()
	for {
		result := make(chan string, 1)
		_, err := u.manager.StartTransientUnitContext(ctx, u.name(), "fail", properties, result)
		switch {
		case err == nil:
			return u.wait(ctx, "start", result)
		case !isDBus(err, unitExists) || sleep(ctx) != nil:
			// One that has ended is forgotten in a moment.
			return fmt.Errorf("systemd: start %s: %w", u.name(), err)
		}
	}
}

// wait waits for the result of a job of systemd.
func (u *unit) wait(ctx context.Context, what string, result <-chan string) error {
	select {
	case r := <-result:
		if r != "done" {
			return fmt.Errorf("systemd: %s %s: %s", what, u.name(), r)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("systemd: %s %s: %w", what, u.name(), ctx.Err())
	}
}

// deviceAllow is an item of DeviceAllow=.
type deviceAllow struct{ Path, Access string }

// properties are those of systemd.service(5), systemd.exec(5), systemd.kill(5)
// and systemd.resource-control(5) that systemd 239 has.
func (u *unit) properties(c command) ([]dbus.Property, error) {
	// User= would give the daemon all groups that the user is in.
	setpriv := ""
	for _, place := range []string{"/usr/bin/setpriv", "/bin/setpriv"} {
		if info, err := os.Stat(u.host.path(place)); err == nil && info.Mode().IsRegular() {
			setpriv = u.host.path(place)
			break
		}
	}
	if setpriv == "" {
		return nil, errors.New("setpriv is not at /usr/bin or /bin: install util-linux")
	}
	limits := u.host.limits()
	list := []dbus.Property{
		dbus.PropDescription("MPS control daemon of job " + u.spec.Job),
		dbus.PropSlice(slice),
		dbus.PropType("simple"),
		dbus.PropExecStart([]string{
			setpriv, "--reuid=" + strconv.FormatUint(uint64(u.spec.UID), 10), "--regid=" + strconv.FormatUint(uint64(u.spec.GID), 10),
			"--clear-groups", "--inh-caps=-all", "--", c.path, "-f",
		}, true),
	}
	add := func(name string, value any) {
		list = append(list, dbus.Property{Name: name, Value: godbus.MakeVariant(value)})
	}
	add("Environment", c.environment)
	add("WorkingDirectory", "/")
	add("StandardInput", "null")
	add("StandardOutputFileDescriptor", godbus.UnixFD(c.output.Fd()))
	add("StandardErrorFileDescriptor", godbus.UnixFD(c.output.Fd()))
	add("KillMode", "control-group")
	add("SendSIGKILL", true)
	add("TimeoutStopUSec", uint64(limits.Term/time.Microsecond))
	add("CollectMode", "inactive-or-failed")
	add("UMask", uint32(0o077))
	add("NoNewPrivileges", true)
	add("LimitNOFILE", uint64(65536)) // several for each client
	// The user may do to his daemon what he wants, and it is in no job's device
	// cgroup.
	if devices := u.host.devices(u.spec.GPUs); devices != nil {
		allow := make([]deviceAllow, len(devices))
		for i, device := range devices {
			allow[i] = deviceAllow{device, "rw"}
		}
		add("DevicePolicy", "closed")
		add("DeviceAllow", allow)
	}
	return list, nil
}

// ended implements keeper.
func (u *unit) ended(ctx context.Context) error {
	state, err := u.manager.GetUnitPropertyContext(ctx, u.name(), "ActiveState")
	if err != nil {
		return fmt.Errorf("systemd: %s: %w", u.name(), err)
	}
	if text, _ := state.Value.Value().(string); text != "active" && text != "activating" {
		return fmt.Errorf("it ended before it answered: %s is %s", u.name(), plain(text))
	}
	return nil
}

// groups returns the folders of the unit's cgroup.
func (u *unit) groups(ctx context.Context) ([]string, error) {
	property, err := u.manager.GetServicePropertyContext(ctx, u.name(), "ControlGroup")
	if isDBus(err, noSuchUnit) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("systemd: %s: %w", u.name(), err)
	}
	group, _ := property.Value.Value().(string)
	if group == "" || group == "/" {
		return nil, nil
	}
	var list []string
	// The last is systemd's own hierarchy where there is no v2.
	for _, mount := range append(slices.Clone(cgroupMounts), "/sys/fs/cgroup/systemd") {
		list = append(list, filepath.Join(u.host.path(mount), group))
	}
	return list, nil
}

// members implements keeper.
func (u *unit) members(ctx context.Context) ([]int, error) {
	folders, err := u.groups(ctx)
	if err != nil {
		return nil, err
	}
	var all []int
	for _, folder := range folders {
		pids, err := readPIDs(filepath.Join(folder, "cgroup.procs"))
		if err != nil {
			return nil, err
		}
		all = append(all, pids...)
	}
	return all, nil
}

// stop implements keeper.
func (u *unit) stop(ctx context.Context, _ ownedFunc) error {
	limits := u.host.limits()
	bound, cancel := context.WithTimeout(ctx, limits.Term+limits.Kill)
	defer cancel()
	result := make(chan string, 1)
	_, err := u.manager.StopUnitContext(bound, u.name(), "replace", result)
	switch {
	case err == nil:
		err = u.wait(bound, "stop", result)
	case isDBus(err, noSuchUnit):
		return nil
	default:
		err = fmt.Errorf("systemd: stop %s: %w", u.name(), err)
	}
	if err != nil {
		if pids, e := u.members(ctx); e == nil {
			if alive, e := u.host.living(pids); e == nil && len(alive) > 0 {
				return fmt.Errorf("%w: %w", err, stuck(alive))
			}
		}
		return err
	}
	// One that was ended by force stays in the list of failed units where
	// CollectMode is not known.
	if err := u.manager.ResetFailedUnitContext(ctx, u.name()); err != nil && !isDBus(err, noSuchUnit) {
		return fmt.Errorf("systemd: reset %s: %w", u.name(), err)
	}
	return nil
}

// cgroup implements keeper.
func (u *unit) cgroup(ctx context.Context) *os.File {
	mount := u.host.cgroupMount()
	folders, err := u.groups(ctx)
	if mount == "" || err != nil {
		return nil
	}
	for _, folder := range folders {
		if f := openFolder(folder); f != nil && strings.HasPrefix(folder, mount+"/") {
			return f
		} else if f != nil {
			f.Close()
		}
	}
	return nil
}

// close implements keeper.
func (u *unit) close() { u.manager.Close() }
