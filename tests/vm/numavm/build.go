package numavm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// buildOutputKept is how much of a failed script's output an error shows, in bytes.
const buildOutputKept = 4 << 10

// runBuild runs script args… folder to its end.
func runBuild(ctx context.Context, folder, script string, args []string) error {
	out := &tail{limit: buildOutputKept}
	argv := append([]string{"--mount", "--pid", "--fork", "--mount-proc", "--kill-child=KILL", "--", script}, args...)
	cmd := exec.Command("unshare", append(argv, folder)...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Dir = folder
	c, err := startChild(cmd, filepath.Join(folder, buildPidFile))
	if err != nil {
		return err
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		c.kill()
		return fmt.Errorf("%s: %w", script, ctx.Err())
	}
	if err := os.Remove(filepath.Join(folder, buildPidFile)); err != nil {
		return err
	}
	if c.err != nil {
		return fmt.Errorf("%s %s: %w: %s", script, strings.Join(args, " "), c.err, out)
	}
	return nil
}

// buildAgent compiles the guest's agent from the tree into folder.
func buildAgent(ctx context.Context, tree, folder string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w",
		"-o", filepath.Join(folder, "numavm-agent"), "./tests/vm/cmd/numavm-agent")
	cmd.Dir = tree
	// Static, so that it runs on any suite's C library, and without what the caller's own build may have set.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOFLAGS=")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if out, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		if errors.Is(err, exec.ErrNotFound) {
			err = fmt.Errorf("%w: the guest's agent is compiled when a machine starts, so a Go toolchain must be in PATH", err)
		}
		return fmt.Errorf("building the guest's agent: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// tail keeps the end of what is written to it.
type tail struct {
	limit int

	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if extra := len(t.b) - t.limit; extra > 0 {
		t.b = append(t.b[:0], t.b[extra:]...)
	}
	return len(p), nil
}

// String is what was kept, without surrounding white space.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.b))
}
