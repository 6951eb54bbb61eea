package agent

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// Notifier tells the service manager how the agent is, as sd_notify(3).
type Notifier interface {
	// Notify sends assignments, one a line.
	Notify(state string)
	// Watchdog is within which time it wants to hear something, 0 never.
	Watchdog() time.Duration
}

// Systemd is the service manager that started this process; where none has, it
// does nothing.
type Systemd struct{ Log *slog.Logger }

// Notify implements Notifier.
func (s Systemd) Notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		s.Log.Warn("the service manager cannot be told", "error", err)
	}
}

// Watchdog implements Notifier.
func (s Systemd) Watchdog() time.Duration {
	within, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		s.Log.Warn("the service manager's watchdog is not understood", "error", err)
	}
	return within
}

// reloading is the state of a service that reads its configuration again; ready
// ends it (sd_notify(3), RELOADING=1).
func reloading() string {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return daemon.SdNotifyReloading
	}
	return fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, now.Nano()/1000)
}
