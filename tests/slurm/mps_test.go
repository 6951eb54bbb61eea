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
	return s
}

// Two tasks on one GPU are served by the daemon of their job, as their user and
// with half of the GPU each.
func TestMPS(t *testing.T) {
	s := startMPS(t, site.Options{})
	result := must(t, s.Site, "srun", "-Q", "-n2", "--gpus=1", "--gpu-mps=auto", s.MPS.Client())
	t.Log(result, filepath.Join(s.RunFolder, "mps"), os.Getpid())
	if want := fmt.Sprintf("percent 50.0 mem all uid 0 gpus %s\n", gpuOf(t, s.Site, "0").UUID); strings.Count(result.Stdout, want) != 2 || result.Stderr != "" {
		t.Errorf("%v\nwant twice %q\nslurmd: %s", result, want, s.Log(bed.Slurmd))
	}
	s.wantClean(t)
}
