package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gputune/internal/setting"
)

// helperVariable makes the test binary a program that works on a ledger:
// "apply|release JOB KEY=VALUE…", or "all".
const helperVariable = "LEDGER_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if command := os.Getenv(helperVariable); command != "" {
		runtime.LockOSThread() // strace counts the calls of each thread
		if err := helper(strings.Fields(command)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func helper(words []string) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	l, err := Open("state", Options{Root: dir, BootID: "b", Resolve: fileSettings(dir), LockWait: time.Minute})
	if err != nil {
		return err
	}
	ctx := context.Background()
	switch words[0] {
	case "apply":
		var changes []Change
		for _, word := range words[2:] {
			key, value, _ := strings.Cut(word, "=")
			s, err := fileSettings(dir)(key)
			if err != nil {
				return err
			}
			changes = append(changes, Change{Setting: s, Value: value})
		}
		_, err = l.Apply(ctx, words[1], changes)
	case "release":
		_, err = l.Release(ctx, words[1])
	case "all":
		_, err = l.ReleaseAll(ctx, nobody)
	}
	return err
}

// fileSetting is a value in a file, which several programs share as they do the
// state of a GPU. A write is one system call.
type fileSetting struct{ dir, key string }

func fileSettings(dir string) func(string) (setting.Setting, error) {
	node := setting.NewEnvironment(filepath.Join(dir, "root"), nil)
	return func(key string) (setting.Setting, error) {
		if err := setting.CheckKey(key); err != nil {
			return nil, err
		}
		if kind, _, _ := strings.Cut(key, "/"); kind != "gpu" && kind != "host" {
			return setting.Parse(node, key)
		}
		return fileSetting{dir, key}, nil
	}
}

func (f fileSetting) Key() string { return f.key }

func (f fileSetting) Traits() setting.Traits {
	t := setting.Traits{Needs: setting.WholeGPU, Lifetime: setting.UntilReboot}
	if kindOf(f.key) == "lock" {
		t.WriteOnly, t.Neutral = true, "free"
	}
	return t
}

func (f fileSetting) Check(_ context.Context, value string) (string, error) { return value, nil }

func (f fileSetting) path() string {
	return filepath.Join(f.dir, "machine", strings.ReplaceAll(f.key, "/", "_"))
}

func (f fileSetting) Read(context.Context) (string, error) {
	text, err := os.ReadFile(f.path())
	if errors.Is(err, fs.ErrNotExist) {
		return standard(f.key), nil
	}
	return strings.TrimSpace(string(text)), err
}

// Write pads the value, so that one pwrite replaces another value whole.
func (f fileSetting) Write(_ context.Context, value string) error {
	file, err := os.OpenFile(f.path(), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.WriteAt(fmt.Appendf(nil, "%-15s\n", value), 0)
	return err
}

// program starts the test binary as a program on the ledger in dir.
func program(t testing.TB, dir string, before []string, words ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := append(slices.Clone(before), self)
	c := exec.Command(args[0], args[1:]...)
	c.Dir = dir
	c.Env = append(os.Environ(), helperVariable+"="+strings.Join(words, " "), "GOMAXPROCS=1", "GOGC=off")
	return c
}

// atStart tells what is not as it was.
func atStart(t testing.TB, dir string) (left []string) {
	t.Helper()
	names, err := os.ReadDir(filepath.Join(dir, "machine"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dir, "machine", name.Name()))
		if err != nil {
			t.Fatal(err)
		}
		want := "100"
		if strings.HasSuffix(name.Name(), "lock") {
			want = "free"
		}
		if got := strings.TrimSpace(string(text)); got != want && got != "" {
			left = append(left, name.Name()+" is "+got)
		}
	}
	for file, want := range nodeFiles {
		text, err := os.ReadFile(filepath.Join(dir, "root", file))
		if err != nil {
			t.Fatal(err)
		}
		// Unlike the kernel's, a file keeps what is behind a shorter line.
		want, _, _ = strings.Cut(want, "\n")
		if got, _, _ := strings.Cut(string(text), "\n"); got != want {
			left = append(left, file+" is "+got)
		}
	}
	for _, folder := range []string{"jobs", "aside"} {
		names, err := os.ReadDir(filepath.Join(dir, "state", folder))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		for _, name := range names {
			left = append(left, folder+"/"+name.Name())
		}
	}
	return left
}

func machineDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "machine"), 0o700); err != nil {
		t.Fatal(err)
	}
	for file, text := range nodeFiles {
		file = filepath.Join(dir, "root", file)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// nodeFiles are files of a made-up kernel for settings of the node.
var nodeFiles = map[string]string{
	"proc/sys/vm/swappiness":                                             "60",
	"sys/devices/system/cpu/online":                                      "0-7",
	"sys/devices/system/cpu/cpufreq/policy0/scaling_governor":            "powersave",
	"sys/devices/system/cpu/cpufreq/policy0/scaling_available_governors": "performance powersave",
	"sys/devices/system/cpu/cpufreq/policy0/scaling_min_freq":            "800000",
	"sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq":            "3800000",
	"sys/devices/system/cpu/cpufreq/policy0/cpuinfo_min_freq":            "800000",
	"sys/devices/system/cpu/cpu3/power/pm_qos_resume_latency_us":         "0",
	"sys/bus/pci/devices/0000:21:00.0/msi_irqs/42":                       "msix",
	"proc/irq/42/smp_affinity_list":                                      "0-7",
	"sys/devices/system/node/node1/meminfo": "Node 1 MemTotal: 1048576 kB\nNode 1 MemFree: 900000 kB\nNode 1 Active(file): 0 kB\n" +
		"Node 1 Inactive(file): 0 kB\nNode 1 SReclaimable: 0 kB",
	"sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages":   "3",
	"sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages": "3",
}

// TestProcesses has two processes at a time apply and release jobs on shared
// keys, kills half of them at random moments, and recovers.
func TestProcesses(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	dir := machineDir(t)
	var mu sync.Mutex
	killedSome := 0
	var group sync.WaitGroup
	for worker := range 2 {
		random := rand.New(rand.NewPCG(7, uint64(worker)))
		group.Go(func() {
			job := fmt.Sprint(worker + 1)
			for range rounds {
				words := []string{"release", job}
				if random.IntN(2) == 0 {
					words = []string{"apply", job, "gpu/GPU-a/exact=200", "gpu/GPU-a/lock=5-5", fmt.Sprintf("gpu/GPU-%s/exact=300", job), "host/exact=7"}
				}
				c := program(t, dir, nil, words...)
				var output bytes.Buffer
				c.Stderr = &output
				if err := c.Start(); err != nil {
					t.Error(err)
					return
				}
				kill := random.IntN(2) == 0
				if kill {
					time.Sleep(time.Duration(random.IntN(5_000)) * time.Microsecond)
					_ = c.Process.Kill()
				}
				err := c.Wait()
				if err != nil && !kill {
					t.Errorf("%v: %v: %s", words, err, output.String())
				}
				if err != nil && kill {
					mu.Lock()
					killedSome++
					mu.Unlock()
				}
			}
		})
	}
	group.Wait()
	if output, err := program(t, dir, nil, "all").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	if left := atStart(t, dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	t.Logf("%d of %d processes killed", killedSome, 2*rounds)
}

// TestKillAtEverySystemCall has strace kill the program when it enters the nth
// system call of those that touch files or locks, for every n.
func TestKillAtEverySystemCall(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("needs strace")
	}
	if testing.Short() {
		t.Skip("takes a minute")
	}
	// strace counts the calls of each name, in each thread.
	calls := []string{"openat", "write", "pwrite64", "fsync", "renameat", "mkdirat", "unlinkat", "flock", "fcntl", "ftruncate"}
	// The node's settings open many files for each that they write.
	changing := []string{"write", "fsync", "renameat", "unlinkat"}
	if output, err := exec.Command(strace, "-f", "-o", os.DevNull, "true").CombinedOutput(); err != nil {
		t.Skipf("strace does not work here: %s", output)
	}
	apply := []string{"apply", "1", "gpu/GPU-a/exact=200", "gpu/GPU-a/lock=5-5", "host/exact=7"}
	node := []string{
		"apply", "1", "sysctl/vm.swappiness=1", "cpufreq/policy0/governor=performance", "cpufreq/policy0/min=max", "cpuidle/cpu3/latency=n/a",
		"irq/0000:21:00.0/42/affinity=4-5", "hugepages/node1/2048kB=40", "gpu/GPU-a/exact=200",
	}
	join := []string{"apply", "2", "gpu/GPU-a/exact=200", "gpu/GPU-a/lock=5-5"}
	tried := 0
	for _, test := range []struct {
		name   string
		before [][]string
		killed []string
		calls  []string
	}{
		{"apply", nil, apply, calls},
		{"release", [][]string{apply}, []string{"release", "1"}, calls},
		{"release of one of two", [][]string{apply, join}, []string{"release", "1"}, calls},
		{"apply to the node", nil, node, changing},
		{"release of the node", [][]string{node}, []string{"release", "1"}, changing},
		{"release all", [][]string{apply, join}, []string{"all"}, calls},
	} {
		for _, call := range test.calls {
			for n := 1; killAtCall(t, strace, call, n, test.before, test.killed); n++ {
				tried++
			}
		}
	}
	t.Logf("%d system calls", tried)
	if tried < 100 {
		t.Errorf("only %d system calls", tried)
	}
}

// killAtCall kills a program at its nth call of a name and recovers. It returns
// false if the program has fewer.
func killAtCall(t *testing.T, strace, call string, n int, before [][]string, killed []string) bool {
	t.Helper()
	dir := machineDir(t)
	for _, words := range before {
		if output, err := program(t, dir, nil, words...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", words, err, output)
		}
	}
	inject := fmt.Sprintf("inject=%s:signal=KILL:when=%d", call, n)
	c := program(t, dir, []string{strace, "-f", "-o", os.DevNull, "-e", "trace=" + call, "-e", inject}, killed...)
	output, err := c.CombinedOutput()
	if err == nil {
		return false
	}
	if !strings.Contains(err.Error(), "killed") {
		t.Fatalf("%v at %s %d: %v: %s", killed, call, n, err, output)
	}
	for _, words := range [][]string{{"release", "2"}, {"release", "1"}} {
		if output, err := program(t, dir, nil, words...).CombinedOutput(); err != nil {
			t.Fatalf("%v killed at %s %d, then %v: %v: %s", killed, call, n, words, err, output)
		}
	}
	if left := atStart(t, dir); len(left) > 0 {
		t.Fatalf("%v killed at %s %d: left %v", killed, call, n, left)
	}
	return true
}
