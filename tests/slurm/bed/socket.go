package bed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// listensTCP reports whether somebody listens on a TCP port: local address and
// state are the second and fourth field in /proc/net/tcp, proc_pid_net(5).
func (p procfs) listensTCP(port int) (bool, error) {
	const listen = "0A" // TCP_LISTEN, include/net/tcp_states.h
	suffix := fmt.Sprintf(":%04X", port)
	for _, name := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(filepath.Join(p.root, "net", name))
		if errors.Is(err, os.ErrNotExist) && name == "tcp6" {
			continue // a kernel without IPv6
		}
		if err != nil {
			return false, fmt.Errorf("bed: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) > 3 && strings.HasSuffix(fields[1], suffix) && fields[3] == listen {
				return true, nil
			}
		}
	}
	return false, nil
}

// listensUnix reports whether somebody listens on a socket file: flags and path
// are the fourth and eighth field in /proc/net/unix.
func (p procfs) listensUnix(path string) (bool, error) {
	const acceptConnections = "00010000" // __SO_ACCEPTCON, include/linux/net.h
	text, err := os.ReadFile(filepath.Join(p.root, "net", "unix"))
	if err != nil {
		return false, fmt.Errorf("bed: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) > 7 && fields[3] == acceptConnections && strings.Join(fields[7:], " ") == path {
			return true, nil
		}
	}
	return false, nil
}
