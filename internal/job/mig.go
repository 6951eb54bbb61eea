package job

import (
	"context"
	"fmt"

	"gputune/conf"
	"gputune/internal/ledger"
	"gputune/internal/mig"
	"gputune/internal/option"
	"gputune/internal/setting"
)

// split is --gpu-mig: each GPU of the job in MIG devices.
type split struct {
	want  option.MIG
	site  conf.MIG
	plans []mig.Plan // one for each GPU, once they are decided
}

func newMIG(value string, site conf.Config) (wish, error) {
	want, err := option.ParseMIG(value)
	return &split{want: want, site: site.MIG}, err
}

func (w *split) access() conf.Access { return w.site.Access }

// changes implements wish.
func (w *split) changes(_ context.Context, s *scene) ([]ledger.Change, error) {
	if mps, given := s.value(option.MPSName); given && mps != "off" {
		return nil, fmt.Errorf("it does not go together with --%s: each MIG device would need a daemon of its own", option.MPSName)
	}
	gpus, err := s.wholeGPUs()
	if err != nil {
		return nil, err
	}
	wants := make([]mig.Want, len(w.want.Instances))
	for i, one := range w.want.Instances {
		wants[i] = mig.Want{Profile: one.Profile, Count: one.Count}
	}
	w.plans = nil
	var changes []ledger.Change
	for _, gpu := range gpus {
		plan, err := setting.MIGPlan(s.env, gpu.uuid, wants, bool(w.site.AllowReset))
		if err != nil {
			return nil, err
		}
		layout, err := setting.Parse(s.env, setting.GPUKey(gpu.uuid, setting.MIGName))
		if err != nil {
			return nil, err
		}
		w.plans = append(w.plans, plan)
		changes = append(changes, ledger.Change{Setting: layout, Value: plan.Layout.String()})
	}
	return changes, nil
}

// file implements stepFile.
func (w *split) file(s *scene) (suffix, text string) {
	var handout mig.Handout
	for i, gpu := range s.targets() {
		uuids, err := setting.MIGDevices(s.env, gpu.uuid, w.plans[i])
		if err != nil {
			return migSuffix, oneLine(err.Error()) + "\n" // which no step takes for devices, and each logs
		}
		handout = append(handout, mig.Devices{GPU: gpu.uuid, UUIDs: uuids})
	}
	if len(handout) == 0 {
		return "", ""
	}
	return migSuffix, handout.String()
}

// caution implements cautious. Source: NVIDIA's guide to MIG, "Application
// Considerations".
func (w *split) caution(s *scene) string {
	if len(s.targets()) < 2 {
		return ""
	}
	return "GPU-to-GPU peer access is off while GPUs are split, over NVLink as well: a program that uses several GPUs at once is slower or fails"
}
