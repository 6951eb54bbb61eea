package job

import (
	"fmt"
	"slices"
	"strings"

	"gputune/conf"
	"gputune/internal/ledger"
	"gputune/internal/option"
	"gputune/internal/setting"
)

// computeMode is --gpu-compute-mode.
type computeMode struct {
	want option.ComputeMode
	site conf.ComputeMode
}

func newComputeMode(value string, site conf.Config) (wish, error) {
	want, err := option.ParseComputeMode(value)
	return eachGPU{computeMode{want, site.ComputeMode}}, err
}

func (c computeMode) access() conf.Access { return c.site.Access }

// gpuChanges implements gpuWish.
func (c computeMode) gpuChanges(env *setting.Environment, uuid string) ([]ledger.Change, error) {
	if !slices.Contains(c.site.Modes, c.want) {
		names := make([]string, len(c.site.Modes))
		for i, mode := range c.site.Modes {
			names[i] = string(mode)
		}
		if len(names) == 0 {
			names = []string{"no mode"}
		}
		return nil, fmt.Errorf("compute mode %s: the site allows %s", c.want, strings.Join(names, ", "))
	}
	s, err := setting.Parse(env, setting.GPUKey(uuid, setting.ComputeModeName))
	if err != nil {
		return nil, err
	}
	return []ledger.Change{{Setting: s, Value: string(c.want)}}, nil
}
