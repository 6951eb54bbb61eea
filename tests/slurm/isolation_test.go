//go:build slurm

package slurm

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gputune/tests/slurm/bed"
	"gputune/tests/slurm/site"
)

func maps(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The core is in slurmstepd alone, and only in steps that ask for binding.
func TestCoreIsLoadedOnlyWhereItIsNeeded(t *testing.T) {
	s := need(t, constrained)
	for _, c := range []struct {
		name      string
		arguments []string
		core      bool
	}{
		{"absent", nil, false},
		{"off", []string{"--gpu-numa-bind=off"}, false},
		{"off with items", []string{"--gpu-numa-bind=mem=bind,off"}, true}, // the core judges the other items
		{"on", []string{"--gpu-numa-bind"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			duringStep(t, s, func(srun *bed.Cmd, stepd int) {
				text := maps(t, stepd)
				if !strings.Contains(text, "spank_gputune.so") {
					t.Errorf("slurmstepd %d has not loaded the plugin", stepd)
				}
				if got := strings.Contains(text, "libgputune.so"); got != c.core {
					t.Errorf("slurmstepd %d has the core mapped: %v, want %v", stepd, got, c.core)
				}
				for name, pid := range map[string]int{"srun": srun.Pid(), "slurmd": s.Pid(bed.Slurmd)} {
					if strings.Contains(maps(t, pid), "libgputune.so") {
						t.Errorf("%s has the core mapped", name)
					}
				}
			}, append([]string{"--gpus=1"}, c.arguments...)...)
		})
	}
}

// duringStep calls look with srun and each slurmstepd of a step whose task has begun.
func duringStep(t *testing.T, s *site.Site, look func(srun *bed.Cmd, stepd int), arguments ...string) {
	t.Helper()
	command := s.Command("srun", append(append([]string{"-n1"}, arguments...), "sh", "-c", "echo started; read line")...)
	stdin, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	command.Stdin = stdin
	if err := command.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	stdin.Close()
	if err := command.WaitOutput(t.Context(), "started"); err != nil {
		t.Fatal(err)
	}
	stepds := s.Stepds()
	if len(stepds) == 0 {
		t.Fatal("no slurmstepd")
	}
	for _, pid := range stepds {
		look(command, pid)
	}
	if _, err := writer.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	if result, err := command.Wait(); err != nil || result.Code != 0 {
		t.Fatalf("%v, %v", result, err)
	}
}

// sbatch, salloc and srun are followed from their start to their end.
func TestSubmissionNeverOpensTheCore(t *testing.T) {
	s := need(t, constrained)
	for _, c := range [][]string{
		{"srun", "-n1", "--gpus=1", "--gpu-numa-bind=mem=bind", "true"},
		{"sbatch", "-W", "-n1", "--gpus=1", "--gpu-numa-bind=mem=bind", "-o", "/dev/null", "--wrap=true"},
		{"salloc", "-n1", "--gpus=1", "--gpu-numa-bind=mem=bind", "true"},
	} {
		trace := filepath.Join(t.TempDir(), "trace")
		must(t, s, "strace", append([]string{"-f", "-e", "trace=open,openat,execve", "-o", trace}, c...)...)
		text, err := os.ReadFile(trace)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(text, []byte("spank_gputune.so")) || !bytes.Contains(text, []byte("bin/gputune")) {
			t.Fatalf("%v: the trace shows neither the plugin nor the check", c)
		}
		if bytes.Contains(text, []byte("libgputune.so")) {
			t.Errorf("%v opened the core", c)
		}
	}
}

func TestExportedSymbols(t *testing.T) {
	s := need(t, open)
	shims, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(s.Shim)), "slurm-*", "spank_gputune.so"))
	if err != nil || len(shims) < 9 {
		t.Fatalf("%d shims, %v: want one for each release", len(shims), err)
	}
	want := []string{
		"plugin_name", "plugin_type", "plugin_version", "slurm_spank_exit", "slurm_spank_init",
		"slurm_spank_init_post_opt", "slurm_spank_task_init", "slurm_spank_task_post_fork",
	}
	for _, shim := range shims {
		output, err := exec.Command("nm", "-D", "--defined-only", shim).Output()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for line := range strings.Lines(string(output)) {
			fields := strings.Fields(line)
			got = append(got, fields[len(fields)-1])
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s exports %v, want %v", shim, got, want)
		}
		needed, err := exec.Command("readelf", "-d", shim).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range regexp.MustCompile(`\(NEEDED\).*\[(.*)\]`).FindAllStringSubmatch(string(needed), -1) {
			if match[1] != "libc.so.6" {
				t.Errorf("%s needs %s: want libc alone", shim, match[1])
			}
		}
	}
}

// Each release's shim loads in that release and in no other; a plugin that does
// not fit or is not there stops neither slurmd nor a job, being optional.
func TestReleases(t *testing.T) {
	release, err := site.Release()
	if err != nil {
		t.Fatal(err)
	}
	s := need(t, open)
	shims := filepath.Dir(filepath.Dir(s.Shim))
	all, err := filepath.Glob(filepath.Join(shims, "slurm-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range append(all, filepath.Join(shims, "slurm-none")) {
		name := strings.TrimPrefix(filepath.Base(folder), "slurm-")
		t.Run(name, func(t *testing.T) {
			other := start(t, site.Options{Without: true, Bed: bed.Options{
				PlugstackLines: []string{"optional " + filepath.Join(folder, "spank_gputune.so") + " core=" + s.Core},
			}})
			result := srun(t, other, "-n1", "echo", "ran")
			if !strings.Contains(result.Stdout, "ran") {
				t.Errorf("stdout %q", result.Stdout)
			}
			must(t, other, "sbatch", "-W", "-n1", "-o", "/dev/null", "--wrap=true")
			must(t, other, "salloc", "-Q", "-n1", "true")
			help := must(t, other, "srun", "--help")
			if got, want := strings.Contains(help.Stdout, "--gpu-numa-bind"), name == release; got != want {
				t.Errorf("the option is there: %v, want %v", got, want)
			}
			if name != release && name != "none" && !strings.Contains(result.Stderr, "ncompatible") {
				t.Errorf("Slurm does not say that the plugin does not fit: %q", result.Stderr)
			}
		})
	}
}

// Slurm is upgraded and the link leads to another release's plugin, or nowhere,
// while slurmd and a step of before run on: nobody is harmed, and with the right
// one steps are bound again, without a restart.
func TestPluginThatIsReplaced(t *testing.T) {
	release, err := site.Release()
	if err != nil {
		t.Fatal(err)
	}
	right := need(t, open)
	other := "26.05"
	if release == other {
		other = "22.05"
	}
	link := filepath.Join(t.TempDir(), "spank_gputune.so")
	point := func(target string) {
		t.Helper()
		if err := os.Symlink(target, link+".new"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(link+".new", link); err != nil {
			t.Fatal(err)
		}
	}
	point(right.Shim)
	s := start(t, site.Options{Without: true, Bed: bed.Options{PlugstackLines: []string{
		"optional " + link + " core=" + right.Core + " config=" + filepath.Join(right.Folder, "gputune.toml"),
	}}})
	bound := func() {
		t.Helper()
		if tasks, stderr := steps(t, s, 1, "--gpus=1", "--gpu-numa-bind"); tasks["0"]["glocality"] != "local" {
			t.Errorf("%v, %q", tasks, stderr)
		}
	}
	bound()
	for name, target := range map[string]string{
		"another release's": filepath.Join(filepath.Dir(filepath.Dir(right.Shim)), "slurm-"+other, "spank_gputune.so"),
		"none":              "/nonexistent/spank_gputune.so",
	} {
		t.Run(name, func(t *testing.T) {
			duringStep(t, s, func(*bed.Cmd, int) {
				point(target)
				without := func() {
					t.Helper()
					if help := must(t, s, "srun", "--help"); strings.Contains(help.Stdout, "--gpu-numa-bind") {
						t.Error("srun has options of the plugin that was replaced")
					}
					if result := srun(t, s, "-n1", "echo", "ran"); !strings.Contains(result.Stdout, "ran") {
						t.Errorf("stdout %q", result.Stdout)
					}
					must(t, s, "sbatch", "-W", "-n1", "-o", "/dev/null", "--wrap=true")
					must(t, s, "salloc", "-Q", "-n1", "true")
				}
				without()
				if err := s.Restart(t.Context(), bed.Slurmd); err != nil {
					t.Fatal(err)
				}
				without()
			}, "--gpus=1", "--gpu-numa-bind")
			point(right.Shim)
			bound()
			if err := s.WaitIdle(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// The task is what it would be without the plugin: signals, limits, file
// descriptors, environment.
func TestTaskIsUntouched(t *testing.T) {
	without, with := need(t, plain), need(t, open)
	script := `grep -E '^(Sig[PBIC]|Shd|Cap|NoNewPrivs|Seccomp|Groups|Umask|CoreDumping|THP)' /proc/self/status
cat /proc/self/limits; for f in /proc/self/fd/*; do echo "fd ${f##*/}"; done; nice; ulimit -a; pwd
env | grep -v -E '^(SLURM_|SLURMD_|HOSTNAME=|PWD=|OLDPWD=|_=|TMPDIR=|CUDA_|GPU_|ROCR_|ZE_|SRUN_)' | sort; env | cut -d= -f1 | grep SLURM | sort`
	for name, more := range map[string][]string{
		"propagated limits": nil,
		"own limits":        {"--propagate=NONE"},
	} {
		arguments := append([]string{"-n1", "--gpus=1", "--chdir=/"}, more...)
		want := srun(t, without, append(arguments, "bash", "-c", script)...)
		for option, says := range map[string]string{"": "", "--gpu-numa-bind=off": "", "--gpu-numa-bind": "GPUTUNE_"} {
			a := arguments
			if option != "" {
				a = append(slices.Clone(arguments), option)
			}
			got := srun(t, with, append(a, "bash", "-c", script)...)
			var kept []string
			exported := 0
			for line := range strings.Lines(got.Stdout) {
				if strings.HasPrefix(line, "GPUTUNE_") {
					exported++
					continue
				}
				kept = append(kept, line)
			}
			if text := strings.Join(kept, ""); text != want.Stdout {
				t.Errorf("%s, %q: the task differs: without the plugin and with it\n%s", name, option, differences(want.Stdout, text))
			}
			if (exported == 5) != (says != "") || (exported == 0) != (says == "") {
				t.Errorf("%s, %q: %d variables exported", name, option, exported)
			}
		}
	}
}

// What the user's environment says to Go programs is nothing to the core.
func TestUsersEnvironmentDoesNotReachTheCore(t *testing.T) {
	s := need(t, constrained)
	command := s.Command("srun", "-n1", "--gpus=1", "--gpu-numa-bind=verbose", "sh", "-c", "echo $GODEBUG")
	command.Env = []string{
		"GODEBUG=inittrace=1,gctrace=1,schedtrace=1", "GOTRACEBACK=crash", "GOGC=1", "GOMAXPROCS=64",
		"GOMEMLIMIT=1", "LD_PRELOAD=", "LD_BIND_NOW=",
	}
	result, err := command.Run(t.Context())
	if err != nil || result.Code != 0 {
		t.Fatalf("code %d, %v, %s", result.Code, err, result.Stderr)
	}
	if strings.TrimSpace(result.Stdout) != "inittrace=1,gctrace=1,schedtrace=1" {
		t.Errorf("the task's own environment: %q", result.Stdout)
	}
	for line := range strings.Lines(result.Stderr) {
		if !strings.HasPrefix(line, "gputune: ") {
			t.Errorf("said: %q", line)
		}
	}
	log := s.Log(bed.Slurmd)
	for _, trace := range []string{"init gputune", "gc 1 @", "SCHED"} {
		if strings.Contains(log, trace) {
			t.Errorf("slurmd's log has %q", trace)
		}
	}
}

// slurmd as init scripts start it leaves its parent after the plugins were
// loaded, which no Go runtime survives.
func TestDaemonisedSlurmd(t *testing.T) {
	t.Parallel()
	s := start(t, site.Options{Bed: bed.Options{Daemonize: true}})
	for range 5 {
		tasks, stderr := steps(t, s, 2, "--gpus=2", "--gpu-bind=map_gpu:1,0", "--gpu-numa-bind")
		if len(tasks) != 2 || tasks["0"]["glocality"] != "local" {
			t.Fatalf("%v, %s", tasks, stderr)
		}
	}
	if err := s.Reconfigure(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(t.Context(), bed.Slurmd); err != nil {
		t.Fatal(err)
	}
	if tasks, _ := steps(t, s, 1, "--gpus=1", "--gpu-numa-bind"); tasks["0"]["glocality"] != "local" {
		t.Errorf("after the restart: %v", tasks)
	}
}

// differences returns the lines that only one of two texts has.
func differences(a, b string) string {
	var only strings.Builder
	for _, side := range []struct{ mark, text, other string }{{"-", a, b}, {"+", b, a}} {
		lines := slices.Collect(strings.Lines(side.other))
		for line := range strings.Lines(side.text) {
			if !slices.Contains(lines, line) {
				only.WriteString(side.mark + line)
			}
		}
	}
	return only.String()
}
