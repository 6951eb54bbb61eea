//go:build slurm

package slurm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gputune/tests/slurm/bed"
	"gputune/tests/slurm/site"
)

// settings is a site whose Prolog and Epilog are gputune's, with the state of
// its GPUs when nothing had happened yet.
type settings struct {
	*site.Site
	before string
}

func startSettings(t *testing.T, config string, more ...string) *settings {
	t.Helper()
	s := &settings{Site: start(t, site.Options{
		Jobs: true, Config: config,
		Bed: bed.Options{NCPU: 4, TaskPlugin: "task/none", ExtraSlurmConf: append([]string{"PrologFlags=Alloc"}, more...)},
	})}
	s.before = s.state(t)
	return s
}

func (s *settings) state(t *testing.T) string {
	t.Helper()
	text, err := s.NVML.StateText()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// wait waits until something is so.
func (s *settings) wait(t *testing.T, what string, limit time.Duration, so func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !so(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			queue, queueErr := s.Jobs(t.Context())
			state, reason, stateErr := s.NodeState(t.Context())
			t.Fatalf("waited %v for %s\njobs: %+v, %v; node: %s, %q, %v; files: %v\nslurmctld: %s\nslurmd: %s", limit, what,
				queue, queueErr, state, reason, stateErr, s.files(t), s.Log(bed.Slurmctld), s.Log(bed.Slurmd))
		}
	}
}

// submit submits a batch script and returns the job's id.
func (s *settings) submit(t *testing.T, script string, arguments ...string) string {
	t.Helper()
	result := must(t, s.Site, "sbatch", append(append([]string{"--parsable", "-n1"}, arguments...), "--wrap", script)...)
	return strings.TrimSpace(result.Stdout)
}

// over tells whether a job has left the queue, its Epilog included.
func (s *settings) over(t *testing.T, id string) bool {
	t.Helper()
	jobs, err := s.Jobs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, job := range jobs {
		if job.ID == id {
			return false
		}
	}
	return true
}

// files returns what gputune's folders have of jobs.
func (s *settings) files(t *testing.T) []string {
	t.Helper()
	var left []string
	for _, pattern := range []string{s.StateFolder + "/jobs/*", s.StateFolder + "/aside/*", s.RunFolder + "/jobs/*", s.RunFolder + "/sampled/*"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, names...)
	}
	return left
}

// wantClean waits for the node to be idle and requires that nothing of any job
// is left.
func (s *settings) wantClean(t *testing.T) {
	t.Helper()
	if err := s.WaitIdle(t.Context()); err != nil {
		t.Fatalf("%v\nslurmd: %s", err, s.Log(bed.Slurmd))
	}
	if now := s.state(t); now != s.before {
		t.Errorf("the GPUs are\n%s, were\n%s", now, s.before)
	}
	if left := s.files(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

var asked = []string{"--gpu-clocks=1200", "--gpu-power=500", "--gpu-compute-mode=exclusive"}

// wantSet requires that these of the node's GPUs have what asked says, and the
// others what they had. state is the driver's as a job saw it.
func (s *settings) wantSet(t *testing.T, state, gpus string) {
	t.Helper()
	for _, gpu := range s.Machine.GPUs {
		for key, values := range map[string][2]string{
			"gpu_clocks": {"none", "1200,1200"}, "power_limit": {"700000", "500000"}, "compute_mode": {"0", "3"},
		} {
			want := values[0]
			if strings.Contains(","+gpus+",", fmt.Sprintf(",%d,", gpu.Minor)) {
				want = values[1]
			}
			if line := fmt.Sprintf("gpu/%s/%s %s\n", gpu.UUID, key, want); !strings.Contains(state, line) {
				t.Errorf("want %q with GPUs %s in\n%s", line, gpus, state)
			}
		}
	}
}

// A job's GPUs are set while it runs and no others, and are what they were
// however it ends.
func TestJobSettings(t *testing.T) {
	t.Parallel()
	s := startSettings(t, "")
	seen := filepath.Join(s.Folder, "seen")
	look := fmt.Sprintf("cat %s/fakenvml.state >%s.new; echo gpus $SLURM_JOB_GPUS >>%[2]s.new; mv %[2]s.new %[2]s; ", s.NVML.Folder, seen)
	// begin starts a job of two GPUs and waits until it has seen them.
	begin := func(t *testing.T, then string, arguments ...string) string {
		t.Helper()
		if err := os.RemoveAll(seen); err != nil {
			t.Fatal(err)
		}
		id := s.submit(t, look+then, append(append([]string{"--gpus=2"}, asked...), arguments...)...)
		s.wait(t, "the job to begin", time.Minute, func() bool { _, err := os.Stat(seen); return err == nil })
		text, err := os.ReadFile(seen)
		if err != nil {
			t.Fatal(err)
		}
		state, gpus, found := strings.Cut(strings.TrimSpace(string(text)), "gpus ")
		if !found || strings.Count(gpus, ",") != 1 {
			t.Fatalf("the job saw %q", text)
		}
		s.wantSet(t, state, gpus)
		return id
	}
	const long = "sleep 600"
	t.Run("it ends", func(t *testing.T) {
		begin(t, "")
		s.wantClean(t)
	})
	t.Run("it fails", func(t *testing.T) {
		begin(t, "exit 3")
		s.wantClean(t)
	})
	t.Run("srun and salloc", func(t *testing.T) {
		for _, name := range []string{"srun", "salloc"} {
			result := must(t, s.Site, name, append(append([]string{"-Q", "-n1", "--gpus=2"}, asked...), "sh", "-c", "cat "+s.NVML.Folder+"/fakenvml.state; echo gpus 0,1")...)
			state, gpus, _ := strings.Cut(strings.TrimSpace(result.Stdout), "gpus ")
			s.wantSet(t, state, gpus)
			s.wantClean(t)
		}
	})
	t.Run("scancel", func(t *testing.T) {
		must(t, s.Site, "scancel", begin(t, long))
		s.wantClean(t)
	})
	t.Run("requeued", func(t *testing.T) {
		id := begin(t, long, "--requeue")
		must(t, s.Site, "scontrol", "requeue", id)
		s.wait(t, "the state of before", time.Minute, func() bool { return s.state(t) == s.before })
		must(t, s.Site, "scancel", id)
		s.wantClean(t)
	})
	t.Run("slurmd restarts", func(t *testing.T) {
		id := begin(t, long)
		if err := s.Restart(t.Context(), bed.Slurmd); err != nil {
			t.Fatal(err)
		}
		if now := s.state(t); now == s.before {
			t.Error("the restart of slurmd put the settings back under the job")
		}
		must(t, s.Site, "scancel", id)
		s.wantClean(t)
	})
	t.Run("slurmd is killed", func(t *testing.T) {
		id := begin(t, long)
		if err := syscall.Kill(s.Pid(bed.Slurmd), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		must(t, s.Site, "scancel", id)
		if err := s.Restart(t.Context(), bed.Slurmd); err != nil {
			t.Fatal(err)
		}
		s.wantClean(t)
	})
	t.Run("the node fails", func(t *testing.T) {
		id := begin(t, long, "--no-requeue")
		must(t, s.Site, "scontrol", "update", "nodename="+s.Node, "state=down", "reason=simulated")
		s.wait(t, "the job to end", time.Minute, func() bool { return s.over(t, id) })
		s.wait(t, "the state of before", time.Minute, func() bool { return s.state(t) == s.before })
		// Slurm may have taken the node back by itself.
		if _, err := s.Run(t.Context(), "scontrol", "update", "nodename="+s.Node, "state=resume"); err != nil {
			t.Fatal(err)
		}
		s.wantClean(t)
	})
	t.Run("time limit", func(t *testing.T) {
		id := begin(t, long, "--time=0:05")
		s.wait(t, "the time limit", 3*time.Minute, func() bool { return s.over(t, id) })
		s.wantClean(t)
	})
}

// What a user asks for in vain is told in one line, in srun's output and in a
// batch job's, and the node stays up.
func TestRefusedSettings(t *testing.T) {
	t.Parallel()
	s := startSettings(t, "[gpu_compute_mode]\nallow = [\"partition:elsewhere\"]\n")
	gpu := "gpu " + gpuOf(t, s.Site, "0").PCI
	for option, want := range map[string]string{
		"--gpu-clocks=9999":             ": " + gpu + ": clocks 9999 MHz: supported 345–1980 MHz; nearest: 1980",
		"--gpu-power=1":                 ": " + gpu + ": power 1 W: supported 200–700 W; nearest: 200",
		"--gpu-compute-mode=prohibited": ": the site allows it to partition:elsewhere",
	} {
		t.Run(option, func(t *testing.T) {
			line := fmt.Sprintf("gputune: %s: error: %s%s\n", s.Node, option, want)
			result, err := s.Run(t.Context(), "srun", "-Q", "-n1", "--gpus=1", option, "echo", "ran")
			if err != nil || result.Code != 1 || result.Stdout != "" || strings.Count(result.Stderr, "gputune") != 1 || !strings.Contains(result.Stderr, line) {
				t.Errorf("%v, %v\nwant %q", result, err, line)
			}
			output := filepath.Join(s.Folder, "batch.out")
			result, err = s.Run(t.Context(), "sbatch", "-Q", "-W", "-o", output, "--gpus=1", option, "--wrap", "echo ran")
			text, readErr := os.ReadFile(output)
			if err != nil || readErr != nil || result.Code != 1 || string(text) != line {
				t.Errorf("%v, %v, %v: batch output %q, want %q", result, err, readErr, text, line)
			}
			s.wantClean(t)
			if state, reason, err := s.NodeState(t.Context()); err != nil || state != "idle" {
				t.Errorf("node is %s for %q, %v", state, reason, err)
			}
		})
	}
	t.Run("no GPU", func(t *testing.T) {
		result, err := s.Run(t.Context(), "srun", "-Q", "-n1", "--gpu-power=500", "echo", "ran")
		if err != nil || result.Code != 1 || !strings.Contains(result.Stderr, "error: --gpu-power=500: the job has no GPU of its own on this node") {
			t.Errorf("%v, %v", result, err)
		}
		s.wantClean(t)
	})
}

// A GPU that gres/shard can give to several jobs is nobody's to change, and one
// that it cannot is: Slurm does not tell the Prolog which of the two a job has.
func TestSharedGPU(t *testing.T) {
	t.Parallel()
	s := &settings{Site: start(t, site.Options{
		Jobs: true,
		Bed: bed.Options{
			NCPU: 4, TaskPlugin: "task/none", NodeGres: "gpu:4,shard:8", ExtraGres: []string{"Name=shard Count=8 File=${DIR}/dev/nvidia0"},
			ExtraSlurmConf: []string{"PrologFlags=Alloc"},
		},
	})}
	s.before = s.state(t)
	want := "gputune: " + s.Node + ": error: --gpu-power=500: gpu " + gpuOf(t, s.Site, "0").PCI + ": gres/shard can give it to several jobs at once"
	for _, gres := range []string{"shard:1", "gpu:4"} {
		result, err := s.Run(t.Context(), "srun", "-Q", "-n1", "--gres="+gres, "--gpu-power=500", "echo", "ran")
		if err != nil || result.Code != 1 || result.Stdout != "" || !strings.Contains(result.Stderr, want) {
			t.Errorf("%s: %v, %v", gres, result, err)
		}
	}
	// The first GPU is taken; the next one has no shards.
	hold := s.submit(t, "sleep 60", "--gres=gpu:1")
	s.wait(t, "the GPU to be taken", time.Minute, func() bool {
		jobs, err := s.Jobs(t.Context())
		return err == nil && len(jobs) == 1 && jobs[0].State == "RUNNING"
	})
	result := must(t, s.Site, "srun", "-Q", "-n1", "--gres=gpu:1", "--gpu-power=500", "cat", s.NVML.Folder+"/fakenvml.state")
	if !strings.Contains(result.Stdout, "power_limit 500000") {
		t.Errorf("the GPUs were %s", result.Stdout)
	}
	must(t, s.Site, "scancel", hold)
	s.wantClean(t)
}

// Where the site only warns, the job runs.
func TestWarnedSettings(t *testing.T) {
	t.Parallel()
	s := startSettings(t, "[job]\non_refusal = \"warn\"\n")
	result := must(t, s.Site, "srun", "-Q", "-n1", "--gpus=1", "--gpu-clocks=9999", "--gpu-power=500", "cat", s.NVML.Folder+"/fakenvml.state")
	if want := "warning: --gpu-clocks=9999: gpu "; strings.Count(result.Stderr, want) != 1 || strings.Count(result.Stderr, "\n") != 1 {
		t.Errorf("stderr %q, want %q", result.Stderr, want)
	}
	if !strings.Contains(result.Stdout, "power_limit 500000") || result.Stdout == s.before {
		t.Errorf("the GPUs were %s", result.Stdout)
	}
	s.wantClean(t)
}

// crowd is a hundred jobs and what happens to them.
type crowd struct {
	*settings
	random *rand.Rand

	mu     sync.Mutex // of what follows, which two goroutines use
	killed map[string]int
	mended int
}

// A hundred jobs with random options on four GPUs, whose Prologs, Epilogs and
// selves are killed at random, leave nothing. An administrator mends what
// Slurm drains the node for.
func TestHundredJobs(t *testing.T) {
	t.Parallel()
	s := startMPS(t, site.Options{Bed: bed.Options{ExtraSlurmConf: []string{
		"SchedulerParameters=nohold_on_prolog_fail,batch_sched_delay=0,bf_interval=1,sched_interval=1,sched_min_interval=1",
	}}})
	c := &crowd{settings: s, random: rand.New(rand.NewPCG(1, 2)), killed: map[string]int{}}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var helpers sync.WaitGroup
	helpers.Go(func() { c.killPrograms(ctx) })
	helpers.Go(func() { c.administrate(ctx, t) })
	jobs := 100
	for range jobs {
		option := func(name string, values ...string) string {
			return "--" + name + "=" + values[c.random.IntN(len(values))]
		}
		arguments := []string{"--no-requeue", "-o", "/dev/null", "--gpus=" + strconv.Itoa(1+c.random.IntN(2))}
		if c.random.IntN(3) > 0 {
			arguments = append(arguments, option("gpu-clocks", "1200", "low", "900-1500,memory=high", "9999"))
		}
		if c.random.IntN(3) > 0 {
			arguments = append(arguments, option("gpu-power", "500", "max", "200", "1"))
		}
		if c.random.IntN(3) > 0 {
			arguments = append(arguments, option("gpu-compute-mode", "exclusive", "shared", "prohibited"))
		}
		script := "sleep"
		if c.random.IntN(4) == 0 {
			arguments = append(arguments, option("gpu-mps", "auto", "50,mem=1G", "off"))
			script = s.MPS.Client() + "; sleep"
		}
		id := s.submit(t, fmt.Sprintf("%s 0.%d", script, c.random.IntN(10)), arguments...)
		if c.random.IntN(5) == 0 {
			after := time.Duration(c.random.IntN(2000)) * time.Millisecond
			helpers.Go(func() {
				select {
				case <-time.After(after):
				case <-ctx.Done():
				}
				result, err := s.Run(t.Context(), "scancel", id)
				if err == nil && result.OK() {
					c.count("job")
				}
			})
		}
	}
	s.wait(t, "all jobs to end", 8*time.Minute, func() bool {
		queue, err := s.Jobs(t.Context())
		return err == nil && len(queue) == 0
	})
	stop()
	helpers.Wait()
	c.mend(t.Context(), t)
	s.wantNoMPS(t)
	if state, reason, err := s.NodeState(t.Context()); err != nil || state != "idle" {
		t.Errorf("node is %s for %q, %v", state, reason, err)
	}
	t.Logf("%d jobs; killed: %v; the node was resumed %d times", jobs, c.killed, c.mended)
	if c.killed["prolog"] == 0 || c.killed["epilog"] == 0 || c.killed["job"] == 0 {
		t.Errorf("not everything was killed: %v", c.killed)
	}
}

func (c *crowd) count(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.killed[what]++
}

// killPrograms kills some of this site's Prologs and Epilogs.
func (c *crowd) killPrograms(ctx context.Context) {
	random := rand.New(rand.NewPCG(3, 4))
	known := map[int]bool{}
	for ctx.Err() == nil {
		time.Sleep(time.Duration(random.IntN(4000)) * time.Microsecond)
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return
		}
		for _, entry := range entries {
			pid, err := strconv.Atoi(entry.Name())
			if err != nil || known[pid] {
				continue
			}
			command, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
			if err != nil || !strings.Contains(string(command), "--config="+c.Folder) {
				continue
			}
			name := ""
			switch {
			case strings.Contains(string(command), "gputune-prolog"):
				name = "prolog"
			case strings.Contains(string(command), "gputune-epilog"):
				name = "epilog"
			case strings.Contains(string(command), "--role="): // the child of either
				name = "child"
			}
			known[pid] = true
			if name == "" || random.IntN(8) > 0 {
				continue
			}
			time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
			if syscall.Kill(pid, syscall.SIGKILL) == nil {
				c.count(name)
			}
		}
	}
}

// administrate resumes the node whenever Slurm has drained it, after putting
// back what jobs have left that are over.
func (c *crowd) administrate(ctx context.Context, t *testing.T) {
	for ctx.Err() == nil {
		if state, _, err := c.NodeState(t.Context()); err == nil && strings.Contains(state, "drain") {
			c.mend(t.Context(), t)
		}
		select {
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (c *crowd) mend(ctx context.Context, t *testing.T) {
	// Records first: a job that begins after this is not among them.
	held := map[string]bool{}
	for _, name := range c.files(t) {
		id, _, _ := strings.Cut(filepath.Base(name), ".")
		held[id] = true
	}
	queue, err := c.Jobs(ctx)
	if err != nil {
		t.Error(err)
		return
	}
	for _, job := range queue {
		delete(held, job.ID)
	}
	for id := range held {
		result, err := c.Gputune(ctx, "restore", "--job", id)
		if err != nil || result.Code != 0 {
			t.Errorf("restore: %v, %v", result, err)
		}
	}
	if state, _, err := c.NodeState(ctx); err == nil && strings.Contains(state, "drain") {
		result, err := c.Run(ctx, "scontrol", "update", "nodename="+c.Node, "state=resume")
		if err == nil && result.OK() {
			c.mu.Lock()
			c.mended++
			c.mu.Unlock()
		}
	}
}
