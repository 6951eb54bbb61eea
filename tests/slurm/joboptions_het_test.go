//go:build slurm

package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gputune/tests/slurm/bed"
)

// hetProlog is a site whose two nodes have a Prolog that writes its environment
// to run/env.JOBID, and then runs act as that of startProlog does. twice lists
// the plugin twice.
func hetProlog(t *testing.T, act string, twice bool) prologSite {
	t.Helper()
	s := prologSite{twoNodes(t, false), t.TempDir()}
	if err := os.Mkdir(filepath.Join(s.run, "jobs"), 0o755); err != nil {
		t.Fatal(err)
	}
	prolog := filepath.Join(s.run, "prolog")
	text := fmt.Sprintf("#!/bin/sh\nPATH=/usr/bin:/bin\njob=%s/jobs/$SLURM_JOB_ID\n%s\nenv >%[1]s/env.new.$SLURM_JOB_ID\n"+
		"mv %[1]s/env.new.$SLURM_JOB_ID %[1]s/env.$SLURM_JOB_ID\nexit 0\n", s.run, act)
	if err := os.WriteFile(prolog, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Dir(s.Conf)
	for _, name := range []string{filepath.Base(s.Conf), "slurm2.conf"} {
		edit(t, filepath.Join(folder, name), func(conf string) string {
			return conf + "\nProlog=" + prolog + "\nPrologFlags=Alloc\nSchedulerParameters=bf_interval=1\n"
		})
	}
	edit(t, filepath.Join(folder, "plugstack.conf"), func(conf string) string {
		lines := strings.Split(strings.TrimSpace(conf), "\n")
		for i, line := range lines {
			if strings.Contains(line, s.Shim) {
				lines[i] += " run=" + s.run
				if twice {
					lines = append(lines, lines[i])
				}
			}
		}
		return strings.Join(lines, "\n") + "\n"
	})
	must(t, s.Site, "scontrol", "reconfigure")
	return s
}

func edit(t *testing.T, path string, change func(string) string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(change(string(text))), 0o644); err != nil {
		t.Fatal(err)
	}
}

// components returns what each component's Prolog was asked for since the last
// call, in the order of the components.
func (s prologSite) components(t *testing.T, count int) []string {
	t.Helper()
	var jobs []int
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		paths, err := filepath.Glob(filepath.Join(s.run, "env.[0-9]*"))
		if err != nil {
			t.Fatal(err)
		}
		if len(paths) == count {
			for _, path := range paths {
				job, err := strconv.Atoi(strings.TrimPrefix(filepath.Ext(path), "."))
				if err != nil {
					t.Fatal(err)
				}
				jobs = append(jobs, job)
			}
			break
		}
		if time.Since(begin) > 20*time.Second {
			t.Fatalf("%d Prologs ran, want %d", len(paths), count)
		}
	}
	slices.Sort(jobs)
	var asked []string
	for _, job := range jobs {
		asked = append(asked, s.asked(t, strconv.Itoa(job)))
		if err := os.Remove(filepath.Join(s.run, fmt.Sprintf("env.%d", job))); err != nil {
			t.Fatal(err)
		}
	}
	return asked
}

// het runs a heterogeneous job's command: what each component is given, and what
// is to run in the end. Each of the components of an srun needs its own.
func (s prologSite) het(t *testing.T, program string, environment []string, run string, components ...[]string) bed.Result {
	t.Helper()
	var arguments []string
	script := filepath.Join(s.Dir, "work", "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"+run+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	output := filepath.Join(s.Dir, "work", "out")
	for i, component := range components {
		if i > 0 {
			arguments = append(arguments, ":")
		}
		arguments = append(arguments, "-Q", "-p", "both", "-n1")
		if program == "sbatch" && i == 0 {
			arguments = append(arguments, "-W", "-o", output)
		}
		arguments = append(arguments, component...)
		if program == "srun" {
			arguments = append(arguments, script)
		}
	}
	if program != "srun" {
		arguments = append(arguments, script)
	}
	command := s.Command(program, arguments...)
	command.Env = environment
	result, err := command.Run(t.Context())
	if err != nil || result.Code != 0 {
		t.Fatalf("%s %q: %v, %v", program, arguments, result, err)
	}
	if program == "sbatch" {
		text, err := os.ReadFile(output)
		if err != nil {
			t.Fatal(err)
		}
		result.Stdout = string(text)
	}
	return result
}

// Each component's Prolog gets what that component was given, and nothing else.
func TestJobOptionsOfHeterogeneousJobs(t *testing.T) {
	t.Parallel()
	for name, twice := range map[string]bool{"listed once": false, "listed twice": true} {
		t.Run(name, func(t *testing.T) {
			s := hetProlog(t, carriesOut, twice)
			programs := []string{"sbatch", "salloc", "srun"}
			if twice { // salloc does as sbatch, and takes twice as long
				programs = []string{"sbatch", "srun"}
			}
			for _, program := range programs {
				t.Run(program, func(t *testing.T) { testHetOptions(t, s, program, twice) })
			}
			if !twice {
				t.Run("in the script", func(t *testing.T) { testHetOptionsInScript(t, s) })
				t.Run("sbatch in a job", func(t *testing.T) { testHetOptionsInJob(t, s) })
			}
		})
	}
}

func testHetOptions(t *testing.T, s prologSite, program string, twice bool) {
	t.Helper()
	const clocks, other, power = "--gpu-clocks=1200", "--gpu-clocks=low", "--gpu-power=300"
	// As in an sbatch inside a job.
	outer := []string{"SLURM_SPANK__SLURM_SPANK_OPTION_gputune_gpu_clocks=1000"}
	for name, c := range map[string]struct {
		environment           []string
		first, second         []string
		wantFirst, wantSecond string
	}{
		"one each":               {nil, []string{clocks}, []string{power}, "GPU_CLOCKS=1200", "GPU_POWER=300"},
		"the first":              {nil, []string{clocks, power}, nil, "GPU_CLOCKS=1200 GPU_POWER=300", ""},
		"the second":             {nil, nil, []string{clocks, power}, "", "GPU_CLOCKS=1200 GPU_POWER=300"},
		"another value":          {nil, []string{clocks}, []string{other}, "GPU_CLOCKS=1200", "GPU_CLOCKS=low"},
		"the same value":         {nil, []string{clocks}, []string{clocks}, "GPU_CLOCKS=1200", "GPU_CLOCKS=1200"},
		"none":                   {nil, nil, nil, "", ""},
		"inherited":              {outer, nil, []string{power}, "GPU_CLOCKS=1000", "GPU_CLOCKS=1000 GPU_POWER=300"},
		"inherited, the first":   {outer, []string{clocks}, nil, "GPU_CLOCKS=1200", "GPU_CLOCKS=1000"},
		"inherited, the second":  {outer, nil, []string{clocks}, "GPU_CLOCKS=1000", "GPU_CLOCKS=1200"},
		"inherited and the same": {outer, []string{clocks}, []string{"--gpu-clocks=1000"}, "GPU_CLOCKS=1200", "GPU_CLOCKS=1000"},
	} {
		t.Run(name, func(t *testing.T) {
			result := s.het(t, program, c.environment, "true", c.first, c.second)
			if got, want := s.components(t, 2), []string{c.wantFirst, c.wantSecond}; !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
			// Slurm says that the doubled one has the options already.
			if !twice && result.Stderr != "" {
				t.Errorf("stderr: %q", result.Stderr)
			}
		})
	}
}

// sbatch reads a component's options from the script, then from the environment,
// which has those of the component before, and then from the command line.
func testHetOptionsInScript(t *testing.T, s prologSite) {
	t.Helper()
	lines := "#SBATCH --gpu-clocks=1200 --gpu-compute-mode=shared\n#SBATCH hetjob\n#SBATCH --gpu-clocks=1300\ntrue"
	s.het(t, "sbatch", nil, lines, []string{"--gpu-power=300"}) // the command line is for all components of a script
	want := []string{"GPU_CLOCKS=1200 GPU_COMPUTE_MODE=shared GPU_POWER=300", "GPU_CLOCKS=1300 GPU_POWER=300"}
	if got := s.components(t, 2); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// What a job was given, the jobs inherit that are made inside it.
func testHetOptionsInJob(t *testing.T, s prologSite) {
	t.Helper()
	const inner = "sbatch --parsable -o /dev/null -p both -n1 --gpu-power=300 --wrap=true : -p both -n1"
	for _, components := range [][][]string{
		{{"--gpu-clocks=1000"}},
		{{"--gpu-clocks=1000"}, {"--gpu-compute-mode=shared"}},
	} {
		result := s.het(t, "sbatch", nil, inner, components...)
		if _, err := strconv.Atoi(strings.TrimSpace(result.Stdout)); err != nil {
			t.Fatalf("%q: %v", result.Stdout, err)
		}
		got := s.components(t, len(components)+2)[len(components):]
		if want := []string{"GPU_CLOCKS=1000 GPU_POWER=300", "GPU_CLOCKS=1000"}; !slices.Equal(got, want) {
			t.Errorf("inside %q: %q, want %q", components, got, want)
		}
	}
}

// reportsIfAsked leaves no report on a component that was given nothing, as
// gputune-prolog.
const reportsIfAsked = `if env | grep -q ^SPANK_GPUTUNE_; then ` + carriesOut + `; fi`

// A component's step speaks of its own options alone, although Slurm hands it
// those of all.
func TestNoticesOfHeterogeneousJobs(t *testing.T) {
	t.Parallel()
	const steps = "for group in 0 1; do srun -Q --het-group=$group sh -c 'env | grep SLURM_GPUTUNE_; echo ran'; done"
	// The steps of an srun each run the script.
	runs := map[string]string{"srun": "env | grep SLURM_GPUTUNE_; echo ran", "salloc": steps, "sbatch": steps}
	for name, act := range map[string]string{"reported": reportsIfAsked, "not reported": "true"} {
		t.Run(name, func(t *testing.T) {
			s := hetProlog(t, act, false)
			for program, run := range runs {
				for given, components := range map[string][][]string{
					"both":       {{"--gpu-clocks=1200"}, {"--gpu-power=300"}},
					"the first":  {{"--gpu-clocks=1200"}, nil},
					"the second": {nil, {"--gpu-power=300"}},
					"other":      {{"--gpu-clocks=1200"}, {"--gpu-clocks=low"}},
				} {
					t.Run(program+" "+given, func(t *testing.T) {
						result := s.het(t, program, nil, run, components...)
						var want []string
						for i, node := range []string{s.Node, s.Node + "b"} {
							// The batch step speaks for the steps in it, and it is the first component's.
							if len(components[i]) == 0 || act == reportsIfAsked || program == "sbatch" && i == 1 {
								continue
							}
							want = append(want, fmt.Sprintf("gputune: %s: warning: %s: not applied: gputune-prolog has left no report in %s/jobs: "+
								"is it the Prolog of slurm.conf, and run= of plugstack.conf its paths.run?", node, components[i][0], s.run))
						}
						var said, ran []string
						for line := range strings.Lines(result.Stdout + result.Stderr) {
							if line = strings.TrimSuffix(line, "\n"); strings.HasPrefix(line, "gputune: ") {
								said = append(said, line)
							} else {
								ran = append(ran, line)
							}
						}
						slices.Sort(said)
						if !slices.Equal(said, want) {
							t.Errorf("said %q, want %q", said, want)
						}
						if !slices.Equal(ran, []string{"ran", "ran"}) {
							t.Errorf("else %q", ran)
						}
						s.components(t, 2)
					})
				}
			}
		})
	}
}
