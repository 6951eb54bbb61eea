package numavm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"time"
)

// Share is a folder of the host that the guest sees, read-only, as /host/NAME.
type Share struct {
	// Dir is the folder.
	Dir string
	// Name is letters, digits and . _ -; empty is Dir's last element.
	Name string
}

// The names of the shares that every machine has.
const (
	// TreeShare is the working tree.
	TreeShare = "tree"
	// agentShare has the agent's program.
	agentShare = "agent"
)

// GuestPath is where the guest sees the share.
func (s Share) GuestPath() string { return filepath.Join("/host", s.Name) }

var shareName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)

// resolve fills in the name, makes the folder absolute and checks both.
func (s Share) resolve() (Share, error) {
	dir, err := filepath.Abs(s.Dir)
	if err != nil {
		return s, fmt.Errorf("share %s: %w", s.Dir, err)
	}
	s.Dir = dir
	if s.Name == "" {
		s.Name = filepath.Base(s.Dir)
	}
	if !shareName.MatchString(s.Name) {
		return s, fmt.Errorf("share %s: %q cannot be its name in the guest: want letters, digits and . _ -", s.Dir, s.Name)
	}
	st, err := os.Stat(s.Dir)
	if err != nil {
		return s, fmt.Errorf("share: %w", err)
	}
	if !st.IsDir() {
		return s, fmt.Errorf("share %s is not a folder", s.Dir)
	}
	return s, nil
}

// resolveShares resolves all of them and refuses two of one name.
func resolveShares(shares []Share) ([]Share, error) {
	var out []Share
	for _, s := range shares {
		r, err := s.resolve()
		if err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(out, func(o Share) bool { return o.Name == r.Name }); i >= 0 {
			return nil, fmt.Errorf("shares %s and %s would both be %s in the guest: give one another name", out[i].Dir, r.Dir, r.GuestPath())
		}
		out = append(out, r)
	}
	return out, nil
}

// shareScript mounts folders side by side on a tmpfs, read-only, and becomes virtiofsd: sh -c shareScript sh ROOT {NAME DIR}… -- virtiofsd….
// It runs in a mount namespace of its own, so the mounts are seen by nobody else and end with it. One virtiofsd and one
// device thus serve all folders, and not even the guest's root can write to them.
const shareScript = `set -eu
root=$1; shift
mount -t tmpfs -o mode=755,size=1m numavm "$root"
while [ "$1" != -- ]; do
	mkdir "$root/$1"
	mount --bind "$2" "$root/$1"
	mount -o remount,bind,ro "$root/$1"
	shift 2
done
shift
mount -o remount,ro "$root"
exec "$@"`

// virtiofsdTimeout is how long virtiofsd may take to listen on its socket.
const virtiofsdTimeout = 30 * time.Second

// startShares starts virtiofsd for shares and returns when it listens on socket.
func startShares(r *runDir, shares []Share, socket, logFile string) (*child, error) {
	virtiofsd, err := findVirtiofsd()
	if err != nil {
		return nil, err
	}
	root := r.file(shareRoot)
	argv := []string{"--mount", "--propagation=private", "--", "sh", "-c", shareScript, "sh", root}
	for _, s := range shares {
		argv = append(argv, s.Name, s.Dir)
	}
	// sandbox=chroot: the namespaces that the other sandbox wants cannot be had in a container.
	argv = append(argv, "--", virtiofsd, "--socket-path="+socket, "-o", "source="+root, "-o", "sandbox=chroot", "-o", "cache=auto", "-o", "announce_submounts")
	log, err := os.Create(logFile)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command("unshare", argv...)
	cmd.Stdout, cmd.Stderr = log, log
	c, err := startChild(cmd, r.file("virtiofsd"+pidSuffix))
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(virtiofsdTimeout); ; {
		_, err := os.Stat(socket)
		if err == nil {
			return c, nil
		}
		if !errors.Is(err, os.ErrNotExist) || time.Now().After(deadline) {
			c.kill()
			return nil, fmt.Errorf("virtiofsd does not listen after %s: %w: %s", virtiofsdTimeout, err, fileTail(logFile))
		}
		select {
		case <-c.done:
			return nil, fmt.Errorf("virtiofsd: %w: %s", c.err, fileTail(logFile))
		case <-time.After(5 * time.Millisecond):
		}
	}
}
