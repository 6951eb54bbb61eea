//go:build slurm

package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gputune/tests/slurm/bed"
	"gputune/tests/slurm/site"
)

// prologSite is a site with a stand-in for gputune-prolog.
type prologSite struct {
	*site.Site
	run string // the plugin's run=
}

// startProlog starts a site whose Prolog writes its environment to
// run/env.JOBID and then runs the shell commands of act, for which $job is
// run/jobs/JOBID.
func startProlog(t *testing.T, act string, options site.Options) prologSite {
	t.Helper()
	run := t.TempDir()
	if err := os.Mkdir(filepath.Join(run, "jobs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if act != "" {
		options.Bed.Prolog = filepath.Join(run, "prolog")
		text := fmt.Sprintf("#!/bin/sh\nPATH=/usr/bin:/bin\nenv >%s/env.$SLURM_JOB_ID\njob=%s/jobs/$SLURM_JOB_ID\n%s\nexit 0\n", run, run, act)
		if err := os.WriteFile(options.Bed.Prolog, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	options.Bed.ExtraSlurmConf = append(options.Bed.ExtraSlurmConf, "PrologFlags=Alloc")
	options.Arguments = append(options.Arguments, "run="+run)
	return prologSite{start(t, options), run}
}

// carriesOut is a Prolog that has something to show for it.
const carriesOut = `echo '{}' >$job.json`

// asked returns the variables with which a job's options reached the Prolog.
func (s prologSite) asked(t *testing.T, job string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.run, "env."+strings.TrimSpace(job)))
	if err != nil {
		t.Fatal(err)
	}
	var asked []string
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(line, "SPANK_GPUTUNE_"); found {
			asked = append(asked, strings.TrimSpace(rest))
		}
	}
	slices.Sort(asked)
	return strings.Join(asked, " ")
}

// batch runs a job to its end and returns what it wrote to its output, which
// standard error goes to as well, and how sbatch -W ended.
func (s prologSite) batch(t *testing.T, script string, arguments ...string) (string, bed.Result) {
	t.Helper()
	folder, err := os.MkdirTemp(filepath.Join(s.Dir, "work"), "job-")
	if err != nil {
		t.Fatal(err)
	}
	path, output := filepath.Join(folder, "script"), filepath.Join(folder, "out")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	result, err := s.Run(t.Context(), "sbatch", append(append([]string{"-W", "-n1", "-o", output}, arguments...), path)...)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(output)
	if err != nil {
		t.Fatalf("%v: %v", result, err)
	}
	return string(text), result
}

func (s prologSite) checkNodeIsUp(t *testing.T) {
	t.Helper()
	if err := s.WaitIdle(t.Context()); err != nil {
		t.Error(err)
	}
	if state, reason, err := s.NodeState(t.Context()); err != nil || state != "idle" {
		t.Errorf("node is %s (%s), %v", state, reason, err)
	}
}

func TestJobOptionsReachTheProlog(t *testing.T) {
	t.Parallel()
	s := startProlog(t, carriesOut, site.Options{})
	const id = "echo $SLURM_JOB_ID"
	three := []string{"--gpu-clocks=1200-1400,memory=high", "--gpu-power=300", "--gpu-compute-mode=exclusive"}
	const wantThree = "GPU_CLOCKS=1200-1400,memory=high GPU_COMPUTE_MODE=exclusive GPU_POWER=300"

	result := srun(t, s.Site, append(append([]string{"-n2"}, three...), "sh", "-c", id)...)
	job, _, _ := strings.Cut(result.Stdout, "\n")
	if got := s.asked(t, job); got != wantThree || result.Stderr != "" {
		t.Errorf("srun: %q, stderr %q", got, result.Stderr)
	}
	result = srun(t, s.Site, "-n1", "--gpu-clocks=low", "--gpu-clocks=high", "sh", "-c", id)
	if got := s.asked(t, result.Stdout); got != "GPU_CLOCKS=high" {
		t.Errorf("given twice: %q", got)
	}
	result = srun(t, s.Site, "-n1", "sh", "-c", id)
	if got := s.asked(t, result.Stdout); got != "" {
		t.Errorf("not given: %q", got)
	}
	output, _ := s.batch(t, "#SBATCH --gpu-power=250\n#SBATCH --gpu-clocks=low\n"+id+"\n", "--gpu-clocks=medium")
	if got := s.asked(t, output); got != "GPU_CLOCKS=medium GPU_POWER=250" {
		t.Errorf("sbatch, in the script and before it: %q", got)
	}
	result = must(t, s.Site, "salloc", append(append([]string{"-Q", "-n1"}, three...), "sh", "-c", id)...)
	if got := s.asked(t, result.Stdout); got != wantThree || result.Stderr != "" {
		t.Errorf("salloc: %q, stderr %q", got, result.Stderr)
	}
	// No submission's environment is left to the tasks, nor is the plugin's own.
	result = srun(t, s.Site, "-n1", "--gpu-clocks=low", "sh", "-c", "env | grep -i gputune || true")
	if result.Stdout != "" {
		t.Errorf("the task's environment has %q", result.Stdout)
	}
}

func TestJobOptionIsRefusedBeforeAJobExists(t *testing.T) {
	s := startProlog(t, carriesOut, site.Options{})
	for _, c := range []struct{ option, want string }{
		{"--gpu-clocks=sideways", `--gpu-clocks: "sideways"`},
		{"--gpu-clocks=", `--gpu-clocks`},
		{"--gpu-power=-5", `--gpu-power: "-5"`},
		{"--gpu-compute-mode=--help", `--gpu-compute-mode: "--help"`},
		{"--gpu-power=" + strings.Repeat("1", 1100), "--gpu-power: more than 1023 bytes"},
	} {
		for _, command := range [][]string{{"srun", "true"}, {"salloc", "true"}, {"sbatch", "--wrap=true"}} {
			result, err := s.Run(t.Context(), command[0], "-n1", c.option, command[1])
			if err != nil {
				t.Fatal(err)
			}
			if result.Code == 0 || !strings.Contains(result.Stderr, c.want) {
				t.Errorf("%s %.50s: %v", command[0], c.option, result)
			}
		}
	}
	if jobs, err := s.Jobs(t.Context()); err != nil || len(jobs) != 0 {
		t.Errorf("jobs were made: %v, %v", jobs, err)
	}
	if logs, err := filepath.Glob(filepath.Join(s.run, "env.*")); err != nil || len(logs) != 0 {
		t.Errorf("Prologs ran: %v, %v", logs, err)
	}
}

// Only a refusal refuses, and only then is the program heard; each value is one
// argument.
func TestProgramThatChecks(t *testing.T) {
	program := filepath.Join(t.TempDir(), "gputune")
	// Its words are more than a pipe holds.
	text := `#!/bin/sh
case "$*" in
"check --gpu-power=three") echo "three is refused" >&2; exit 3 ;;
"check --gpu-power=--loud") i=0; while [ $i -lt 3000 ]; do echo "runtime: out of memory, goroutine $i" >&2; i=$((i+1)); done; exit 2 ;;
"check --gpu-power=killed") kill -9 $$ ;;
"check --gpu-power=fine") exit 0 ;;
*) echo "called with $*" >&2; exit 3 ;;
esac
`
	if err := os.WriteFile(program, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	s := startProlog(t, carriesOut, site.Options{Arguments: []string{"program=" + program}})
	for _, c := range []struct{ value, stdout, stderr string }{
		{"three", "", "three is refused\n"},
		{"--loud", "ran\n", ""},
		{"killed", "ran\n", ""},
		{"fine", "ran\n", ""},
	} {
		result, err := s.Run(t.Context(), "srun", "-Q", "-n1", "--gpu-power="+c.value, "echo", "ran")
		if err != nil {
			t.Fatal(err)
		}
		if result.Stdout != c.stdout || result.OK() != (c.stdout != "") || !strings.HasPrefix(result.Stderr, c.stderr) ||
			c.stderr == "" && result.Stderr != "" {
			t.Errorf("%s: %v", c.value, result)
		}
	}
}

// A user without address space for a Go program gets the job, and no traceback.
func TestCheckWithoutAddressSpace(t *testing.T) {
	s := startProlog(t, carriesOut, site.Options{})
	script := fmt.Sprintf("ulimit -v 300000; %s check --gpu-power=300 >/dev/null 2>&1; echo status $?; exec srun -n1 --propagate=NONE --gpu-power=300 echo ran",
		filepath.Join(filepath.Dir(filepath.Dir(s.Core)), "bin/gputune"))
	result := must(t, s.Site, "sh", "-c", script)
	if !strings.HasPrefix(result.Stdout, "status ") || strings.HasPrefix(result.Stdout, "status 0") {
		t.Skipf("a Go program starts with that much: %q", result.Stdout)
	}
	if !strings.HasSuffix(result.Stdout, "\nran\n") || result.Stderr != "" {
		t.Error(result)
	}
}

// In a job, its options are no step's.
func TestJobOptionsOfAnInnerSrun(t *testing.T) {
	t.Parallel()
	s := startProlog(t, carriesOut, site.Options{})
	const ignored = "srun: error: gputune: --gpu-clocks=1200 belongs to the job and is ignored here: " +
		"give it to sbatch, salloc or the srun that makes the job\n"
	for name, c := range map[string]struct {
		job, step []string
		want      string
	}{
		"inherited":               {[]string{"--gpu-clocks=1200"}, nil, ""},
		"inherited and repeated":  {[]string{"--gpu-clocks=1200"}, []string{"--gpu-clocks=1200"}, ""},
		"another value":           {[]string{"--gpu-clocks=low"}, []string{"--gpu-clocks=1200"}, ignored},
		"the job has none":        {nil, []string{"--gpu-clocks=1200"}, ignored},
		"the job has another one": {[]string{"--gpu-power=300"}, []string{"--gpu-clocks=1200"}, ignored},
		// It is judged where it counts.
		"a silly one": {nil, []string{"--gpu-clocks=low", "--gpu-clocks=1200"}, ignored},
	} {
		t.Run(name, func(t *testing.T) {
			step := "srun -Q -n1 " + strings.Join(c.step, " ") + " sh -c 'env | grep -i GPUTUNE_HEARD; echo ran'"
			output, result := s.batch(t, "echo $SLURM_JOB_ID\n"+step+"\n"+step+"\n", c.job...)
			job, rest, _ := strings.Cut(output, "\n")
			if want := strings.Repeat(c.want+"ran\n", 2); rest != want || result.Code != 0 {
				t.Errorf("sbatch: %q, want %q", rest, want)
			}
			var want []string
			for _, option := range c.job {
				want = append(want, strings.NewReplacer("--", "", "-clocks", "_CLOCKS", "-power", "_POWER", "gpu", "GPU").Replace(option))
			}
			if got := s.asked(t, job); got != strings.Join(want, " ") {
				t.Errorf("the Prolog got %q, want %q", got, want)
			}
			result = must(t, s.Site, "salloc", append(append([]string{"-Q", "-n1"}, c.job...), "sh", "-c", step)...)
			if result.Stdout != "ran\n" || result.Stderr != c.want {
				t.Errorf("salloc: %q, %q", result.Stdout, result.Stderr)
			}
		})
	}
}
