package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"gputune/internal/ledger"
	"gputune/internal/setting"
)

// programVariable makes the test binary a program that works on a ledger.
const programVariable = "KERNEL_TEST_PROGRAM"

// order is what such a program does: Release, or else apply Wishes.
type order struct {
	State   string
	Release bool
	Wishes  []setting.Wish
}

func TestMain(m *testing.M) {
	flag.Parse()
	if text := os.Getenv(programVariable); text != "" {
		runtime.LockOSThread() // strace counts the calls of each thread
		if err := program(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(alone(m.Run))
}

// alone keeps two runs on one machine from meeting.
func alone(run func() int) int {
	lock, err := os.OpenFile(filepath.Join(os.TempDir(), "gputune-kernel-test.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer lock.Close()
	return run()
}

func program(text string) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	l, env, err := open(o.State)
	if err != nil {
		return err
	}
	if o.Release {
		_, err = l.Release(context.Background(), job)
		return err
	}
	changes, err := changes(env, o.Wishes)
	if err != nil {
		return err
	}
	_, err = l.Apply(context.Background(), job, changes)
	return err
}

const job = "4711"

func open(state string) (*ledger.Ledger, *setting.Environment, error) {
	env := setting.NewEnvironment("/", nil)
	l, err := ledger.Open(state, ledger.Options{
		Resolve: func(key string) (setting.Setting, error) { return setting.Parse(env, key) },
	})
	return l, env, err
}

func changes(env *setting.Environment, wishes []setting.Wish) ([]ledger.Change, error) {
	list := make([]ledger.Change, 0, len(wishes))
	for _, wish := range wishes {
		s, err := setting.Parse(env, wish.Key)
		if err != nil {
			return nil, err
		}
		list = append(list, ledger.Change{Setting: s, Value: wish.Value})
	}
	return list, nil
}

// run runs the test binary as a program, behind the words before.
func run(before []string, o order) ([]byte, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	argv := append(append([]string{}, before...), self)
	c := exec.Command(argv[0], argv[1:]...)
	c.Env = append(os.Environ(), programVariable+"="+string(text), "GOMAXPROCS=1", "GOGC=off")
	return c.CombinedOutput()
}

// needRoot skips what only root can do.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// must fails the test.
func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
