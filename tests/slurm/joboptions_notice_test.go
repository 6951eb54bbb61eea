//go:build slurm

package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gputune/tests/slurm/bed"
	"gputune/tests/slurm/site"
)

// A warning is shown once for each job, by its first step.
func TestNoticeOfAWarning(t *testing.T) {
	t.Parallel()
	s := startProlog(t, `printf 'warn\nclocks: no permission\n\npower: 300 W in place of 310 W\033[2J\n' >$job.notice`, site.Options{})
	want := fmt.Sprintf("gputune: %s: warning: clocks: no permission\ngputune: %[1]s: warning: power: 300 W in place of 310 W?[2J\n", s.Node)
	for name, option := range map[string]string{"alone": "--gpu-clocks=low", "with a binding": "--gpu-numa-bind=quiet"} {
		t.Run(name, func(t *testing.T) {
			result := srun(t, s.Site, "-Q", "-n2", "-O", "--gpus=2", option, "sh", "-c", "echo ran")
			if result.Stdout != "ran\nran\n" || result.Stderr != want {
				t.Errorf("srun: %q, %q, want %q", result.Stdout, result.Stderr, want)
			}
			output, batch := s.batch(t, "srun -Q -n1 echo step; srun -Q -n1 echo step; echo batch\n", "--gpus=1", option)
			if output != want+"step\nstep\nbatch\n" || batch.Code != 0 {
				t.Errorf("sbatch: %q, code %d", output, batch.Code)
			}
			result = must(t, s.Site, "salloc", "-Q", "-n1", "--gpus=1", option, "sh", "-c", "srun -Q -n1 true; srun -Q -n1 true")
			if result.Stderr != want {
				t.Errorf("salloc: %q", result.Stderr)
			}
		})
	}
	left, err := filepath.Glob(filepath.Join(s.run, "jobs/*.notice"))
	if err != nil || len(left) != 0 {
		t.Errorf("not marked as shown: %v, %v", left, err)
	}
}

// A failure ends every task of every step, and no node is drained for it.
func TestNoticeOfAFailure(t *testing.T) {
	t.Parallel()
	s := startProlog(t, `printf 'fail\ngpu-power: 900 W: at most 700 W' >$job.notice`,
		site.Options{Bed: bed.Options{ExtraSlurmConf: []string{"LaunchParameters=use_interactive_step"}}})
	want := fmt.Sprintf("gputune: %s: error: gpu-power: 900 W: at most 700 W\n", s.Node)
	for name, arguments := range map[string][]string{
		"one task":                {"-n1"},
		"tasks":                   {"-n2"},
		"with a binding":          {"-n2", "--gpus=2", "--gpu-numa-bind=verbose"},
		"the others are not told": {"-n4", "-O", "--kill-on-bad-exit=1"},
	} {
		t.Run(name, func(t *testing.T) {
			result, err := s.Run(t.Context(), "srun", append(append([]string{"-Q"}, arguments...), "echo", "ran")...)
			if err != nil || result.Code != 1 || result.Stdout != "" || !strings.Contains(result.Stderr, want) {
				t.Errorf("%v, %v", result, err)
			}
			if strings.Count(result.Stderr, "gputune") != 1 {
				t.Errorf("said more than once, or more: %q", result.Stderr)
			}
		})
	}
	output, result := s.batch(t, "echo ran\n", "--gpu-power=900")
	if output != want || result.Code != 1 {
		t.Errorf("sbatch: %q, code %d", output, result.Code)
	}
	script := "srun -Q -n1 echo ran; echo $?; srun -Q -n1 echo ran; echo $?"
	inner, err := s.Run(t.Context(), "salloc", "-Q", "-n1", "sh", "-c", script)
	if err != nil || inner.Stdout != "1\n1\n" || strings.Count(inner.Stderr, want) != 2 {
		t.Errorf("salloc: %v, %v", inner, err)
	}
	interactive := s.Command("salloc", "-Q", "-n1")
	interactive.Terminal = true
	shell, err := interactive.Run(t.Context())
	if err != nil || shell.Code != 1 || !strings.Contains(shell.Stdout, strings.TrimSpace(want)) {
		t.Errorf("interactive step: %v, %v", shell, err)
	}
	s.checkNodeIsUp(t)
	if left, err := filepath.Glob(filepath.Join(s.run, "jobs/*.shown")); err != nil || len(left) != 0 {
		t.Errorf("marked as shown: %v, %v", left, err)
	}
}

// A failure without a word of its own still says something.
func TestNoticeOfAFailureWithoutReason(t *testing.T) {
	t.Parallel()
	s := startProlog(t, `printf 'fail\n\n' >$job.notice`, site.Options{})
	result, err := s.Run(t.Context(), "srun", "-n1", "true")
	if err != nil || result.Code != 1 || !strings.Contains(result.Stderr, "error: the Prolog refused this job's options and left no reason") {
		t.Errorf("%v, %v", result, err)
	}
}

func TestNoticeThatIsNone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ plant, log string }{
		"symbolic link":  {`printf 'fail\nplanted\n' >$job.x; ln -s $job.x $job.notice`, "Too many levels of symbolic links"},
		"pipe":           {`mkfifo $job.notice`, "not a regular file"},
		"folder":         {`mkdir $job.notice`, "not a regular file"},
		"another user's": {`printf 'fail\nplanted\n' >$job.notice; chown nobody $job.notice`, "another user's"},
		"large":          {`{ echo fail; head -c 1048576 /dev/zero | tr '\0' x; } >$job.notice`, "too large"},
		"another word":   {`printf 'failure\nplanted\n' >$job.notice`, `first line "failure": want fail or warn`},
		"empty":          {`: >$job.notice`, `first line "": want fail or warn`},
	} {
		t.Run(name, func(t *testing.T) {
			s := startProlog(t, c.plant, site.Options{})
			result := srun(t, s.Site, "-n1", "echo", "ran")
			if result.Stdout != "ran\n" || result.Stderr != "" {
				t.Error(result)
			}
			if log := s.Log(bed.Slurmd); !strings.Contains(log, ".notice: "+c.log) {
				t.Errorf("slurmd's log has no %q:\n%s", c.log, log)
			}
			s.checkNodeIsUp(t)
		})
	}
}

// The largest notice there may be, all of it.
func TestNoticeOfManyLines(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("warn\n")
	for text.Len() < 64<<10 {
		line := fmt.Sprintf("%d %s", text.Len(), strings.Repeat("x", 1000))
		text.WriteString(line[:min(len(line), 64<<10-text.Len()-1)] + "\n")
	}
	s := startProlog(t, "cp ${job%/*}/../text $job.notice", site.Options{})
	if err := os.WriteFile(filepath.Join(s.run, "text"), []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	result := srun(t, s.Site, "-n1", "true")
	start := fmt.Sprintf("gputune: %s: warning: ", s.Node)
	if got, want := strings.ReplaceAll(result.Stderr, start, ""), strings.TrimPrefix(text.String(), "warn\n"); got != want {
		t.Errorf("%d bytes, want %d", len(got), len(want))
	}
}

// Without the Prolog, somebody has to say that nothing was done.
func TestJobOptionsThatNobodyCarriedOut(t *testing.T) {
	t.Parallel()
	s := startProlog(t, "", site.Options{Bed: bed.Options{ExtraSlurmConf: []string{"LaunchParameters=use_interactive_step"}}})
	line := func(option string) string {
		return fmt.Sprintf("gputune: %s: warning: %s: not applied: gputune-prolog has left no report in %s/jobs: "+
			"is it the Prolog of slurm.conf, and run= of plugstack.conf its paths.run?\n", s.Node, option, s.run)
	}
	want := line("--gpu-clocks=1200")
	for name, arguments := range map[string][]string{
		"":               {"-n2", "-O"},
		"with a binding": {"-n2", "--gpus=2", "--gpu-numa-bind=quiet"},
		"export nothing": {"-n1", "--export=NONE"},
	} {
		result := srun(t, s.Site, append(append([]string{"-Q", "--gpu-clocks=1200"}, arguments...), "/bin/true")...)
		if result.Stderr != want {
			t.Errorf("srun %s: %q", name, result.Stderr)
		}
	}
	if result := srun(t, s.Site, "-Q", "-n1", "--gpu-power=max", "--gpu-clocks=1200", "true"); result.Stderr != want+line("--gpu-power=max") {
		t.Errorf("two options: %q", result.Stderr)
	}
	if result := srun(t, s.Site, "-Q", "-n1", "true"); result.Stderr != "" {
		t.Errorf("no option: %q", result.Stderr)
	}

	script := "srun -Q -n1 sh -c 'env | grep -i GPUTUNE_HEARD; echo step'; srun -Q -n1 --export=NONE /bin/echo none; " +
		"srun -Q -n1 --gpu-power=300 echo typed 2>&1 | grep -v 'belongs to the job'; " +
		"srun -Q -n1 srun -Q -n1 --overlap echo nested; echo batch\n"
	if output, _ := s.batch(t, script, "--gpu-clocks=1200"); output != want+"step\nnone\ntyped\nnested\nbatch\n" {
		t.Errorf("sbatch: %q", output)
	}
	if output, _ := s.batch(t, "srun -Q -n1 --gpu-clocks=1200 --export=NONE /bin/true 2>&1 | grep -v 'belongs to the job'; echo batch\n"); output != "batch\n" {
		t.Errorf("typed in a job without options: %q", output)
	}

	// Where the shell of salloc is on no node, its steps say it.
	result := must(t, s.Site, "salloc", "-Q", "-n1", "--gpu-clocks=1200", "sh", "-c", "srun -Q -n1 echo step")
	if result.Stdout != "step\n" || result.Stderr != want {
		t.Errorf("salloc: %q, %q", result.Stdout, result.Stderr)
	}
	interactive := s.Command("salloc", "-Q", "-n1", "--gpu-clocks=1200")
	interactive.Terminal = true
	if err := interactive.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := interactive.WaitOutput(t.Context(), "not applied"); err != nil {
		t.Fatal(err)
	}
	if err := interactive.Type("srun -Q -n1 echo an inner step; exit\r"); err != nil {
		t.Fatal(err)
	}
	shell, err := interactive.Wait()
	if err != nil || strings.Count(shell.Stdout, "not applied") != 1 || strings.Count(shell.Stdout, "an inner step") < 2 {
		t.Errorf("interactive step: %v, %v", shell, err)
	}
}

// Where the Prolog did something, nobody says that it did not.
func TestJobOptionsThatTheProlog(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]string{
		"carried out":    carriesOut,
		"warned about":   `printf 'warn\nhalf\n' >$job.notice`,
		"has no word on": `printf 'warn\nhalf\n' >$job.notice; ` + carriesOut,
	} {
		t.Run(name, func(t *testing.T) {
			s := startProlog(t, act, site.Options{})
			result := must(t, s.Site, "salloc", "-Q", "-n1", "--gpu-clocks=1200", "sh", "-c", "srun -Q -n1 true; srun -Q -n1 true")
			if strings.Contains(result.Stderr, "not applied") || strings.Count(result.Stderr, "half") != strings.Count(act, "half") {
				t.Errorf("%q", result.Stderr)
			}
		})
	}
}

// A doubled line runs every hook twice; all is said once.
func TestJobOptionsWithThePluginListedTwice(t *testing.T) {
	for name, c := range map[string]struct {
		act, want string
		code      int
	}{
		"warning": {`printf 'warn\nhalf\n' >$job.notice`, "warning: half", 0},
		"failure": {`printf 'fail\nhalf\n' >$job.notice`, "error: half", 1},
		"nothing": {"true", "--gpu-clocks=1200: not applied", 0},
	} {
		t.Run(name, func(t *testing.T) {
			shim := need(t, open).Shim
			s := startProlog(t, c.act, site.Options{Bed: bed.Options{PlugstackLines: []string{"optional " + shim}}})
			result, err := s.Run(t.Context(), "srun", "-Q", "-n2", "-O", "--gpu-clocks=1200", "sh", "-c", "echo $SLURM_JOB_ID")
			if err != nil || result.Code != c.code || strings.Count(result.Stderr, c.want) != 1 {
				t.Fatalf("%v, %v", result, err)
			}
			if c.code != 0 {
				return
			}
			job, _, _ := strings.Cut(result.Stdout, "\n")
			if got := s.asked(t, job); got != "GPU_CLOCKS=1200" {
				t.Errorf("the Prolog got %q", got)
			}
		})
	}
}

// An unprivileged user's job: slurmstepd reads what the user cannot.
func TestNoticeForAnUnprivilegedUser(t *testing.T) {
	t.Parallel()
	s := startProlog(t, `printf 'fail\nno\n' >$job.notice; chmod 600 $job.notice`, site.Options{})
	if err := os.Chmod(filepath.Join(s.run, "jobs"), 0o700); err != nil {
		t.Fatal(err)
	}
	command := s.Command("srun", "-n1", "echo", "ran")
	command.User = "nobody"
	result, err := command.Run(t.Context())
	if err != nil || result.Code != 1 || !strings.Contains(result.Stderr, "gputune: "+s.Node+": error: no\n") {
		t.Errorf("%v, %v", result, err)
	}
}
