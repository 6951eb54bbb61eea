package fakenvml

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// built is the library of all tests; each test has links to it in a folder of
// its own.
var built Library

// asCaller makes this test program one that uses NVML, as the tests' children.
const asCaller = "FAKENVML_TEST_CALLER"

func TestMain(m *testing.M) {
	if os.Getenv(asCaller) != "" {
		caller(os.Args[1:])
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Getenv(hardware) != "" { // there may be no compiler
		return m.Run()
	}
	folder, err := os.MkdirTemp("", "fakenvml-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer func() { _ = os.RemoveAll(folder) }()
	if built, err = Build(context.Background(), folder); err != nil {
		fmt.Println(err)
		return 1
	}
	return m.Run()
}

// newLibrary is a library in a folder of its own with n H200, that other users
// can read.
func newLibrary(t *testing.T, d Description) Library {
	t.Helper()
	folder, err := os.MkdirTemp("", "fakenvml-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	if err := os.Chmod(folder, 0o755); err != nil { //nolint:gosec // children run as other users
		t.Fatal(err)
	}
	for _, name := range []string{"libnvidia-ml.so.1", "fakenvml"} {
		// A copy, not a link: the description is beside what a link points to.
		data, err := os.ReadFile(built.file(name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(folder+"/"+name, data, 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	l := Library{Folder: folder}
	if err := l.Describe(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	return l
}

// needRoot skips a test that sets something.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: NVML refuses sets to others")
	}
}

// callerEnviron makes a child a caller, that does not sleep for a second at
// its end when it was built with the race detector.
func callerEnviron() []string { return []string{asCaller + "=1", "GORACE=atexit_sleep_ms=0"} }

func command(t *testing.T, l Library, calls ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", calls...)
	cmd.Args[0] = "caller"
	cmd.Env = append(callerEnviron(), l.Environ()...)
	return cmd
}

// ask has a process of its own make calls, in order, and returns its lines.
func ask(t *testing.T, l Library, calls ...string) []string {
	t.Helper()
	cmd := command(t, l, calls...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%q: %v\n%s%s", calls, err, stdout.String(), stderr.String())
	}
	var lines []string
	for scanner := bufio.NewScanner(&stdout); scanner.Scan(); {
		lines = append(lines, scanner.Text())
	}
	if stderr.Len() > 0 {
		lines = append(lines, "stderr: "+strings.TrimSpace(stderr.String()))
	}
	return lines
}

// exchange is a call and what it answers.
type exchange struct{ call, want string }

func check(t *testing.T, l Library, exchanges ...exchange) {
	t.Helper()
	calls := make([]string, len(exchanges))
	for i, e := range exchanges {
		calls[i] = e.call
	}
	got := ask(t, l, calls...)
	if len(got) != len(exchanges) {
		t.Fatalf("%d answers to %d calls: %q", len(got), len(exchanges), got)
	}
	for i, e := range exchanges {
		if got[i] != e.want {
			t.Errorf("%s: got %q, want %q", e.call, got[i], e.want)
		}
	}
}

// compile makes a program of a C file below testdata that is linked with the
// library.
func compile(t *testing.T, l Library, source string, flags ...string) string {
	t.Helper()
	header, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), strings.TrimSuffix(source, ".c"))
	args := append([]string{
		"-std=gnu11", "-D_GNU_SOURCE", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations",
		"-isystem", filepath.Join(strings.TrimSpace(string(header)), "pkg", "nvml"),
		filepath.Join("testdata", source), l.Path(), "-pthread", "-o", program,
	}, flags...)
	if out, err := exec.CommandContext(t.Context(), "cc", args...).CombinedOutput(); err != nil {
		t.Fatalf("compiling: %v\n%s", err, out)
	}
	return program
}

func stateText(t *testing.T, l Library) string {
	t.Helper()
	text, err := l.StateText()
	if err != nil {
		t.Fatal(err)
	}
	return text
}
