package numavm

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// consoleKept is how much of a console an error shows, in bytes.
const consoleKept = 4 << 10

// MachineError is returned by calls on a machine that has ended or stopped answering.
type MachineError struct {
	// Reason is what happened.
	Reason string
	// Console is the end of what the guest's kernel and systemd wrote.
	Console string
}

// Error has the reason and the console's end.
func (e *MachineError) Error() string {
	if e.Console == "" {
		return "virtual machine: " + e.Reason
	}
	return "virtual machine: " + e.Reason + "; its console ends with:\n" + e.Console
}

var panicPattern = regexp.MustCompile(`(?m)Kernel panic - not syncing: (.*)$`)

// endReason says why a machine ended, from its console and QEMU's own words.
func endReason(console string, qemuErr error, qemuLog string) string {
	if m := panicPattern.FindStringSubmatch(console); m != nil {
		return "the guest's kernel panicked: " + strings.TrimSpace(m[1])
	}
	if qemuErr != nil {
		return fmt.Sprintf("QEMU ended: %v: %s", qemuErr, qemuLog)
	}
	return "the guest powered off or restarted"
}

// fileTail is the end of a file as text, or why there is none: for error messages only.
func fileTail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err == nil && size > consoleKept {
		_, err = f.Seek(-consoleKept, io.SeekEnd)
		if err != nil {
			return err.Error()
		}
	} else if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err.Error()
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	b = bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n"))
	return strings.TrimSpace(strings.ToValidUTF8(string(b), "?"))
}
