package agent

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"gputune/internal/folder"
	"gputune/internal/follow"
)

// Lock makes this process the node's only agent until it ends or calls unlock. run
// is paths.run. The kernel gives the lock back whatever becomes of the process.
func Lock(run string) (unlock func(), err error) {
	f := folder.Folder{Dir: run, Mode: 0o755}
	if err := f.MakeBase(); err != nil {
		return nil, err
	}
	file, err := f.Open(follow.AgentLock, unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder := make([]byte, 20)
		n, _ := file.ReadAt(holder, 0)
		file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: another gputuned runs (pid %s)", file.Name(), strings.TrimSpace(string(holder[:n])))
		}
		return nil, fmt.Errorf("%s: %w", file.Name(), err)
	}
	if err := file.Truncate(0); err == nil {
		_, _ = fmt.Fprintln(file, os.Getpid()) // a full disk costs the name in an error, no more
	}
	return func() { file.Close() }, nil
}
