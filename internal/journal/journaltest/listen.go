// Package journaltest is a stand-in for systemd's journal, for tests.
package journaltest

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"testing"
)

// Listen returns a journal's socket at path, in place of one that may be there, until
// the test ends. Nobody reads it but who calls its Read.
func Listen(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	return socket
}
