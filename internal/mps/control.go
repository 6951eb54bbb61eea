package mps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// listServers is the question that tells whether a daemon answers.
const listServers = "get_server_list"

// readOut is how long a client's last words are waited for once it has ended: a
// process that it left could hold the pipe.
const readOut = 500 * time.Millisecond

// maxAnswer bounds what the user's daemon can make root read, in bytes.
const maxAnswer = 64 << 10

// ask gives the daemon a command and returns what it prints. An error is that it
// does not answer, never that it refuses.
func (d *daemon) ask(ctx context.Context, text string) (string, error) {
	return d.askWithin(ctx, d.host.limits().Answer, text)
}

// askWithin runs the control program as the client of the daemon's socket. It is
// the user's process, as the daemon may be anything that the user has put in its
// place: another user's can neither be stopped nor be talked into something by it.
func (d *daemon) askWithin(ctx context.Context, limit time.Duration, text string) (string, error) {
	if d.program == "" {
		var err error
		if d.program, err = d.host.FindProgram(d.spec.Program); err != nil {
			return "", err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	word, _, _ := strings.Cut(text, " ")
	var answer, complaint bounded
	run := func(cgroup *os.File) error {
		c := exec.CommandContext(ctx, d.program)
		c.Env, c.Dir = d.environment(), "/"
		c.Stdin = strings.NewReader(text + "\n")
		c.Stdout, c.Stderr = &answer, &complaint
		c.WaitDelay = readOut
		c.SysProcAttr = asUser(d.spec)
		if cgroup != nil {
			c.SysProcAttr.UseCgroupFD, c.SysProcAttr.CgroupFD = true, int(cgroup.Fd())
		}
		return c.Run()
	}
	cgroup := d.keeper.cgroup(ctx)
	if cgroup != nil {
		defer cgroup.Close()
	}
	err := run(cgroup)
	var status *exec.ExitError
	if err != nil && cgroup != nil && ctx.Err() == nil && !errors.As(err, &status) {
		err = run(nil) // into a cgroup that systemd is about to remove, nobody is let
	}
	switch {
	case err == nil:
		return strings.TrimSpace(answer.String()), nil
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s: no answer within %v", word, limit)
	case errors.As(err, &status):
		return "", fmt.Errorf("%s: %w: %s", word, err, plain(complaint.String()))
	}
	return "", fmt.Errorf("%s: %w", word, err)
}

// asUser makes a process the user's, with his group and no other, in a session
// of its own.
func asUser(s Spec) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: s.UID, Gid: s.GID}}
}

// bounded keeps the beginning of what is written to it.
type bounded struct{ bytes.Buffer }

// Write implements io.Writer. Too much is an error, which ends the writer.
func (b *bounded) Write(text []byte) (int, error) {
	if b.Len()+len(text) > maxAnswer {
		return 0, fmt.Errorf("more than %d bytes", maxAnswer)
	}
	return b.Buffer.Write(text)
}
