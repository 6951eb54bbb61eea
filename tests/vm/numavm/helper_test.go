package numavm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gputune/tests/vm/internal/agent"
	"gputune/tests/vm/internal/wire"
)

// roleVariable makes the test's own binary play a part.
const roleVariable = "NUMAVM_TEST_ROLE"

func TestMain(m *testing.M) {
	role := os.Getenv(roleVariable)
	if role == "" {
		os.Exit(m.Run())
	}
	if err := play(role); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func play(role string) error {
	switch role {
	case "guest": // QEMU and a guest in one: an agent on QEMU's socket
		conn, err := inherited()
		if err != nil {
			return err
		}
		term := make(chan os.Signal, 1)
		signal.Notify(term, syscall.SIGTERM)
		go func() { // the guest powers off
			<-term
			os.Exit(0)
		}()
		return agent.Serve(conn, agent.Options{Greeting: wire.Greeting{Uptime: 1, Kernel: "fake"}, Log: slog.Default()})
	case "silent-guest": // takes what it is sent and says nothing
		conn, err := inherited()
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, conn)
		return err
	case "ending-guest": // QEMU closes its end of the stream, and ends a little later
		conn, err := inherited()
		if err != nil {
			return err
		}
		err = conn.Close()
		time.Sleep(500 * time.Millisecond)
		return err
	case "no-guest":
		return errors.New("no such machine")
	case "runner": // starts a child, says which, and waits to be killed
		c, err := startChild(exec.Command("sleep", "1000"), os.Getenv("PID_FILE"))
		if err != nil {
			return err
		}
		fmt.Println(c.process.Pid)
		select {}
	case "locker": // takes a lock, says so, and waits to be killed
		_, err := tryLock(os.Getenv("LOCK_FILE"), syscall.LOCK_EX)
		if err != nil {
			return err
		}
		fmt.Println("locked")
		select {}
	}
	return fmt.Errorf("no role %q", role)
}

// inherited is the socket that a session passes to QEMU.
func inherited() (net.Conn, error) {
	f := os.NewFile(3, "agent")
	defer f.Close() // FileConn has its own, which commands do not inherit
	return net.FileConn(f)
}

// asRole is a command that runs this binary in a role.
func asRole(t *testing.T, role string, env ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), append(env, roleVariable+"="+role)...)
	return cmd
}

// startRole starts this binary in a role and returns the first line that it prints. It is killed with the test.
func startRole(t *testing.T, role string, env ...string) (*exec.Cmd, string) {
	t.Helper()
	cmd := asRole(t, role, env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var line string
	if _, err := fmt.Fscanln(out, &line); err != nil {
		t.Fatal(err)
	}
	return cmd, line
}

// running says whether a process runs and is no zombie.
func running(pid int) bool {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// eventually fails the test if cond does not hold within 10 s.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not after 10 s: %s", what)
		}
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
