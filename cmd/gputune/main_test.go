package main

import (
	"os"
	"os/exec"
	"testing"
)

// asProgram makes the test's program gputune itself.
const asProgram = "GPUTUNE_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		// What it executes sees an environment without it.
		if err := os.Unsetenv(asProgram); err != nil {
			panic(err)
		}
		main()
	}
	os.Exit(m.Run())
}

// gputune returns gputune as a process of its own, with a bare environment and
// what is given.
func gputune(t *testing.T, environment []string, arguments ...string) *exec.Cmd {
	t.Helper()
	command := exec.CommandContext(t.Context(), "/proc/self/exe", arguments...)
	command.Env = append([]string{asProgram + "=1", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, environment...)
	return command
}
