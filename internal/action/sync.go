package action

import (
	"context"
	"errors"
	"os/exec"
	"syscall"
	"time"
)

// Syncer writes what waits for the disks. It returns when that is done or, with
// the context's error, when the context ends.
type Syncer func(ctx context.Context) error

// SyncProgram runs sync(1).
//
// sync(2) cannot be stopped: with a file server that does not answer it never
// returns, and neither would a program that called it ever end. So a child does
// it, which is left alone after the deadline, holds nothing of the caller's and
// ends when the kernel lets it.
func SyncProgram(ctx context.Context) error {
	c := exec.Command("/bin/sync")
	c.Dir = "/"
	c.Env = []string{}
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		_ = c.Process.Kill() // takes effect when the kernel is done with it
		return ctx.Err()
	}
}

// sync tells whether everything was written in time. Only the caller's own
// deadline is an error.
func (h Host) sync(ctx context.Context, limit time.Duration) (done bool, err error) {
	do := h.Sync
	if do == nil {
		do = SyncProgram
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = do(limited)
	switch {
	case ctx.Err() != nil:
		return false, ctx.Err()
	case errors.Is(err, context.DeadlineExceeded):
		return false, nil
	default:
		return err == nil, err
	}
}
