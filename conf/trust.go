package conf

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// trust refuses a file that says to root what others than root have written, or
// may: it names folders that root writes to and what jobs are allowed. A program
// that is not root trusts its own user's files, too. sudoers(5) and sshd's
// StrictModes are the models.
func trust(file *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return &os.PathError{Op: "fstat", Path: file.Name(), Err: err}
	}
	if st.Uid != 0 && st.Uid != uint32(os.Geteuid()) {
		return fmt.Errorf("%s: owner is user %d: want root (chown root)", file.Name(), st.Uid)
	}
	if st.Mode&(unix.S_IWGRP|unix.S_IWOTH) != 0 {
		return fmt.Errorf("%s: mode %#o: its group or others may write to it: want 0644 or less (chmod go-w)", file.Name(), st.Mode&0o7777)
	}
	return nil
}
