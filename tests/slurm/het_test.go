//go:build slurm

package slurm

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gputune/tests/slurm/bed"
	"gputune/tests/slurm/site"
)

// twoNodes is a site with a second node, which the components of a
// heterogeneous job need.
func twoNodes(t *testing.T, without bool) *site.Site {
	t.Helper()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	free.Close()
	first := fmt.Sprintf("het%d", port) // of one bed alone, as the port is
	second := first + "b"
	s, err := site.Start(t.Context(), site.Options{Without: without, Bed: bed.Options{
		Node: first,
		ExtraSlurmConf: []string{
			fmt.Sprintf("NodeName=%s NodeHostname=%s NodeAddr=127.0.0.1 Port=%d CPUs=2 Sockets=1 CoresPerSocket=2 RealMemory=4000 Gres=gpu:4",
				second, strings.Split(host, ".")[0], port),
			"PartitionName=both Nodes=" + first + "," + second,
			"DebugFlags=NO_CONF_HASH", // the second slurmd has a slurm.conf of its own
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(s.Conf)
	if err != nil {
		t.Fatal(err)
	}
	own := strings.NewReplacer("/spool\n", "/spool2\n", "/slurmd.pid\n", "/slurmd2.pid\n", "/slurmd.log\n", "/slurmd2.log\n").Replace(string(text))
	conf := filepath.Join(filepath.Dir(s.Conf), "slurm2.conf")
	if err := os.WriteFile(conf, []byte(own), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(s.Dir, "spool2"), 0o755); err != nil {
		t.Fatal(err)
	}
	slurmd := s.Command("/usr/sbin/slurmd", "-D", "-N", second, "-f", conf)
	slurmd.Timeout = 5 * time.Minute
	// The test's own context ends before its clean-up.
	if err := slurmd.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := slurmd.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if _, err := slurmd.Wait(); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	for start := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		result := must(t, s, "sinfo", "-h", "-N", "-p", "both", "-o", "%T")
		if strings.Count(result.Stdout, "idle\n") == 2 {
			return s
		}
		if time.Since(start) > 30*time.Second {
			t.Fatalf("the second node is not idle: %s\n%s", result.Stdout, s.Log(bed.Slurmctld))
		}
	}
}

func TestHeterogeneousJob(t *testing.T) {
	t.Parallel()
	gpu := []string{"--gpus=1"}
	t.Run("without the plugin", func(t *testing.T) {
		testHeterogeneous(t, twoNodes(t, true), gpu)
	})
	t.Run("with the plugin", func(t *testing.T) {
		s := twoNodes(t, false)
		for _, option := range []string{"--gpu-numa-bind=quiet", "--gpu-numa-bind=off"} {
			testHeterogeneous(t, s, append([]string{option}, gpu...))
		}
	})
}

func testHeterogeneous(t *testing.T, s *site.Site, options []string) {
	t.Helper()
	component := append(append([]string{"-p", "both"}, options...), "-n1")
	for script, want := range map[string]int{"echo ran $GPUTUNE_LOCALITY": 0, "exit 3": 3} {
		arguments := append(append(append([]string{}, component...), "sh", "-c", script, ":"), append(component, "sh", "-c", script)...)
		result, err := s.Run(t.Context(), "srun", arguments...)
		if err != nil || result.Code != want {
			t.Fatalf("srun %v: code %d, want %d, %v\n%s", arguments, result.Code, want, err, result.Stderr)
		}
		says := "ran\nran\n"
		if options[0] == "--gpu-numa-bind=quiet" {
			says = "ran local\nran local\n"
		}
		if want == 0 && result.Stdout != says {
			t.Errorf("srun %v: %q, want %q", arguments, result.Stdout, says)
		}
	}
}
