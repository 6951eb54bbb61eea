//go:build slurm

package slurm

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gputune/internal/report"
	"gputune/internal/sample"
	"gputune/tests/node"
	"gputune/tests/slurm/bed"
	"gputune/tests/slurm/site"
)

// TestReports runs jobs of two users on a node that is sampled. Each user sees his
// own jobs, root sees all, whatever options the jobs had.
func TestReports(t *testing.T) {
	t.Parallel()
	s := startAgentSite(t, "verify_interval = \"1s\"\n[report]\ninterval = \"1s\"\nmin_time = \"off\"\n")
	d := node.Driver(s.Machine)
	for i := range d.GPUs {
		d.GPUs[i].Lines = []string{"utilization_samples 70 90", "power 500000", "memory_used 1073741824", "event_reasons 0x4"}
	}
	if err := s.NVML.Change(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	command, output := s.agent(t)
	defer func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		if err := command.Wait(); err != nil || t.Failed() {
			t.Errorf("%v\n%s", err, output)
		}
	}()
	s.wait(t, "the agent", time.Minute, func() bool {
		_, err := os.Stat(filepath.Join(s.RunFolder, sample.SocketName))
		return err == nil
	})
	tree, err := site.Tree()
	if err != nil {
		t.Fatal(err)
	}
	as := func(user string, arguments ...string) bed.Result {
		t.Helper()
		command := s.Command(filepath.Join(tree, "build/bin/gputune"), append(append([]string{"report"}, arguments...), "--config="+filepath.Join(s.Folder, "gputune.toml"))...)
		command.User = user
		result, err := command.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	reports := func(user, id string) []report.Report {
		t.Helper()
		result := as(user, id, "--format=json")
		var said struct{ Reports []report.Report }
		if result.Code == 0 {
			if err := json.Unmarshal([]byte(result.Stdout), &said); err != nil {
				t.Fatalf("%v\n%s", err, result.Stdout)
			}
		} else if !strings.Contains(result.Stderr, "no report on a job") {
			t.Fatalf("%+v", result)
		}
		return said.Reports
	}
	// The script itself shows what is known so far.
	wait := fmt.Sprintf("while ! %s report $SLURM_JOB_ID --config=%s/gputune.toml | grep -q 80/90; do sleep 0.2; done", filepath.Join(tree, "build/bin/gputune"), s.Folder)
	submit := func(user, script string, arguments ...string) string {
		t.Helper()
		command := s.Command("sbatch", append([]string{"--parsable", "-n1", "-o/dev/null", "-D/", "--wrap=" + script}, arguments...)...)
		command.User = user
		result, err := command.Run(t.Context())
		if err != nil || result.Code != 0 {
			t.Fatalf("%v, %+v", err, result)
		}
		return strings.TrimSpace(result.Stdout)
	}
	one := submit("nobody", wait, "--gpus=1")
	two := submit("daemon", wait, "--gpus=2", "--gpu-power=500")
	none := submit("nobody", "true")
	s.wait(t, "the jobs to end", 3*time.Minute, func() bool { return s.over(t, one) && s.over(t, two) && s.over(t, none) })
	for _, c := range []struct {
		user, id string
		gpus     int // -1: nothing
	}{
		{"nobody", one, 1},
		{"nobody", two, -1},
		{"nobody", none, -1},
		{"daemon", two, 2},
		{"daemon", one, -1},
		{"", one, 1},
		{"", two, 2},
		{"", none, -1},
	} {
		found := reports(c.user, c.id)
		if (len(found) == 1) != (c.gpus >= 0) || len(found) == 1 && len(found[0].GPUs) != c.gpus {
			t.Errorf("%q sees of job %s: %+v", c.user, c.id, found)
			continue
		}
		for _, r := range found {
			for _, gpu := range r.GPUs {
				if r.State != report.Ended || r.Node != s.Node || gpu.Levels[sample.PowerWatts].Mean != 500 || gpu.Levels[sample.SMPercent].Max != 90 || gpu.Throttled["sw_power_cap"] == 0 {
					t.Errorf("job %s: %+v", c.id, r)
				}
			}
		}
	}
	for user, want := range map[string][2]string{"nobody": {one, two}, "daemon": {two, one}} {
		result := as(user)
		if result.Code != 0 || !strings.Contains(result.Stdout, want[0]) || strings.Contains(result.Stdout, want[1]) {
			t.Errorf("%s: %+v", user, result)
		}
	}
	// Nor any other way.
	names, err := filepath.Glob(filepath.Join(s.StateFolder, "reports", "*", two+"-*.json"))
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	for _, try := range [][]string{{"cat", names[0]}, {"ls", filepath.Dir(names[0])}, {"ls", filepath.Join(s.StateFolder, "jobs")}, {"touch", filepath.Join(s.StateFolder, "reports", "x")}} {
		command := s.Command(try[0], try[1:]...)
		command.User = "nobody"
		if result, err := command.Run(t.Context()); err != nil || result.OK() {
			t.Errorf("%v: %v, %+v", try, err, result)
		}
	}

	t.Run("requeued", func(t *testing.T) {
		id := submit("nobody", wait+"; sleep 300", "--gpus=1", "--requeue")
		has := func(state report.State, count int) func() bool {
			return func() bool {
				n := 0
				for _, r := range reports("nobody", id) {
					if r.State == state && len(r.GPUs) == 1 && r.GPUs[0].Samples > 1 {
						n++
					}
				}
				return n == count
			}
		}
		s.wait(t, "the first run", time.Minute, has(report.Running, 1))
		must(t, s.Site, "scontrol", "requeue", id)
		s.wait(t, "its report", time.Minute, has(report.Ended, 1))
		second := has(report.Running, 1)
		asked := time.Now()
		s.wait(t, "the second run", 5*time.Minute, func() bool {
			// Slurm waits for two minutes by itself, and refuses to start while the first run ends.
			if time.Since(asked) > 5*time.Second {
				asked = time.Now()
				if _, err := s.Run(t.Context(), "scontrol", "update", "jobid="+id, "starttime=now"); err != nil {
					t.Fatal(err)
				}
			}
			return second()
		})
		must(t, s.Site, "scancel", id)
		s.wait(t, "both reports", time.Minute, has(report.Ended, 2))
		if found := reports("nobody", id); !found[1].Begin.After(found[0].End) {
			t.Errorf("one run from %v to %v, the next from %v on", found[0].Begin, found[0].End, found[1].Begin)
		}
	})
	t.Run("array", func(t *testing.T) {
		id := submit("nobody", wait, "--gpus=1", "--array=0-1")
		s.wait(t, "its end", 3*time.Minute, func() bool {
			queue, err := s.Jobs(t.Context())
			return err == nil && len(queue) == 0
		})
		result := as("nobody", "--format=json")
		if strings.Count(result.Stdout, `"state": "ended"`) != 5 { // with those before
			t.Errorf("array %s: %s", id, result.Stdout)
		}
	})
	t.Run("suspended", func(t *testing.T) {
		id := submit("nobody", wait+"; sleep 300", "--gpus=1")
		s.wait(t, "samples", time.Minute, func() bool { return len(reports("nobody", id)) == 1 })
		must(t, s.Site, "scontrol", "suspend", id)
		before := reports("nobody", id)[0]
		s.wait(t, "samples meanwhile", time.Minute, func() bool {
			return reports("nobody", id)[0].GPUs[0].Samples > before.GPUs[0].Samples+2
		})
		must(t, s.Site, "scontrol", "resume", id)
		must(t, s.Site, "scancel", id)
		s.wait(t, "its report", time.Minute, func() bool {
			found := reports("nobody", id)
			return len(found) == 1 && found[0].State == report.Ended
		})
	})
	t.Run("pages", func(t *testing.T) {
		id := submit("nobody", "srun --gpu-numa-bind sleep 300", "--gpus=1")
		s.wait(t, "pages", time.Minute, func() bool {
			found := reports("nobody", id)
			return len(found) == 1 && len(found[0].GPUs) == 1 && found[0].GPUs[0].Pages != nil && found[0].GPUs[0].Pages.Checked > 0
		})
		must(t, s.Site, "scancel", id)
		s.wait(t, "its end", time.Minute, func() bool { return s.over(t, id) })
	})
	s.wantClean(t)
	if left, err := filepath.Glob(filepath.Join(s.RunFolder, "reports", "*", "*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
