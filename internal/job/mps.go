package job

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"gputune/conf"
	"gputune/internal/ledger"
	"gputune/internal/mps"
	"gputune/internal/option"
	"gputune/internal/setting"
)

// service is --gpu-mps: one MPS daemon for all GPUs of the job.
type service struct {
	want option.MPS
	site conf.MPS
}

func newMPS(value string, site conf.Config) (wish, error) {
	want, err := option.ParseMPS(value)
	return service{want, site.MPS}, err
}

func (v service) access() conf.Access { return v.site.Access }

// changes implements wish. The GPUs' compute mode comes before the daemon, so
// that no other program gets between, and is put back after it.
func (v service) changes(_ context.Context, s *scene) ([]ledger.Change, error) {
	if v.want.Off {
		return nil, nil
	}
	if mode, given := s.value(option.ComputeModeName); given && mode != string(option.ComputeExclusive) {
		return nil, fmt.Errorf("it does not go together with --%s=%s: want %s or leave that out", option.ComputeModeName, mode, option.ComputeExclusive)
	}
	spec, err := v.spec(s)
	if err != nil {
		return nil, err
	}
	var changes []ledger.Change
	for _, uuid := range spec.GPUs {
		if !v.site.Exclusive {
			break
		}
		mode, err := setting.Parse(s.env, setting.GPUKey(uuid, setting.ComputeModeName))
		if err != nil {
			return nil, err
		}
		changes = append(changes, ledger.Change{Setting: mode, Value: string(option.ComputeExclusive)})
	}
	daemon, err := setting.Parse(s.env, setting.GPUKey(spec.GPUs[0], setting.MPSName))
	if err != nil {
		return nil, err
	}
	// What an earlier job has left there is not put back.
	return append(changes, ledger.Change{Setting: daemon, Value: spec.String(), Before: setting.MPSOff}), nil
}

// spec says what the job's daemon has to be.
func (v service) spec(s *scene) (mps.Spec, error) {
	memory := v.want.PinnedMemory >> 20
	if most := uint64(v.site.MaxMemory); most != 0 {
		if memory > most {
			return mps.Spec{}, &setting.ValueError{
				Of: "memory of a client", Value: v.want.String(), Accepts: fmt.Sprintf("the site allows %d MiB at most", most),
				Nearest: option.MPS{PinnedMemory: most << 20}.String(),
			}
		}
		if memory == 0 {
			memory = most
		}
	}
	gpus, err := s.wholeGPUs()
	if err != nil {
		return mps.Spec{}, err
	}
	if !s.job.HasGID { // and not root's, which is what the zero value says
		return mps.Spec{}, fault{errors.New("SLURM_JOB_GID is not set: the group of the job's MPS daemon is not known")}
	}
	spec := mps.Spec{
		Job: s.job.ID, UID: s.job.UID, GID: s.job.GID,
		Percent: v.want.Percent, Memory: memory, Program: string(v.site.Program),
	}
	for _, gpu := range gpus {
		spec.GPUs = append(spec.GPUs, gpu.uuid)
	}
	return spec, nil
}

// file implements stepFile. Each line has a word and what it is about: see mps.c
// of the plugin, which reads it.
func (v service) file(s *scene) (suffix, text string) {
	if v.want.Off {
		return "", ""
	}
	spec, err := v.spec(s)
	if err != nil {
		return "", ""
	}
	var b strings.Builder
	line := func(word, format string, arguments ...any) { fmt.Fprintf(&b, word+" "+format+"\n", arguments...) }
	line("refusal", "%s", s.site.Job.OnRefusal)
	line("socket", "%s", s.env.MPS.Socket(spec))
	for _, variable := range s.env.MPS.Variables(spec) {
		line("set", "%s=%s", variable[0], variable[1])
	}
	if spec.Memory != 0 {
		limits := make([]string, len(spec.GPUs))
		for i := range limits {
			limits[i] = fmt.Sprintf("%d=%dM", i, spec.Memory)
		}
		line("set", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=%s", strings.Join(limits, ","))
	}
	switch {
	case v.want.Auto:
		line("percentage", "auto")
	case v.want.Percent != 0:
		line("percentage", "%d", v.want.Percent)
	}
	devices := "open"
	if s.constrained() {
		devices = "constrained"
	}
	line("devices", "%s", devices)
	gpus := s.targets()
	for i, gpu := range gpus {
		line("gpu", "%d %d %s %s", gpu.index, numberUnderMPS(gpus, i), gpu.uuid, gpu.device)
	}
	return mpsSuffix, b.String()
}

// numberUnderMPS is what a program calls a GPU in CUDA_VISIBLE_DEVICES that uses
// the daemon of these: they count by PCI address, whatever the order of the
// daemon's own list is (seen with driver 580). GPUs of several models count by
// their speed (CUDA_DEVICE_ORDER), which is not known here: -1.
func numberUnderMPS(gpus []target, which int) int {
	number := 0
	for _, gpu := range gpus {
		if gpu.model != gpus[which].model {
			return -1
		}
		if gpu.pci < gpus[which].pci {
			number++
		}
	}
	return number
}
