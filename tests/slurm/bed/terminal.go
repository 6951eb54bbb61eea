package bed

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const (
	terminalRows    = 24
	terminalColumns = 80
)

// openTerminal opens a pseudo-terminal, pty(7): master is our end, slave the
// command's.
func openTerminal() (master, slave *os.File, err error) {
	// Nonblocking, so that the runtime polls it and Close ends a Read.
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("bed: open /dev/ptmx: %w", err)
	}
	master = os.NewFile(uintptr(fd), "/dev/ptmx")
	defer func() {
		if err != nil {
			_ = master.Close()
		}
	}()
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, fmt.Errorf("bed: unlock pseudo-terminal: %w", err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return nil, nil, fmt.Errorf("bed: number of pseudo-terminal: %w", err)
	}
	if slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, nil, fmt.Errorf("bed: %w", err)
	}
	return master, slave, nil
}

// resize tells a terminal's programs its size; they get SIGWINCH.
func resize(terminal *os.File, rows, columns int) error {
	raw, err := terminal.SyscallConn()
	if err != nil {
		return fmt.Errorf("bed: %w", err)
	}
	var ioctl error
	err = raw.Control(func(fd uintptr) {
		ioctl = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(rows), Col: uint16(columns)})
	})
	if err == nil {
		err = ioctl
	}
	if err != nil {
		return fmt.Errorf("bed: resize terminal to %d rows, %d columns: %w", rows, columns, err)
	}
	return nil
}
