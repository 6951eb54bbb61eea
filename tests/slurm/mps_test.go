//go:build slurm

package slurm

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gputune/tests/slurm/bed"
	"gputune/tests/slurm/site"
)

// Two users without privileges, who are on every Debian with Slurm.
const (
	oneUser     = "nobody"
	anotherUser = "slurm"
)

// startMPS starts a site whose jobs can have an MPS daemon.
func startMPS(t *testing.T, options site.Options) *settings {
	t.Helper()
	options.Jobs = true
	if options.MPS == "" {
		options.MPS = "\n"
	}
	options.Bed.NCPU, options.Bed.TaskPlugin = 8, "task/none"
	if options.Bed.ConstrainDevices {
		options.Bed.TaskPlugin = "task/cgroup"
	}
	options.Bed.ExtraSlurmConf = append(options.Bed.ExtraSlurmConf, "PrologFlags=Alloc")
	s := &settings{Site: start(t, options)}
	s.before = s.state(t)
	if err := os.Chmod(s.Folder, 0o777|os.ModeSticky); err != nil { // for what jobs write
		t.Fatal(err)
	}
	return s
}

// mpsProcesses returns the processes of the site's MPS programs.
func (s *settings) mpsProcesses(t *testing.T) map[int]string {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	found := map[int]string{}
	for _, link := range links {
		program, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(program, s.MPS.Folder+"/") {
			continue // or has ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		if err != nil {
			t.Fatal(err)
		}
		command, err := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline"))
		if err == nil && len(command) > 0 {
			found[pid] = strings.TrimSpace(strings.ReplaceAll(string(command), "\x00", " "))
		}
	}
	return found
}

// daemon returns the only MPS daemon's process id, 0 if there is not one.
func (s *settings) daemon(t *testing.T) int {
	t.Helper()
	pid := 0
	for p, command := range s.mpsProcesses(t) {
		if strings.HasSuffix(command, " -f") {
			if pid != 0 {
				return 0
			}
			pid = p
		}
	}
	return pid
}

// wantNoMPS waits for the node to be idle and requires that nothing of any
// daemon is left, nor of anything else.
func (s *settings) wantNoMPS(t *testing.T) {
	t.Helper()
	s.wantClean(t)
	left, err := filepath.Glob(s.RunFolder + "/mps/*")
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if processes := s.mpsProcesses(t); len(processes) > 0 {
		t.Errorf("processes left: %v", processes)
	}
	if state, reason, err := s.NodeState(t.Context()); err != nil || state != "idle" {
		t.Errorf("node is %s for %q, %v", state, reason, err)
	}
}

// as runs a command as a user and requires that it succeeds.
func (s *settings) as(t *testing.T, user, name string, arguments ...string) bed.Result {
	t.Helper()
	command := s.Command(name, arguments...)
	command.User = user
	result, err := command.Run(t.Context())
	if err != nil || result.Code != 0 {
		t.Fatalf("%s %v: %v, %v\nslurmd: %s", name, arguments, result, err, s.Log(bed.Slurmd))
	}
	return result
}

// script submits a batch script as the one user and returns the job's id.
func (s *settings) script(t *testing.T, text string, arguments ...string) string {
	t.Helper()
	result := s.as(t, oneUser, "sbatch", append(append([]string{"--parsable", "-D", s.Folder}, arguments...), "--wrap", text)...)
	return strings.TrimSpace(result.Stdout)
}

// text waits for a file that a job writes, and returns what is in it.
func (s *settings) text(t *testing.T, path string) string {
	t.Helper()
	s.wait(t, path, time.Minute, func() bool { _, err := os.Stat(path); return err == nil })
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Two tasks on one GPU are served by the daemon of their job, as their user and
// with half of the GPU each, which nobody else can use meanwhile. Another user's
// job has another daemon.
func TestMPS(t *testing.T) {
	t.Parallel()
	s := startMPS(t, site.Options{})
	seen := filepath.Join(s.Folder, "seen")
	first := s.script(t, fmt.Sprintf("srun -Q -n2 %s >%s.new; cat %s/fakenvml.state >>%[2]s.new; mv %[2]s.new %[2]s; sleep 600",
		s.MPS.Client(), seen, s.NVML.Folder), "-n2", "--gpus=1", "--gpu-mps=auto,mem=4G")
	text := s.text(t, seen)
	gpu := gpuOf(t, s.Site, "0").UUID
	if want := fmt.Sprintf("percent 50.0 mem 4G uid 65534 gpus %s\n", gpu); strings.Count(text, want) != 2 {
		t.Errorf("want %q twice in %s", want, text)
	}
	if want := "gpu/" + gpu + "/compute_mode 3\n"; !strings.Contains(text, want) {
		t.Errorf("want %q in %s", want, text)
	}
	second := s.as(t, anotherUser, "srun", "-Q", "-n2", "--gpus=2", "--gpu-mps=25", s.MPS.Client())
	two := gpuOf(t, s.Site, "1").UUID + "," + gpuOf(t, s.Site, "2").UUID
	if want := fmt.Sprintf("percent 25.0 mem all uid 64030 gpus %s\n", two); strings.Count(second.Stdout, want) != 2 || second.Stderr != "" {
		t.Errorf("want %q twice in %v", want, second)
	}
	// The first job's, seen by others: no way in.
	pipes := filepath.Join(s.RunFolder, "mps", first, "pipe")
	look := s.as(t, anotherUser, "srun", "-Q", "-n1", "sh", "-c",
		fmt.Sprintf("ls %s 2>&1; ls %s 2>&1; CUDA_MPS_PIPE_DIRECTORY=%[1]s %[3]s 2>&1; exit 0", pipes, filepath.Join(s.RunFolder, "mps"), s.MPS.Client()))
	if strings.Count(look.Stdout, "Permission denied") != 2 || !strings.Contains(look.Stdout, "MPS client failed to connect") {
		t.Errorf("another user sees %v", look)
	}
	must(t, s.Site, "scancel", first)
	s.wantNoMPS(t)
}

// All kinds of steps of a job have its daemon, but for one that does not want it.
func TestMPSSteps(t *testing.T) {
	t.Parallel()
	s := startMPS(t, site.Options{Bed: bed.Options{ExtraSlurmConf: []string{"LaunchParameters=use_interactive_step"}}})
	output := filepath.Join(s.Folder, "out")
	client := s.MPS.Client()
	show := fmt.Sprintf("/bin/sh -c 'echo \"$(%s) ${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE-none} ${CUDA_MPS_PIPE_DIRECTORY:+set}\"'", client)
	s.script(t, strings.Join([]string{
		"echo batch $(" + show + ")",
		"echo srun $(srun -Q -n2 " + show + ")",
		"echo single $(srun -Q -n1 " + show + ")",
		"echo off $(srun -Q -n1 --gpu-mps=off " + show + ")",
		"echo exported $(srun -Q -n1 --export=NONE --gpu-mps=off " + show + ")",
		"echo again $(srun -Q -n1 --export=NONE " + show + ")",
		"echo inside $(srun -Q -n1 sh -c \"srun -Q --overlap -n1 --gpu-mps=25 " + client + " 2>&1\")",
	}, "\n"), "-n2", "-o", output, "--gpus=1", "--gpu-mps=auto")
	s.wantNoMPS(t)
	text, err := os.ReadFile(output)
	if err != nil {
		t.Fatal(err)
	}
	lines := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		lines[name] += rest
	}
	with := func(percent string) string {
		return fmt.Sprintf("percent %s.0 mem all uid 65534 gpus %s %[1]s set", percent, gpuOf(t, s.Site, "0").UUID)
	}
	for name, want := range map[string]string{
		"batch": with("50"), "srun": with("50"), "single": with("100"), "again": with("100"),
		"off": "without MPS none", "exported": "without MPS none",
		"inside": "error: gputune: --gpu-mps=25 belongs to the job and is ignored here",
	} {
		if !strings.Contains(lines[name], want) || name == "srun" && strings.Count(lines[name], want) != 2 {
			t.Errorf("%s: %q, want %q", name, lines[name], want)
		}
	}
	// Bare, and in the shell of salloc that is a step.
	interactive := s.Command("salloc", "-Q", "-n1", "--gpus=1", "--gpu-mps", "srun", "-Q", "sh", "-c", client+"; echo ${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE-none}")
	interactive.User = oneUser
	result, err := interactive.Run(t.Context())
	if err != nil || !strings.Contains(result.Stdout, "percent 100.0 mem all uid 65534") || !strings.HasSuffix(result.Stdout, "none\n") || result.Stderr != "" {
		t.Errorf("%v, %v", result, err)
	}
	s.wantNoMPS(t)
	// What is submitted from a job with a daemon has nothing of that.
	nested := s.as(t, oneUser, "srun", "-Q", "-n1", "--gpus=1", "--gpu-mps", "sh", "-c",
		"env -u SLURM_JOB_ID -u SLURM_JOBID srun -Q -n1 --gpus=1 sh -c '"+client+"; echo ${CUDA_MPS_PIPE_DIRECTORY-none}'")
	if nested.Stdout != "without MPS\nnone\n" {
		t.Errorf("%v", nested)
	}
	s.wantNoMPS(t)
}

// Each program knows its GPU by a name that it and the daemon understand alike.
func TestMPSDevices(t *testing.T) {
	t.Parallel()
	for name, constrained := range map[string]bool{"constrained": true, "open": false} {
		t.Run(name, func(t *testing.T) {
			s := startMPS(t, site.Options{Bed: bed.Options{ConstrainDevices: constrained}})
			hold := s.script(t, "sleep 600", "-n1", "--gpus=1", "-o", "/dev/null")
			s.wait(t, "the GPU to be taken", time.Minute, func() bool {
				jobs, err := s.Jobs(t.Context())
				return err == nil && len(jobs) == 1 && jobs[0].State == "RUNNING"
			})
			uuid := func(minor string) string { return gpuOf(t, s.Site, minor).UUID }
			for _, c := range []struct {
				arguments []string
				want      map[string]string // by task
			}{
				{[]string{"-n2", "--gpus=2", "--gpus-per-task=1"}, map[string]string{"0": uuid("1"), "1": uuid("2")}},
				{[]string{"-n1", "--gpus=2"}, map[string]string{"0": uuid("1") + "," + uuid("2")}},
				{[]string{"-n1", "--gpus=1"}, map[string]string{"0": uuid("1")}},
			} {
				tasks := len(c.want)
				result := s.as(t, oneUser, "srun", append(append([]string{"-Q", "--gpu-mps=auto"}, c.arguments...), "sh", "-c",
					"echo task=$SLURM_PROCID cvd=$CUDA_VISIBLE_DEVICES percent=$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")...)
				for id, f := range parse(t, tasks, result.Stdout) {
					want := c.want[id]
					if constrained && id == "0" { // the numbers that everybody reads alike
						want = []string{"0", "0,1"}[strings.Count(want, ",")]
					}
					if f["cvd"] != want || f["percent"] != "100" {
						t.Errorf("%v: task %s: %v, want %s", c.arguments, id, f, want)
					}
				}
			}
			must(t, s.Site, "scancel", hold)
			s.wantNoMPS(t)
		})
	}
}

// However a job with a daemon ends, nothing is left of it.
func TestMPSEnds(t *testing.T) {
	t.Parallel()
	s := startMPS(t, site.Options{})
	seen := filepath.Join(s.Folder, "seen")
	begin := func(t *testing.T, then string, arguments ...string) (id string, daemon int) {
		t.Helper()
		if err := os.RemoveAll(seen); err != nil {
			t.Fatal(err)
		}
		id = s.script(t, fmt.Sprintf("%s >%s; %s", s.MPS.Client(), seen, then), append([]string{"-n1", "--gpus=2", "--gpu-mps=50", "-o", "/dev/null"}, arguments...)...)
		s.wait(t, "the job to begin", time.Minute, func() bool {
			text, err := os.ReadFile(seen)
			return err == nil && strings.Contains(string(text), "percent 50.0")
		})
		return id, s.daemon(t)
	}
	long := s.MPS.Client() + " 1h" // in the middle of its work
	kill := func(t *testing.T, pid int) {
		t.Helper()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("it ends", func(t *testing.T) {
		begin(t, "exit 3")
		s.wantNoMPS(t)
	})
	t.Run("scancel", func(t *testing.T) {
		id, _ := begin(t, long)
		must(t, s.Site, "scancel", id)
		s.wantNoMPS(t)
	})
	t.Run("the daemon is killed", func(t *testing.T) {
		id, daemon := begin(t, "sleep 600")
		kill(t, daemon)
		must(t, s.Site, "scancel", id)
		s.wantNoMPS(t)
	})
	t.Run("the daemon is stopped", func(t *testing.T) {
		id, daemon := begin(t, "sleep 600")
		if err := syscall.Kill(daemon, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		must(t, s.Site, "scancel", id)
		s.wantNoMPS(t)
	})
	t.Run("requeued", func(t *testing.T) {
		id, _ := begin(t, long, "--requeue")
		must(t, s.Site, "scontrol", "requeue", id)
		s.wait(t, "the daemon to be gone", time.Minute, func() bool { return len(s.mpsProcesses(t)) == 0 })
		must(t, s.Site, "scancel", id)
		s.wantNoMPS(t)
	})
	t.Run("slurmd restarts", func(t *testing.T) {
		id, daemon := begin(t, long)
		if err := s.Restart(t.Context(), bed.Slurmd); err != nil {
			t.Fatal(err)
		}
		if now := s.daemon(t); now != daemon || daemon == 0 {
			t.Errorf("the daemon was process %d, is %d", daemon, now)
		}
		must(t, s.Site, "scancel", id)
		s.wantNoMPS(t)
	})
	t.Run("slurmd is killed", func(t *testing.T) {
		id, daemon := begin(t, long)
		kill(t, s.Pid(bed.Slurmd))
		if now := s.daemon(t); now != daemon || daemon == 0 {
			t.Errorf("the daemon was process %d, is %d", daemon, now)
		}
		must(t, s.Site, "scancel", id)
		if err := s.Restart(t.Context(), bed.Slurmd); err != nil {
			t.Fatal(err)
		}
		s.wantNoMPS(t)
	})
	t.Run("a client stays", func(t *testing.T) {
		// It has left the job's session, and here nothing tracks processes by cgroup.
		begin(t, "setsid "+s.MPS.Client()+" 1h & sleep 1")
		if err := s.WaitIdle(t.Context()); err != nil {
			t.Fatal(err)
		}
		for pid, command := range s.mpsProcesses(t) {
			if command != s.MPS.Client()+" 1h" {
				t.Errorf("%d: %s is left", pid, command)
			}
			kill(t, pid) // it is the user's, and Slurm's to find
		}
		s.wantNoMPS(t)
	})
}

// A daemon that does not answer is said in one line, and the node stays up.
func TestMPSThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	s := startMPS(t, site.Options{MPS: "ready_deadline = \"1s\"\n"})
	for fault, want := range map[string]string{
		"start hang":   ": no answer within 1s",
		"start fail":   ": Failed to start: the fault was asked for",
		"start exit":   ": Failed to do what the fault asked for",
		"answer hang":  ": no answer within 1s",
		"limit ignore": ": set_default_active_thread_percentage 50: it is \"100.0\" after it",
	} {
		t.Run(fault, func(t *testing.T) {
			if err := s.MPS.Faults(fault); err != nil {
				t.Fatal(err)
			}
			result, err := s.Run(t.Context(), "srun", "-Q", "-n1", "--gpus=1", "--gpu-mps=50", "echo", "ran")
			start := fmt.Sprintf("gputune: %s: error: --gpu-mps=50: MPS daemon of job ", s.Node)
			if err != nil || result.Code != 1 || result.Stdout != "" || strings.Count(result.Stderr, "gputune") != 1 ||
				!strings.Contains(result.Stderr, start) || !strings.Contains(result.Stderr, want) {
				t.Errorf("%v, %v\nwant %q … %q", result, err, start, want)
			}
			s.wantNoMPS(t)
		})
	}
}

// A step whose daemon has died says so, and fails unless the site only warns.
func TestMPSThatHasDied(t *testing.T) {
	t.Parallel()
	for _, refusal := range []string{"fail", "warn"} {
		t.Run(refusal, func(t *testing.T) {
			s := startMPS(t, site.Options{Config: fmt.Sprintf("[job]\non_refusal = %q\n", refusal)})
			seen, output := filepath.Join(s.Folder, "seen"), filepath.Join(s.Folder, "out")
			id := s.script(t, fmt.Sprintf("touch %s; while [ -e %[1]s ]; do sleep 0.1; done; srun -Q -n2 -l %s; echo status $?", seen, s.MPS.Client()),
				"-n2", "--gpus=1", "--gpu-mps=50", "-o", output)
			s.text(t, seen)
			if err := syscall.Kill(s.daemon(t), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(seen); err != nil {
				t.Fatal(err)
			}
			s.wantNoMPS(t)
			text, err := os.ReadFile(output)
			line := fmt.Sprintf("0: gputune: %s: %s: --gpu-mps: the job's MPS daemon does not answer (%s/mps/%s/pipe/control: Connection refused): programs ",
				s.Node, map[string]string{"fail": "error", "warn": "warning"}[refusal], s.RunFolder, id)
			if err != nil || strings.Count(string(text), line) != 1 || strings.Count(string(text), "gputune: ") != 1 {
				t.Errorf("%v, %s\nwant %q", err, text, line)
			}
			ran := strings.Count(string(text), ": without MPS\n")
			if status := strings.Contains(string(text), "status 0\n"); (refusal == "warn") != status || (refusal == "warn") != (ran == 2) {
				t.Errorf("%s", text)
			}
		})
	}
}

// Whoever looks whether the daemon answers is the job's user: what the user puts
// in its place opens nothing that the user cannot open.
func TestMPSLookedAtAsTheUser(t *testing.T) {
	t.Parallel()
	s := startMPS(t, site.Options{})
	secret := filepath.Join(s.Folder, "secret")
	if err := os.Mkdir(secret, 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(secret, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := os.Chmod(filepath.Join(secret, "socket"), 0o777); err != nil {
		t.Fatal(err)
	}
	output := filepath.Join(s.Folder, "out")
	s.script(t, "ln -sf "+secret+"/socket $CUDA_MPS_PIPE_DIRECTORY/control; srun -Q -n1 echo ran", "-n1", "--gpus=1", "--gpu-mps", "-o", output)
	s.wantNoMPS(t)
	text, err := os.ReadFile(output)
	if err != nil || !strings.Contains(string(text), "/pipe/control: Permission denied): programs would run without it\n") || strings.Contains(string(text), "ran") {
		t.Errorf("%v, %s", err, text)
	}
	if _, err := os.Stat(filepath.Join(secret, "socket")); err != nil {
		t.Error(err)
	}
}

// gres/mps is Slurm's own: its parts of a GPU are nobody's to change, a whole
// GPU of the same node is.
func TestMPSBesideSlurmsOwn(t *testing.T) {
	t.Parallel()
	s := startMPS(t, site.Options{Bed: bed.Options{
		NodeGres: "gpu:4,mps:400", ExtraGres: []string{"Name=mps Count=400"},
	}})
	want := "gputune: " + s.Node + ": error: --gpu-mps: the job shares its GPU: gres/mps gives it a part of the GPU, and only a whole GPU can be changed\n"
	result, err := s.Run(t.Context(), "srun", "-Q", "-n1", "--gres=mps:50", "--gpu-mps", "echo", "ran")
	if err != nil || result.Code != 1 || result.Stdout != "" || !strings.Contains(result.Stderr, want) {
		t.Errorf("%v, %v\nwant %q", result, err, want)
	}
	off := must(t, s.Site, "srun", "-Q", "-n1", "--gres=mps:50", "--gpu-mps=off", "echo", "ran")
	if off.Stdout != "ran\n" || off.Stderr != "" {
		t.Errorf("%v", off)
	}
	whole := must(t, s.Site, "srun", "-Q", "-n1", "--gres=gpu:1", "--gpu-mps", s.MPS.Client())
	if !strings.Contains(whole.Stdout, "percent 100.0") {
		t.Errorf("%v", whole)
	}
	s.wantNoMPS(t)
}

// What the user asks for in vain.
func TestMPSRefused(t *testing.T) {
	t.Parallel()
	s := startMPS(t, site.Options{MPS: "max_memory_mib = 2048\n"})
	for name, c := range map[string]struct {
		arguments []string
		want      string
	}{
		"mode":   {[]string{"--gpu-mps=50", "--gpu-compute-mode=shared"}, "--gpu-mps=50: it does not go together with --gpu-compute-mode=shared: want exclusive or leave that out\n"},
		"memory": {[]string{"--gpu-mps=mem=4G"}, "--gpu-mps=mem=4G: memory of a client: mem=4G: the site allows 2048 MiB at most; nearest: mem=2G\n"},
	} {
		t.Run(name, func(t *testing.T) {
			result, err := s.Run(t.Context(), "srun", append(append([]string{"-Q", "-n1", "--gpus=1"}, c.arguments...), "echo", "ran")...)
			if want := "gputune: " + s.Node + ": error: " + c.want; err != nil || result.Code != 1 || !strings.Contains(result.Stderr, want) {
				t.Errorf("%v, %v\nwant %q", result, err, want)
			}
			s.wantNoMPS(t)
		})
	}
	result, err := s.Run(t.Context(), "srun", "-Q", "-n1", "--gpus=1", "--gpu-mps=101", "true")
	if err != nil || result.Code == 0 || !strings.Contains(result.Stderr, `--gpu-mps: "101": want PERCENT|auto|off`) {
		t.Errorf("%v, %v", result, err)
	}
	both := must(t, s.Site, "srun", "-Q", "-n1", "--gpus=1", "--gpu-mps", "--gpu-compute-mode=exclusive", s.MPS.Client())
	if !strings.Contains(both.Stdout, "percent 100.0 mem 2G") || both.Stderr != "" {
		t.Errorf("%v", both)
	}
	s.wantNoMPS(t)
}
