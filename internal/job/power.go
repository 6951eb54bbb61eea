package job

import (
	"fmt"

	"gputune/conf"
	"gputune/internal/ledger"
	"gputune/internal/option"
	"gputune/internal/setting"
)

// power is --gpu-power.
type power struct {
	want option.Power
	site conf.Power
}

func newPower(value string, site conf.Config) (wish, error) {
	want, err := option.ParsePower(value)
	return eachGPU{power{want, site.Power}}, err
}

func (p power) access() conf.Access { return p.site.Access }

// gpuChanges implements gpuWish.
func (p power) gpuChanges(env *setting.Environment, uuid string) ([]ledger.Change, error) {
	device, err := env.Device(uuid)
	if err != nil {
		return nil, err
	}
	low, high, standard, err := device.PowerLimits()
	if err != nil {
		return nil, err
	}
	says := "supported"
	if least := uint64(p.site.Min) * 1000; least > uint64(low) {
		low, says = uint32(min(least, uint64(high)+1)), "the site allows"
	}
	if most := uint64(p.site.Max) * 1000; most != 0 && most < uint64(high) {
		high, says = uint32(most), "the site allows"
	}
	of := "gpu " + device.PCI()
	if low > high {
		return nil, fmt.Errorf("%s: power: the site allows no limit that the GPU can have", of)
	}
	limit := uint64(p.want.Watts) * 1000
	switch p.want.Word {
	case "max":
		limit = uint64(high)
	case "default":
		limit = uint64(standard)
	}
	if limit < uint64(low) || limit > uint64(high) {
		near := low
		if limit > uint64(high) {
			near = high
		}
		what := p.want.String() + " W"
		if p.want.Word != "" {
			what = fmt.Sprintf("%s (%s W)", p.want.Word, setting.Watts(standard))
		}
		return nil, &setting.ValueError{
			Of: of, Value: "power " + what, Accepts: fmt.Sprintf("%s %s–%s W", says, setting.Watts(low), setting.Watts(high)),
			Nearest: setting.Watts(near),
		}
	}
	s, err := setting.Parse(env, setting.GPUKey(uuid, setting.PowerLimitName))
	if err != nil {
		return nil, err
	}
	return []ledger.Change{{Setting: s, Value: setting.Watts(uint32(limit))}}, nil
}
