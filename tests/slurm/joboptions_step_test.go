//go:build slurm

package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gputune/tests/slurm/bed"
	"gputune/tests/slurm/site"
)

// Notices and the options of jobs need no core.
func TestJobOptionsDoNotLoadTheCore(t *testing.T) {
	s := startProlog(t, `printf 'warn\nhalf\n' >$job.notice`, site.Options{})
	if text := mapsOfStep(t, s.Site, "--gpu-clocks=low"); strings.Contains(text, "libgputune.so") || !strings.Contains(text, "spank_gputune.so") {
		t.Errorf("slurmstepd has mapped\n%s", text)
	}
}

func mapsOfStep(t *testing.T, s *site.Site, arguments ...string) string {
	t.Helper()
	var text string
	duringStep(t, s, func(_ *bed.Cmd, stepd int) { text = maps(t, stepd) }, arguments...)
	return text
}

// Slurm can lock all memory of slurmstepd, which then has a Go runtime in it.
func TestLockedMemory(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		parameter string
		most      int // KiB locked that the core may add
	}{
		"all":          {"slurmstepd_memlock_all", 30 << 10},
		"at its start": {"slurmstepd_memlock", 1 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, site.Options{Bed: bed.Options{ExtraSlurmConf: []string{"LaunchParameters=" + c.parameter}}})
			locked := func(arguments ...string) (kib int) {
				duringStep(t, s, func(_ *bed.Cmd, stepd int) {
					text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", stepd))
					if err != nil {
						t.Fatal(err)
					}
					match := regexp.MustCompile(`Locked:\s*(\d+) kB`).FindSubmatch(text)
					if match == nil {
						t.Fatalf("no Locked in\n%s", text)
					}
					if kib, err = strconv.Atoi(string(match[1])); err != nil {
						t.Fatal(err)
					}
				}, arguments...)
				return kib
			}
			without := locked("--gpus=1")
			if without == 0 {
				t.Skip("this Slurm locks nothing")
			}
			with := locked("--gpus=1", "--gpu-numa-bind")
			t.Logf("locked: %d KiB without the core, %d KiB with it", without, with)
			if with-without > c.most {
				t.Errorf("the core adds %d KiB of locked memory, want at most %d", with-without, c.most)
			}
		})
	}
}

// A standard error that nobody reads holds a task for a second, not for ever.
func TestFullStandardError(t *testing.T) {
	s := startProlog(t, "{ echo warn; seq 12000; } >$job.notice", site.Options{})
	fifo := filepath.Join(s.Dir, "work", "fifo")
	if err := unix.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(fifo, os.O_RDWR|unix.O_NONBLOCK, 0) // and never reads
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for task := range 4 { // a name for each task makes slurmstepd open it, not srun
		if err := os.Symlink(fifo, fmt.Sprintf("%s%d", fifo, task)); err != nil {
			t.Fatal(err)
		}
	}
	begin := time.Now()
	result, err := s.Run(t.Context(), "srun", "-n4", "-O", "--gpus=1", "--gpu-numa-bind=verbose", "-e", fifo+"%t", "echo", "ran")
	if err != nil || result.Stdout != strings.Repeat("ran\n", 4) {
		t.Fatalf("%v, %v", result, err)
	}
	if took := time.Since(begin); took > 15*time.Second {
		t.Errorf("after %s", took)
	}
	poll := []unix.PollFd{{Fd: int32(reader.Fd()), Events: unix.POLLOUT}}
	if n, err := unix.Poll(poll, 0); err != nil || n != 0 {
		t.Errorf("the pipe was not full: nothing was tested (%d, %v)", n, err)
	}
}

// "off" beside items that are not accepted is a value that is not accepted.
func TestOffWithOtherItems(t *testing.T) {
	t.Parallel()
	s := start(t, site.Options{Arguments: []string{"program=/nonexistent/gputune"}, Bed: bed.Options{ConstrainDevices: true}})
	for _, value := range []string{"off,mem=bind", "cpus=exclusive,off,verbose", "off,strict"} {
		result := srun(t, s, "-Q", "-n2", "--gpus=1", "--gpu-numa-bind="+value, "sh", "-c", "env | grep GPUTUNE_; echo ran")
		if result.Stdout != "ran\nran\n" || result.Stderr != "" {
			t.Errorf("%s: %v", value, result)
		}
	}
	for _, value := range []string{"off,junk", "junk,off", "off,on", "off,"} {
		command := s.Command("srun", "-Q", "-n2", "--gpus=1", "echo", "ran")
		command.Env = []string{"SLURM_SPANK__SLURM_SPANK_OPTION_gputune_gpu_numa_bind=" + value}
		result, err := command.Run(t.Context())
		if err != nil || result.Code != 1 || result.Stdout != "" || !strings.Contains(result.Stderr, "error: --gpu-numa-bind: item") {
			t.Errorf("%s: %v, %v", value, result, err)
		}
	}
	if text := mapsOfStep(t, s, "--gpu-numa-bind=off"); strings.Contains(text, "libgputune.so") {
		t.Error("off alone loads the core")
	}
}

// A large site's configuration costs a step little.
func TestLargeConfiguration(t *testing.T) {
	t.Parallel()
	var large strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&large, "NodeName=other%d Name=gpu File=/dev/other[0-7] Cores=0-63\n", i)
	}
	large.WriteString("NodeName=other Name=gpu " + strings.Repeat("Count=1 \\\n", 100000) + "File=/dev/other\n")
	s := start(t, site.Options{Bed: bed.Options{ConstrainDevices: true}})
	quick := stepTime(t, s)
	file, err := os.OpenFile(filepath.Join(filepath.Dir(s.Conf), "gres.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteString(large.String()); err != nil {
		t.Fatal(err)
	}
	slow := stepTime(t, s)
	t.Logf("%d bytes of gres.conf: %s, and %s without them", large.Len(), slow, quick)
	if slow > quick+time.Second {
		t.Errorf("%d bytes of gres.conf take a step from %s to %s", large.Len(), quick, slow)
	}
}

func stepTime(t *testing.T, s *site.Site) time.Duration {
	t.Helper()
	least := time.Hour
	for range 3 {
		begin := time.Now()
		srun(t, s, "-n1", "--gpus=1", "--gpu-numa-bind=strict", "true")
		least = min(least, time.Since(begin))
	}
	return least
}
