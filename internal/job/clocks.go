package job

import (
	"errors"
	"fmt"

	"gputune/conf"
	"gputune/internal/ledger"
	"gputune/internal/option"
	"gputune/internal/setting"
)

// clocks is --gpu-clocks.
type clocks struct {
	want option.Clocks
	site conf.Clocks
}

func newClocks(value string, site conf.Config) (wish, error) {
	want, err := option.ParseClocks(value)
	return eachGPU{clocks{want, site.Clocks}}, err
}

func (c clocks) access() conf.Access { return c.site.Access }

// gpuChanges implements gpuWish.
func (c clocks) gpuChanges(env *setting.Environment, uuid string) ([]ledger.Change, error) {
	device, err := env.Device(uuid)
	if err != nil {
		return nil, err
	}
	of := "gpu " + device.PCI()
	var changes []ledger.Change
	if !c.want.SM.IsZero() {
		possible, err := device.SMClocks()
		if err != nil {
			return nil, err
		}
		low, high, err := within(of, "clocks", c.want.SM, possible, c.site.Min, c.site.Max)
		if err != nil {
			return nil, err
		}
		s, err := setting.Parse(env, setting.GPUKey(uuid, setting.SMClocksName))
		if err != nil {
			return nil, err
		}
		changes = append(changes, ledger.Change{Setting: s, Value: fmt.Sprintf("%d-%d", low, high)})
	}
	if !c.want.Memory.IsZero() {
		possible, err := device.MemoryClocks()
		if err != nil {
			return nil, err
		}
		low, high, err := within(of, "memory clocks", c.want.Memory, possible, c.site.MemoryMin, c.site.MemoryMax)
		if err != nil {
			return nil, err
		}
		s, err := setting.MemoryClock(env, uuid)
		if err != nil {
			return nil, err
		}
		value := fmt.Sprintf("%d-%d", low, high)
		if s.Key() == setting.GPUKey(uuid, setting.ApplicationClocksName) {
			if low != high {
				return nil, &setting.ValueError{
					Of: of, Value: "memory clocks " + value + " MHz",
					Accepts: "this GPU takes one memory clock, no range", Nearest: fmt.Sprint(high),
				}
			}
			value = fmt.Sprint(low)
		}
		changes = append(changes, ledger.Change{Setting: s, Value: value})
	}
	return changes, nil
}

// within returns the clocks that a wish stands for among those that the GPU can
// have and the site allows.
func within(of, what string, want option.Clock, possible setting.Clocks, least, most conf.Number) (low, high uint32, err error) {
	allowed := possible.Between(uint32(least), uint32(most))
	says := "supported"
	if allowed.Low != possible.Low || allowed.High != possible.High {
		says = "the site allows"
	}
	if allowed.High == 0 {
		return 0, 0, fmt.Errorf("%s: %s: the site allows none that the GPU can have: supported %v", of, what, possible)
	}
	if want.Word != "" {
		mhz, ok := allowed.Named(want.Word)
		if !ok {
			return 0, 0, fmt.Errorf("%s: %s %s: the driver lists no clocks by which to tell", of, what, want.Word)
		}
		return mhz, mhz, nil
	}
	low, high = allowed.Nearest(want.Min), allowed.Nearest(want.Max)
	if want.Min < allowed.Low || want.Max > allowed.High {
		return 0, 0, &setting.ValueError{
			Of: of, Value: fmt.Sprintf("%s %v MHz", what, want), Accepts: says + " " + allowed.String(),
			Nearest: option.Clock{Min: low, Max: high}.String(),
		}
	}
	return low, high, nil
}

// nearest returns what an error says would be accepted.
func nearest(err error) string {
	if value := (*setting.ValueError)(nil); errors.As(err, &value) {
		return value.Nearest
	}
	return ""
}
