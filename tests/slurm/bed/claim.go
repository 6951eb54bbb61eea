package bed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// claims are names and ports that this bed has for itself among all beds on the
// machine. A claim is a listening socket in Linux's abstract namespace
// (unix(7)): it needs no file and ends with the process that holds it.
type claims struct {
	mu        sync.Mutex
	listeners []net.Listener
}

var errClaimed = errors.New("claimed by another bed")

func (c *claims) take(what string) error {
	listener, err := net.Listen("unix", "@gputune-bed/"+what)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("bed: %s: %w", what, errClaimed)
	}
	if err != nil {
		return fmt.Errorf("bed: claim %s: %w", what, err)
	}
	c.mu.Lock()
	c.listeners = append(c.listeners, listener)
	c.mu.Unlock()
	return nil
}

// name claims a node name, waiting for a bed that has it.
func (c *claims) name(ctx context.Context, node string) error {
	for {
		err := c.take("node/" + node)
		if !errors.Is(err, errClaimed) {
			return err
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("%w; set another Options.Node: %w", err, context.Cause(ctx))
		}
	}
}

// freeName claims a node name that no bed has.
func (c *claims) freeName() (string, error) {
	const attempts = 10
	var err error
	for range attempts {
		node := fmt.Sprintf("bed%05d", rand.IntN(100_000))
		if err = c.take("node/" + node); err == nil {
			return node, nil
		}
	}
	return "", err
}

// jobs claims a thousand job numbers and returns the first. MaxJobId is at most
// 67,043,328 (slurm.conf(5)).
func (c *claims) jobs() (int, error) {
	const attempts, ranges, size = 100, 60_000, 1000
	var err error
	for range attempts {
		first := size * (1 + rand.IntN(ranges))
		if err = c.take("jobs/" + strconv.Itoa(first)); err == nil {
			return first, nil
		}
	}
	return 0, err
}

// port claims a TCP port that nobody listens on. It is below the range that
// the kernel gives to outgoing connections (32768 upwards by default,
// ip_local_port_range), so that none of those takes it before the daemon does.
func (c *claims) port() (int, error) {
	const attempts, first, last = 100, 20_000, 32_000
	var err error
	for range attempts {
		port := first + rand.IntN(last-first)
		if err = c.take("port/" + strconv.Itoa(port)); err != nil {
			continue
		}
		var listener net.Listener
		if listener, err = net.Listen("tcp4", fmt.Sprintf(":%d", port)); err == nil {
			return port, listener.Close()
		}
	}
	return 0, fmt.Errorf("bed: no free TCP port between %d and %d: %w", first, last, err)
}

func (c *claims) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, listener := range c.listeners {
		_ = listener.Close() // an abstract socket leaves nothing behind
	}
	c.listeners = nil
}
